"""A runtime: the resources that all networks of an application share, and their lifetime."""

from __future__ import annotations

import functools
import logging
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Self

import msgspec

from nnasync._core.clock import Deadline, Watchdog, now_ns
from nnasync._core.collecting import collecting_later
from nnasync._core.compilation import (
    Apart,
    Better,
    Compilation,
    CompileSpec,
    Verdicts,
    bring_in,
    compile_model,
    state_folder,
    tell,
)
from nnasync._core.deferred import deferred
from nnasync._core.drivers.cpu.blas import ONE_BLAS_THREAD
from nnasync._core.engine_device import EngineDevice
from nnasync._core.execution import Net
from nnasync._core.execution.ports import R
from nnasync._core.heap import HEAP
from nnasync._core.runtime import told
from nnasync._core.runtime.beginning import Beginning, begin_compilation, get_ready
from nnasync._core.runtime.compile_request import (
    CompileOptions,
    ModelSource,
    PendingNet,
    begun,
    closed_on_failure,
    spec_fields,
    taking_old_keywords,
)
from nnasync._core.runtime.device_list import DeviceElsewhere, Devices
from nnasync._core.runtime.options import Options
from nnasync._core.runtime.process_settings import (
    SETTINGS,
    LoopThread,
    inline_budget_ns,
    settling_in,
    stall_budget_ns,
)
from nnasync._core.runtime.sharing import Claim, SharedPlans
from nnasync._core.runtime.shutdown import (
    Leftovers,
    close_device,
    close_prepared,
    collect_late_files,
    late_files_written,
)
from nnasync._core.runtime.tasks import Upkeep, tasks_of_this_loop
from nnasync._core.wakeup import Wakeup, in_thread, shield
from nnasync._core.workers import Workers, WorkersStatistics
from nnasync.device import Device, PreparedModel
from nnasync.engine import Engine
from nnasync.errors import BadState, ResourceExhausted
from nnasync.fences import Fence
from nnasync.hal import ExecutionPreference, Model, Priority
from nnasync.machine.decisions import decide
from nnasync.machine.here import HERE
from nnasync.machine.kept import kept_costs
from nnasync.machine.loading import kept_loading_ms
from nnasync.memory import MemoryStatistics
from nnasync.memory import statistics as memory_statistics
from nnasync.scheduler.policy import DEFAULT, Policy
from nnasync.tracing import Count, Instrument, Layer, Phase, Tracer, vlog
from nnasync.tracing.tally import Tallies

if TYPE_CHECKING:
    from nnasync._core import versions
    from nnasync._core.cache import late_files
    from nnasync._core.cache import store as stores
    from nnasync._core.cache.late_files import SharedEntries
    from nnasync._core.compilation import caching, contest_process, kept
    from nnasync._core.compilation.contest_process import ContestProcess
    from nnasync._core.compilation.first_answer import Begun
    from nnasync._core.execution import buffer
    from nnasync._core.execution.ahead import Ahead
    from nnasync._core.execution.buffer import Buffer, Role
    from nnasync._core.runtime import rechecking, reviving
    from nnasync._core.runtime.rechecking import Rechecker
    from nnasync._core.runtime.reviving import Reviver
    from nnasync._core.versions import Errands, OlderDevice
    from nnasync.scheduler import policies
else:
    caching = deferred("nnasync._core.compilation.caching")
    kept = deferred("nnasync._core.compilation.kept")
    policies = deferred("nnasync.scheduler.policies")
    contest_process = deferred("nnasync._core.compilation.contest_process")
    late_files = deferred("nnasync._core.cache.late_files")
    stores = deferred("nnasync._core.cache.store")
    buffer = deferred("nnasync._core.execution.buffer")
    rechecking = deferred("nnasync._core.runtime.rechecking")
    reviving = deferred("nnasync._core.runtime.reviving")
    versions = deferred("nnasync._core.versions")

logger = logging.getLogger(__name__)


IDLE_PERIOD_S = 5.0
CLOSE_GRACE_S = 2.0
READY_PATIENCE_S = 5.0
"""How long a plan may take to be bound and tried before its network is handed out all the same."""


class RuntimeStatistics(msgspec.Struct, frozen=True):
    """State of a runtime now; `wakeups` counts how often threads woke the loop."""

    workers: WorkersStatistics
    memory: MemoryStatistics
    wakeups: Count
    nets: int


def open_runtime(
    *,
    devices: Sequence[str | Engine | Device | OlderDevice | DeviceElsewhere] | None = None,
    isolate: Sequence[str] = (),
    options: Options | None = None,
    instruments: Sequence[Instrument] = (),
    policy: str | Policy | None = None,
) -> Runtime:
    """A runtime, to be used with `async with`, or awaited where blocks end too soon.

    `rt = await nn.open_runtime()` and `await rt.aclose()` are for the cells of a notebook.

    `devices` are names, engines or devices; None means all that are there by default. Those that
    `isolate` names run in processes of their own, which are started for them, and again after they
    died. `policy` decides which executions go first, which are refused and which give way; None is
    what the options say. By its name isolated devices have it too, an object is for this process.
    Raises InvalidArgument for an unknown name.
    """
    options = options or Options()
    if isinstance(policy, str):
        options = msgspec.structs.replace(options, policy=policy)
    named = options.policy if policy is None else policy
    decides = None if named == DEFAULT else policies.resolve_policy(named)
    return Runtime(devices, options, instruments, isolate=isolate, policy=decides)


class Runtime:
    """Devices and the workers they share; made by `open_runtime`."""

    def __init__(
        self,
        devices: Sequence[str | Engine | Device | OlderDevice | DeviceElsewhere] | None,
        options: Options,
        instruments: Sequence[Instrument],
        *,
        isolate: Sequence[str] = (),
        policy: Policy | None = None,
    ) -> None:
        self.options = options
        self._policy = policy
        self.tracer = Tracer(instruments)
        self.calls = Tallies()
        """What became of the calls of networks; a collector of `tracing.metrics`."""
        self._wanted = devices
        self._isolate = isolate
        self._nets: set[weakref.ref[Net]] = set()
        self._recheckers: set[Rechecker] = set()
        self._leftovers = Leftovers()
        self._shared: SharedEntries | None = None
        self._folder = os.path.expanduser(options.state_dir or state_folder())
        self._errands: Errands | None = None
        self._contests: ContestProcess | None = None
        self._making = threading.Lock()
        self._loop_thread = LoopThread(options)
        self._state = "new"

    async def __aenter__(self) -> Self:
        if self._state != "new":
            raise BadState("a runtime can be opened once; make another with open_runtime()")
        self._wakeup = Wakeup.current()
        self._watchdog = Watchdog()
        self._plans = SharedPlans(self._watchdog)
        options = self.options
        machine = HERE.decisions = decide(kept_costs(self._folder), stall_budget_ns(options))
        self._workers = Workers(
            cores=options.cores,
            inline_budget_ns=inline_budget_ns(options, machine),
            stall_budget_ns=stall_budget_ns(options),
            machine=machine,
            queue_limit=options.queue_limit,
            watchdog=self._watchdog,
            tracer=self.tracer,
            on_start=settling_in(options),
            low_os_priority=False if options.real_time else options.low_os_priority,
            low_engine_priority=options.low_engine_priority and not options.real_time,
            aging_ns=int(options.aging_ms * 1e6),
            policy=self._policy,
            nicer=options.worker_niceness > 0 and not options.real_time,
        )
        self._workers.due_turn = self._wakeup.due_turn
        self._devices = Devices(
            self._wanted, self._workers, self._folder, isolate=self._isolate, options=options
        )
        self._tasks = tasks_of_this_loop()
        await self._tasks.open()
        self._tasks.start(self._leftovers.close_all, self._tasks.start)
        try:
            await self._devices.look_around()
            await self._devices.discover(self._errands_once)
            self._loop_thread.enter()
        except BaseException:
            self._loop_thread.leave()
            self._workers.close()
            self._watchdog.close()
            await self._tasks.close()
            raise
        SETTINGS.enter(options)
        self._wakeup.serve(self.tracer, self._watchdog)
        self._state = "open"
        self._trim_later()
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._state = "closed"
        if self._wakeup.is_inherited:
            return  # Devices, threads and tasks are those of the process that was forked.
        try:
            with shield():
                await self._close()
        finally:
            SETTINGS.leave(self.options)
            self._wakeup.serve_no_more(self.tracer)
            self._loop_thread.leave()
            await self._tasks.close()

    def __await__(self) -> Generator[Any, Any, Self]:
        """Open it without a block, as in a notebook; `await rt.aclose()` closes it.

        Raises BadState on trio, where tasks in the background belong to a block.
        """
        if Wakeup.current().is_trio:
            raise BadState("on trio a runtime is opened with `async with nn.open_runtime() as rt`")
        return self.__aenter__().__await__()

    async def aclose(self) -> None:
        """Close it, as the end of its block does; nothing happens where it is not open."""
        if self._state == "open":
            await self.__aexit__()

    __repr__ = told.as_line
    _repr_html_ = told.as_html

    @property
    def devices(self) -> tuple[Device, ...]:
        """Returns the devices, in the order in which they are tried."""
        return self._devices.all if self._state != "new" else ()

    def device(self, name: str) -> Device:
        """Returns the device of that name; raises InvalidArgument and lists the names there are."""
        self._check_open()
        return self._devices.named(name)

    @taking_old_keywords
    def compile(
        self,
        model: Model | str | os.PathLike[str],
        *,
        devices: Sequence[str | Device | OlderDevice] | None = None,
        preference: ExecutionPreference = ExecutionPreference.FAST_SINGLE_ANSWER,
        priority: Priority = Priority.MEDIUM,
        deadline: Deadline | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        precision: str | None = None,
        name: str | None = None,
        io: str | None = None,
        options: CompileOptions | None = None,
    ) -> PendingNet[R]:
        """Prepare a model, or the model in a file, for execution: to be awaited, or entered.

        `devices` limits the choice and its order breaks ties; among several, and several ways of
        one, the fastest that agrees with the reference is kept. `precision` "exact" allows only
        what is bit-stable, "bf16" also what computes floats with less than float32. `options` has
        what is rarely asked for.

        What was compiled is kept in `cache_dir`, and loaded from there the next time; the report
        says `cache_hit` or why not. A model that was never compiled before runs on the device that
        is ready soonest while the devices are compared, unless `options` say `wait="best"`. Where a
        path is given instead of the model, the file is only loaded if the cache has not got it.
        `name` is the network's in the metrics. With `io="float"` a quantized model takes and gives
        float32: scales and zero points are applied by the devices.

        Raises InvalidArgument for a model that is not legal, a pin of another model or version, and
        a cache directory that others may write to; MissedDeadline, ResourceExhausted, DeviceError.
        """

        async def work() -> Net[R]:
            self._check_open()
            source = ModelSource.of(model, io, options)
            spec = CompileSpec(
                source=source.source(),
                whole=source.whole(),
                value_limit_bytes=source.value_limit_bytes,
                fingerprint=b"",
                devices=await self._devices.candidates(devices),
                preference=preference,
                priority=priority,
                precision=precision,
                deadline=deadline,
                name=name,
                cache_dir=cache_dir,
                budget_ns=int(self.options.competition_budget_ms * 1e6),
                verdicts=Verdicts(os.path.join(self._folder, "verdicts")),
                loading_ms=functools.partial(kept_loading_ms, self._folder),
                background_ns=int(self.options.background_contest_ms * 1e6),
                **spec_fields(options),
            )
            net = await self._made(source, spec, is_pinned=devices is not None)
            await net._warm_up(deadline)
            return net

        return PendingNet(work())

    async def allocate(self, *roles: Role, shape: Sequence[int] = ()) -> Buffer:
        """A buffer for these uses: `net.input_role(...)`, `net.output_role(...)`.

        The memory is the device's where it has some (a memory domain); what one network writes and
        another reads never leaves it. Else it is shared memory, and `is_shared`, unless the size is
        not known or `compile` was given the devices. `shape` adds what the roles leave open, 0 is
        any size. Raises InvalidArgument for roles that do not go together, ResourceExhausted,
        GeneralFailure.
        """
        self._check_open()
        return await buffer.allocate(roles, shape)

    async def _made(self, source: ModelSource, spec: CompileSpec, *, is_pinned: bool) -> Net[Any]:
        """Makes the network of a spec, and has it watched, revived and measured again."""
        vlog.model("compile %s", source.name)
        mark = self.tracer.mark(Layer.RUNTIME, Phase.COMPILATION, source.name)
        with begun(spec.deadline), mark, self._plans.claim() as claim:
            found = await self._begun(source, spec, claim)
            spec = found.spec
            reviver = self._reviver(spec)
            compile = functools.partial(self._compiled, spec, found.begun)
            compilation = await self._plans.compiled(spec, compile, claim)
        source.forget_ahead()
        anytime = msgspec.structs.replace(spec, deadline=None)
        anew = msgspec.structs.replace(anytime, wait="best", again=True, in_background=True)
        compile = functools.partial(self._compiled, anew)
        again = functools.partial(self._plans.compiled_again, anytime, compile)
        return await self._net(compilation, spec, reviver, again, found.ahead, is_pinned=is_pinned)

    async def _begun(self, source: ModelSource, spec: CompileSpec, claim: Claim) -> Beginning:
        """Begins a compilation.

        Returns the spec with what is known of model and devices, and a plan.
        """
        if isinstance(spec.source, Model):
            await self._devices.check_extensions(spec.source)
        spec = msgspec.structs.replace(
            spec,
            name=spec.name or source.name,
            reference=self._devices.reference(),
            apart=self._apart(spec.devices),
        )
        helper_threads = self._workers.helper_threads
        begin = functools.partial(begin_compilation, source, spec, claim, helper_threads.begin)
        # While the model is digested, which takes no part of the interpreter.
        meanwhile = None if spec.cache_dir is None else lambda: kept.get_ready_to_find()
        return await helper_threads.run_unwrapped(
            begin, source.name, spec.deadline, meanwhile=meanwhile
        )

    async def _compiled(self, spec: CompileSpec, begun: Begun | None = None) -> Compilation:
        """Compiles the model, with the sizes that devices state for types of extensions."""
        with collecting_later():
            compilation = await compile_model(spec, self._cache(spec), begun)
        HEAP.freed()
        tell(spec.name or "", compilation.report)
        async with closed_on_failure(compilation.prepared):
            model = await self._devices.sized(compilation.model)
        return msgspec.structs.replace(compilation, model=model)

    def _apart(self, devices: Sequence[Device]) -> Apart | None:
        """Returns where contests between these devices can be held outside of this process."""
        names = self._devices.names_of(devices) if self.options.contest_process else None
        return None if names is None else Apart(self._contests_once, names)

    def _reviver(self, spec: CompileSpec) -> Reviver | None:
        """Recompiles a network whose device elsewhere was lost; None if that is not enabled."""
        if not self.options.revive or not self._devices.losable:
            return None
        anytime = msgspec.structs.replace(spec, deadline=None)

        def again(anew: CompileSpec) -> Awaitable[Compilation]:
            return self._plans.compiled(anytime, functools.partial(self._compiled, anew))

        return reviving.Reviver(self._devices.losable, anytime, again)

    def _cache(self, spec: CompileSpec) -> caching.CompilationCache | None:
        """Returns the cache that a compilation asks for; None if it asks for none."""
        options = self.options
        if spec.cache_dir is None:
            return None
        store = stores.Store(
            spec.cache_dir,
            self._folder,
            limit_bytes=options.cache_limit_bytes,
            encrypt=options.encrypt_cache,
        )
        return caching.CompilationCache(
            store, self._workers.helper_threads, spec, cores=options.cores, shared=self._shared_once
        )

    async def _net(
        self,
        compilation: Compilation,
        spec: CompileSpec,
        reviver: Reviver | None,
        again: Callable[[str], Awaitable[Compilation]],
        ahead: Ahead | None,
        *,
        is_pinned: bool,
    ) -> Net[Any]:
        upkeep = Upkeep()
        async with closed_on_failure(compilation.prepared):
            if self._state != "open":
                raise BadState("the runtime was closed while the model was compiled")
            ONE_BLAS_THREAD.follow()
            net: Net[Any] = Net(
                compilation,
                self._workers,
                on_close=functools.partial(self._closing, upkeep),
                on_drop=functools.partial(self._dropped, upkeep),
                start=self._tasks.start,
                is_pinned=is_pinned,
                priority=spec.priority,
                tally=functools.partial(self.calls.of, spec.name or ""),
            )
        self._nets.add(weakref.ref(net, self._nets.discard))
        self._plans.join(spec, net)
        watch = functools.partial(self._watch, upkeep, again)
        if compilation.later is not None:
            later = compilation.later
            then = watch if compilation.run_ns is None else None
            upkeep.add(self._tasks.start(self._improve, weakref.ref(net), later, then))
        watch(net, compilation.run_ns)
        if reviver is not None:
            upkeep.add(self._tasks.start(reviver.run, weakref.ref(net)))
        until = Deadline(now_ns() + int(READY_PATIENCE_S * 1e9))
        if spec.deadline is not None:
            until = min(until, spec.deadline)
        try:
            await get_ready(net, ahead, self._workers.helper_threads, until)
        except BaseException:
            net.close()
            raise
        return net

    async def _improve(
        self,
        network: weakref.ref[Net],
        later: Callable[[], Awaitable[Better]],
        watch: Callable[[Net, float | None], None] | None,
    ) -> None:
        """Brings the best plan of a network in, and watches its runs if nobody does so yet."""
        better = await bring_in(network, later)
        net = network()
        if net is not None and better is not None and watch is not None:
            watch(net, better.run_ns)

    def _watch(
        self,
        upkeep: Upkeep,
        again: Callable[[str], Awaitable[Compilation]],
        net: Net,
        run_ns: float | None,
    ) -> None:
        """Has the devices compete again where runs take much longer than measured."""
        if run_ns is not None and not net._closed:
            checker = rechecking.Rechecker(net, run_ns, again)
            self._recheckers.add(checker)
            upkeep.add(functools.partial(self._recheckers.discard, checker))
            upkeep.add(self._tasks.start(checker.run))

    def statistics(self) -> RuntimeStatistics:
        """Returns counts and states of the workers, the memory and the loop's wake-ups.

        Raises BadState before the runtime is opened.
        """
        if self._state == "new":
            raise BadState("the runtime is not open yet; use it inside `async with`")
        return RuntimeStatistics(
            workers=self._workers.statistics(),
            memory=memory_statistics(),
            wakeups=self._wakeup.statistics().wakeups,
            nets=len(self._nets),
        )

    def _contests_once(self) -> ContestProcess:
        with self._making:
            if self._contests is None:
                settings = msgspec.structs.replace(
                    self.options, state_dir=self._folder, policy=DEFAULT
                )
                told = msgspec.json.encode(settings).decode()
                self._contests = contest_process.ContestProcess(told)
            return self._contests

    def _errands_once(self) -> Errands:
        if self._errands is None:
            self._errands = versions.Errands(self._tasks.start, self._watchdog)
        return self._errands

    def _shared_once(self) -> SharedEntries:
        self._shared = self._shared or late_files.SharedEntries()
        return self._shared

    def _check_open(self) -> None:
        if self._state != "open":
            raise BadState(f"the runtime is not open ({self._state}); use it inside `async with`")
        if not self._wakeup.is_current():
            raise BadState("the runtime belongs to another event loop")

    def _closing(self, upkeep: Upkeep, net: Net) -> Fence:
        if not self._wakeup.is_inherited:
            upkeep.cancel()
        fence = Fence()
        reference = weakref.ref(net)
        is_ours = self._state == "open" and not self._wakeup.is_inherited
        if reference in self._nets and is_ours:
            self._nets.discard(reference)
            self._tasks.start(close_prepared, net._prepared, fence)
        else:
            fence.signal()
        return fence

    def _open_nets(self) -> list[Net]:
        return [net for reference in list(self._nets) if (net := reference()) is not None]

    def _dropped(self, upkeep: Upkeep, prepared: PreparedModel) -> None:
        if not self._wakeup.is_inherited:
            upkeep.cancel()
        self._leftovers.add(prepared)

    def _trim_later(self) -> None:
        if self._state != "open":
            return
        try:
            self._watchdog.arm(now_ns() + int(IDLE_PERIOD_S * 1e9), self._trim)
        except BadState:
            logger.debug("the runtime closes; nothing is trimmed any more")
        except RuntimeError as error:
            logger.warning("no thread gives idle memory back: %s", error)

    def _trim(self) -> None:
        for net in self._open_nets():
            net._slots.trim()
        for checker in list(self._recheckers):
            checker.look()
        if self._shared is not None:
            self._workers.helper_threads.begin(self._shared.collect, "the compilation cache")
        if HEAP.is_due:
            self._workers.helper_threads.begin(HEAP.give_back, "memory that was freed")
        for device in self._devices.all:
            if isinstance(device, EngineDevice):
                try:
                    device.trim()
                except Exception:
                    logger.exception("%s failed to give idle memory back", device.name)
        self._trim_later()

    async def _close(self) -> None:
        for net in self._open_nets():
            net.close()
        self._nets.clear()
        await late_files_written(self._devices.all, CLOSE_GRACE_S)
        self._workers.close()
        for device in self._devices.all:
            await close_device(device)
        await collect_late_files(self._shared, CLOSE_GRACE_S)

        def join(patience_s: float) -> int:
            running = self._workers.join(patience_s)
            self._watchdog.close(patience_s)
            if self._contests is not None:
                self._contests.close()
            return running

        try:
            running = await in_thread(functools.partial(join, CLOSE_GRACE_S), "nnasync-closing")
        except ResourceExhausted as error:
            logger.warning("the ends of the workers are not awaited: %s", error)
            running = join(0)
        if running:
            logger.warning("%d executions still run on a device that does not stop", running)
