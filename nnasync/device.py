"""The contract of the HAL: a device, its prepared models, and what their calls return.

Every call is a coroutine and raises a class of `errors` where the HAL returns a status. A driver
author usually writes an `engine.Engine` instead and gets a whole device; a device that is not an
engine, such as one in another process, implements these protocols itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from nnasync._core.clock import Deadline
from nnasync.errors import NNError
from nnasync.fences import Fence
from nnasync.hal import (
    DEFAULT_CONFIG,
    NEVER_NS,
    Array,
    BufferDesc,
    BufferRole,
    Capabilities,
    DeviceStatus,
    DeviceType,
    ErrorStatus,
    ExecutionConfig,
    ExecutionPreference,
    ExecutionResult,
    Extension,
    HalVersion,
    Memory,
    Model,
    OutputShape,
    Priority,
    Request,
    Shape,
    Struct,
    Timing,
)

if TYPE_CHECKING:
    from nnasync.burst import BurstCallback, BurstContext, Channel, PromptLine

__all__ = [
    "DEFAULT_CONFIG",
    "DEFAULT_PREPARE",
    "Buffer",
    "Device",
    "DistantBuffer",
    "ExecutionConfig",
    "ExecutionInfo",
    "FencedExecution",
    "InlinePreparedModel",
    "InlineRun",
    "Lowering",
    "LoweringDevice",
    "PrepareModelConfig",
    "PreparedModel",
    "QuickPreparedModel",
    "RepeatingPreparedModel",
    "SharingDevice",
]


class ExecutionInfo(Struct, frozen=True):
    """Status and timings of a fenced execution, available after its fence.

    `status` is NONE, or why the execution failed. `timing_launched` has durations since the launch,
    `timing_fenced` since the last fence that it waited for.
    """

    status: ErrorStatus = ErrorStatus.NONE
    timing_launched: Timing = Timing()
    timing_fenced: Timing = Timing()


class FencedExecution(Protocol):
    """A launched execution: its sync fence, its execution info, and a way to cancel it."""

    @property
    def fence(self) -> Fence:
        """Returns the fence.

        Signaled when the outputs are written, failed when they will not be.
        """

    async def get_execution_info(self) -> ExecutionInfo:
        """Returns status and timings; raises BadState while the fence is pending."""

    def cancel(self) -> None:
        """End the execution: its fence fails with Cancelled unless it is done."""


class Buffer(Protocol):
    """A driver-managed buffer (memory domain, IBuffer).

    A request names it by its token, as a pool, with offset and length 0, in the roles for which it
    was allocated. Work on it that is not ordered may be refused with ResourceExhaustedTransient.
    """

    @property
    def token(self) -> int:
        """Returns the number that stands for the buffer in requests; it is above 0."""

    async def copy_to(self, memory: Memory, /) -> None:
        """Copy the contents to memory of exactly their size.

        Raises InvalidArgument for another size, GeneralFailure where nothing was written to the
        buffer or the memory cannot be mapped.
        """

    async def copy_from(self, memory: Memory, /, dimensions: Shape = ()) -> None:
        """Copy contents in, from memory of exactly their size.

        `dimensions` may be left out where the allocation knew them all. A copy that fails leaves
        the buffer without contents. Raises InvalidArgument for dimensions or a size that do not
        fit, GeneralFailure where the memory cannot be mapped.
        """

    async def close(self) -> None:
        """Give the buffer back: its token means nothing any more."""


@runtime_checkable
class DistantBuffer(Buffer, Protocol):
    """A buffer in another process, which can be read without an event loop."""

    def start_copy_to(self, memory: Memory, /) -> Fence:
        """Start the copy of `copy_to` from any thread; the fence reports its result.

        Raises the reason if it cannot start.
        """


class PreparedModel(Protocol):
    """A compiled model on a device (IPreparedModel).

    Executions raise MissedDeadline, ResourceExhausted, InvalidArgument,
    OutputInsufficientSize, GeneralFailure or DeviceUnavailable.
    """

    async def execute(
        self, request: Request, config: ExecutionConfig = DEFAULT_CONFIG
    ) -> ExecutionResult:
        """Run through the device's queue."""

    async def execute_synchronously(
        self, request: Request, config: ExecutionConfig = DEFAULT_CONFIG
    ) -> ExecutionResult:
        """Run with the least overhead: on the calling thread where that is cheaper than a hop."""

    async def execute_fenced(
        self,
        request: Request,
        wait_for: Sequence[Fence] = (),
        config: ExecutionConfig = DEFAULT_CONFIG,
    ) -> FencedExecution:
        """Launch behind fences and return at once.

        Every output must be fully specified.
        """

    async def configure_execution_burst(
        self, callback: BurstCallback, request_channel: Channel, result_channel: Channel
    ) -> BurstContext:
        """Serve execution requests that come over a channel until the context is closed."""

    async def close(self) -> None:
        """Give everything back; executions in flight end with DeviceUnavailable."""


@runtime_checkable
class InlinePreparedModel(PreparedModel, Protocol):
    """A prepared model of this process, which may run on the thread of its caller.

    The runtime recognizes it by its methods, and then answers calls without a hop to a worker where
    that is cheaper.
    """

    def check_room(self, priority: Priority | None = None, deadline_ns: int = NEVER_NS) -> None:
        """Raises ResourceExhausted or MissedDeadline if an execution would be refused now."""

    def has_let_go(self, request: Request) -> bool:
        """Returns whether nobody uses the memory of a request any more, after an execution failed.

        Such an execution was refused, cancelled or late, and may go on for a while.
        """

    def bind(self, request: Request, *, tries: bool = True) -> None:
        """Prepare a request ahead of its first execution, on any thread.

        With `tries` it may also run once, on the current contents of the request's memory.
        """

    def run_now(
        self,
        request: Request,
        config: ExecutionConfig,
        given: Sequence[Array] | None = None,
    ) -> ExecutionResult | None:
        """Runs at once and returns the result if that is cheaper than a hop; else returns None.

        `given` are arrays to be read in place of all inputs of the request, of their dtypes and
        shapes; they may be written to the memory of the request. Raises what an execution raises.
        """

    async def warm_up_calls(
        self,
        calls: Callable[[int, Deadline | None], Awaitable[object]],
        deadline: Deadline | None = None,
    ) -> int:
        """Make this many `calls` of the network before the application's first call.

        None starts after the deadline. A failure is raised by that first call. Returns how many
        more calls this thread must make before it awaits anything.
        """

    def launch_now(self, request: Request, config: ExecutionConfig) -> FencedExecution | None:
        """Launches and runs at once what waits for nothing and is very cheap; else returns None."""

    def open_burst(self) -> PromptLine:
        """Begins a burst that takes requests as they are, without messages; raises if closed."""


@runtime_checkable
class QuickPreparedModel(InlinePreparedModel, Protocol):
    """An inline prepared model that also runs one request again and again at the least cost.

    It is a protocol of its own because this is optional: an `InlinePreparedModel` without these two
    methods is complete, and its plain calls go through `run_now`.
    """

    def runs_here_now(self) -> bool:
        """Returns whether an execution of the usual priority would run on this thread now."""

    def quick_run(self, request: Request) -> InlineRun | None:
        """Returns what runs a request as `run_now` does, at the least cost; None if nothing can.

        It is for executions of the usual priority that are not measured. Raises as `run_now`.
        """


class InlineRun(Protocol):
    """One request on the thread of its caller, with all that a run needs looked up once."""

    def run(self, given: Sequence[Array] | None, deadline_ns: int) -> bool:
        """Runs at once if nothing speaks against it; returns False if nothing has happened.

        `given` is as of `run_now`. Raises what an execution raises.
        """

    @property
    def output_shapes(self) -> Sequence[OutputShape]:
        """Returns the shapes of all outputs of the last run; to be read after it."""

    @property
    def ends_turn(self) -> bool:
        """Returns whether the caller had better await `next_turn` after the last run.

        So it is where a task runs again and again in one turn of its loop, which has no room for
        one more: the next call would have to wait for the loop to turn, and takes longer then.
        """

    def next_turn(self) -> Awaitable[None]:
        """Lets the loop turn; may be cancelled."""

    def goes_beside(self, deadline_ns: int = NEVER_NS) -> bool:
        """Whether an execution that begins now is better queued beside others than run here.

        So it is as well where this thread must not run it. Ask this for each such execution once:
        the answers count for how usual company is.
        """

    def run_beside(self, request: Request, deadline_ns: int = NEVER_NS) -> Awaitable[object]:
        """Runs another request beside others, on whichever thread is free first."""


@runtime_checkable
class RepeatingPreparedModel(PreparedModel, Protocol):
    """A prepared model with another one behind it, which repeats what the device fails to do.

    Executions are repeated without the caller; who opens a burst asks for it call by call.
    """

    @property
    def suspects(self) -> bool:
        """Returns whether the device failed lately, so that it may not be asked at all."""

    def skipped(self) -> NNError | None:
        """Returns the failure for which this request is kept from the device; None if it is not."""

    def failed(self, error: BaseException, request: Request | None = None) -> NNError | None:
        """Notes an error of the device.

        Returns the failure for which to repeat a request, or None.
        """

    def succeeded(self) -> None:
        """Notes that the device did what it was asked."""

    def repeat(
        self,
        request: Request,
        config: ExecutionConfig,
        failure: NNError,
        done: Callable[[ExecutionResult | NNError], None],
    ) -> Callable[[], object] | None:
        """Repeats a request that failed, from any thread; returns a function that cancels that.

        `done` hears what comes of it once its memory is free, on any thread.
        """


class Lowering(Struct, frozen=True):
    """One of the ways in which an engine can run a model; the framework measures and keeps one.

    name: such as "float32" or "bf16", without the number of threads. threads: how many cores one
    execution keeps busy. is_exact: results are bit-stable from run to run and from machine to
    machine, within what the conformance tests tolerate. reduces_precision: floating point of the
    model is computed with less than float32 (bfloat16), which only the application may allow.
    promise: of the ways that an engine offers for a model, those that are more likely the fastest
    on this processor have higher numbers; where there is no time to measure all, they come first.
    """

    name: str
    threads: int = 1
    is_exact: bool = False
    reduces_precision: bool = False
    promise: int = 0

    def __str__(self) -> str:
        return f"{self.name}, {self.threads} thread{'' if self.threads == 1 else 's'}"


class PrepareModelConfig(Struct, frozen=True):
    """How a model is prepared.

    deadline: by when. model_cache, data_cache: file descriptors, as many as
    `get_number_of_cache_files_needed` says. token: 32 bytes that name the compilation in the cache.
    lowering: one that a LoweringDevice offers for the model; None is the one it thinks best.
    """

    preference: ExecutionPreference = ExecutionPreference.FAST_SINGLE_ANSWER
    priority: Priority = Priority.MEDIUM
    deadline: Deadline | None = None
    model_cache: Sequence[int] = ()
    data_cache: Sequence[int] = ()
    token: bytes = b""
    lowering: Lowering | None = None


DEFAULT_PREPARE = PrepareModelConfig()
"""A preparation that asks for nothing special."""


class Device(Protocol):
    """A device (IDevice). Names and figures are answered alike for as long as it lives.

    It may have `async why_not(model) -> Sequence[str | None]`: for each operation of the main
    subgraph why it is not supported, and None where it is, or where there is nothing to say.

    With an attribute `caches_late` that is True it may write its cache files also after it answered
    `prepare_model` or `prepare_model_from_cache`, through duplicates of their descriptors. It holds
    an exclusive `flock` of the first file, as it got it, while it writes.
    """

    @property
    def name(self) -> str:
        """Returns the unique name."""

    @property
    def version(self) -> str:
        """Returns the version string, which is not empty."""

    @property
    def type(self) -> DeviceType:
        """Returns the kind of hardware."""

    @property
    def feature_level(self) -> HalVersion:
        """Returns the version of the HAL that the device implements."""

    async def get_status(self) -> DeviceStatus:
        """Returns whether the device takes work now."""

    async def get_capabilities(self) -> Capabilities:
        """Returns performance figures, as ratios to the reference."""

    async def get_supported_extensions(self) -> tuple[Extension, ...]:
        """Returns the vendor extensions that are supported in full."""

    async def get_number_of_cache_files_needed(self) -> tuple[int, int]:
        """Returns the numbers of model cache and data cache files; (0, 0) means no caching."""

    async def get_supported_operations(self, model: Model) -> tuple[bool, ...]:
        """Returns for each operation of the main subgraph whether the device can run it.

        Raises InvalidArgument if the model is not legal.
        """

    async def prepare_model(
        self, model: Model, config: PrepareModelConfig = DEFAULT_PREPARE
    ) -> PreparedModel:
        """Compile a model; raises InvalidArgument, DeviceError, Refused.

        The device writes the cache files for `prepare_model_from_cache`; failing to write them
        fails nothing.
        """

    async def prepare_model_from_cache(self, config: PrepareModelConfig) -> PreparedModel:
        """Load a compiled model from what `prepare_model` wrote with the same token.

        Raises GeneralFailure where the device has no caching or the files are not what it wrote,
        InvalidArgument for a wrong number of files.
        """

    async def allocate(
        self,
        desc: BufferDesc,
        prepared_models: Sequence[PreparedModel],
        input_roles: Sequence[BufferRole],
        output_roles: Sequence[BufferRole],
    ) -> Buffer:
        """Allocate a driver-managed buffer for these inputs and outputs of prepared models.

        Raises InvalidArgument for a description or roles that are not legal, GeneralFailure where
        the device has no such buffers, ResourceExhausted where it has no room.
        """

    async def close(self) -> None:
        """Close the device; executions in flight end with DeviceUnavailable."""


@runtime_checkable
class SharingDevice(Device, Protocol):
    """A device whose prepared models may share what was compiled."""

    async def share(self, prepared: PreparedModel, priority: Priority) -> PreparedModel:
        """Returns another prepared model of the same plan and its memory, of another priority.

        Both are closed on their own. Raises InvalidArgument for one that is not of this device,
        GeneralFailure where it cannot be shared, DeviceUnavailable where it is closed.
        """


@runtime_checkable
class LoweringDevice(Device, Protocol):
    """A device that knows several ways to run a model, and prepares it in the one that is asked.

    It raises InvalidArgument for a lowering that it does not offer for the model.
    """

    async def lowerings(
        self, model: Model, preference: ExecutionPreference
    ) -> tuple[Lowering, ...]:
        """Returns the ways to run a supported model, the most promising first.

        Empty if there is one.
        """
