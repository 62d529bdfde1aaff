"""A whole `Device` made of an engine.

`EngineDevice` gives an engine what the HAL asks of a device: executions on every path, inline or
through the shared workers; fenced chains that go from worker to worker; a burst server; timings;
deadline answers; a limit of concurrent executions; buffers that it manages; and containment of
whatever the engine raises.

A request is validated and bound once: the binding is kept for as long as the request object lives,
so executing the same request again costs a dictionary look-up. Dropping the request drops the
binding, and its memory goes with the last run that still uses it.
"""

from nnasync._core.engine_device.device import EngineDevice as EngineDevice
from nnasync._core.engine_device.plan_users import PlanTerms as PlanTerms
from nnasync._core.engine_device.prepared import EnginePreparedModel as EnginePreparedModel
