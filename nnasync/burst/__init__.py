"""The burst protocol: many executions of one prepared model over a channel that is kept alive.

The client half (`BurstController`) names memory by slots, small numbers that it allocates, most
recently freed first; the server half (`BurstServer`) asks for the memory of a slot it does not
know once (`get_memories`) and keeps it until the slot is freed. A request carries what the HAL's
packet has (inputs, outputs, slots, whether to measure), and beside that a deadline and a serial
number, so that answers may overtake one another: a missed deadline is answered while an earlier
execution still runs. The server begins one execution only after the device has let go of all
before it. Where a slot stands, the token of a driver-managed buffer may stand as a negative number.

Messages are msgspec arrays in MessagePack. The arguments of a request are an encoding of their own
inside it: a client that uses the same memory again sends the same bytes, and the server, which
trusts nothing that arrives, checks and binds each distinct encoding once.
"""

from nnasync.burst.controller import BurstController as BurstController
from nnasync.burst.packets import BurstArguments as BurstArguments
from nnasync.burst.packets import BurstCancel as BurstCancel
from nnasync.burst.packets import BurstRequest as BurstRequest
from nnasync.burst.packets import BurstResult as BurstResult
from nnasync.burst.packets import ResultDecoder as ResultDecoder
from nnasync.burst.packets import result_of as result_of
from nnasync.burst.protocols import Awaited as Awaited
from nnasync.burst.protocols import Begin as Begin
from nnasync.burst.protocols import BurstCallback as BurstCallback
from nnasync.burst.protocols import BurstContext as BurstContext
from nnasync.burst.protocols import BurstLine as BurstLine
from nnasync.burst.protocols import Channel as Channel
from nnasync.burst.protocols import LocalChannel as LocalChannel
from nnasync.burst.protocols import Outcome as Outcome
from nnasync.burst.protocols import PromptBurstContext as PromptBurstContext
from nnasync.burst.protocols import PromptLine as PromptLine
from nnasync.burst.protocols import RunNow as RunNow
from nnasync.burst.server import BurstServer as BurstServer

__all__ = [
    "Awaited",
    "BurstArguments",
    "Begin",
    "BurstCallback",
    "BurstCancel",
    "BurstContext",
    "BurstController",
    "BurstLine",
    "PromptLine",
    "BurstRequest",
    "BurstResult",
    "BurstServer",
    "Channel",
    "LocalChannel",
    "Outcome",
    "PromptBurstContext",
    "ResultDecoder",
    "RunNow",
    "result_of",
]
