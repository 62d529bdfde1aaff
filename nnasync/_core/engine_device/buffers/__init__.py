"""Memory domains: buffers that a device manages, which requests name by tokens.

A buffer is made for roles: this input of that prepared model, that output of another; its token
means something there only. Its contents are either initialized, with dimensions, or nobody can
read them:

    not initialized --(execution wrote it | copy_from)--> initialized
    initialized --(execution that should write it failed | copy_from failed)--> not initialized

Reading changes nothing. What is not known of the dimensions at the allocation is known with the
contents; such a buffer has memory when it has something to hold, and gets more when it needs it.

*Tokens.* The HAL hands out the smallest number that is free, which is meant for one client. Here
several may share a device, so tokens are random numbers of 63 bits: who was not told one cannot
name the buffer.

*Races.* Readers share a buffer, a writer has it alone, for as long as it runs. Whoever comes in
between is refused at once with ResourceExhaustedTransient, and nothing is touched: contents are
never a mixture, no thread waits for another, and a run that the device does not let go of cannot
write into what came later. Work that is ordered by fences or awaits never meets that. One lock for
the buffers of a device is held while states change, never during a copy or a run.

*Memory* is the process's own, zeroed, and aligned for every engine; it is not shared with anybody.
Small buffers of one prepared model lie side by side, in rows of eight kilobytes (`rows`).
What is idle of a row counts for nobody.
"""

from nnasync._core.engine_device.buffers.claims import Claim as Claim
from nnasync._core.engine_device.buffers.claims import Claims as Claims
from nnasync._core.engine_device.buffers.claims import Read as Read
from nnasync._core.engine_device.buffers.claims import Written as Written
from nnasync._core.engine_device.buffers.managed import CloseListener as CloseListener
from nnasync._core.engine_device.buffers.managed import ManagedBuffer as ManagedBuffer
from nnasync._core.engine_device.buffers.managed import bytes_of as bytes_of
from nnasync._core.engine_device.buffers.rows import Role as Role
from nnasync._core.engine_device.buffers.token_registry import Buffers as Buffers
from nnasync._core.engine_device.buffers.token_registry import (
    BuffersStatistics as BuffersStatistics,
)
from nnasync._core.engine_device.buffers.token_registry import (
    default_limit_bytes as default_limit_bytes,
)

__all__ = [
    "Buffers",
    "BuffersStatistics",
    "Claim",
    "Claims",
    "CloseListener",
    "ManagedBuffer",
    "Read",
    "Role",
    "Written",
    "bytes_of",
    "default_limit_bytes",
]
