"""An engine as a whole Device of HAL 1.3."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from nnasync._core import validation
from nnasync._core.cache.keys import check_token
from nnasync._core.clock import Deadline
from nnasync._core.deferred import deferred
from nnasync._core.engine_device import support
from nnasync._core.engine_device.caching import Compiled, Descriptors, PlanFiles, Replace, Restored
from nnasync._core.engine_device.fast_state import FastState
from nnasync._core.engine_device.late import LateEngine
from nnasync._core.engine_device.plan_users import PlanTerms
from nnasync._core.engine_device.prepared import EnginePreparedModel
from nnasync._core.plans.guarded import Health
from nnasync._core.workers import Workers, contained
from nnasync.device import DEFAULT_PREPARE, Buffer, Lowering, PreparedModel, PrepareModelConfig
from nnasync.engine.contract import CacheFiles, CachingEngine, Engine, LoweringEngine, Plan
from nnasync.engine.problems import check_plan
from nnasync.errors import (
    DeviceUnavailable,
    GeneralFailure,
    InvalidArgument,
    NNError,
)
from nnasync.fences import Fence
from nnasync.hal import (
    BufferDesc,
    BufferRole,
    Capabilities,
    DeviceStatus,
    DeviceType,
    ExecutionPreference,
    Extension,
    HalVersion,
    Model,
    Priority,
)
from nnasync.tracing import vlog

if TYPE_CHECKING:
    from nnasync import extensions
    from nnasync._core.engine_device import buffers, engine_buffer
else:
    engine_buffer = deferred("nnasync._core.engine_device.engine_buffer")
    buffers = deferred("nnasync._core.engine_device.buffers")
    extensions = deferred("nnasync.extensions")

logger = logging.getLogger(__name__)

T = TypeVar("T")


class EngineDevice:
    """An engine as a Device of HAL 1.3, on the workers of a runtime."""

    def __init__(
        self,
        engine: Engine | LateEngine,
        workers: Workers,
        *,
        capabilities: Capabilities | None = None,
        state_directory: str | os.PathLike[str] | None = None,
        buffer_limit_bytes: int | None = None,
    ) -> None:
        """`capabilities` are measured figures, reported in place of the engine's own.

        In `state_directory` the digests of cache files are kept; without it, clients of the HAL
        find no compilation cache. Device-managed buffers take at most `buffer_limit_bytes`, by
        default half of the machine's memory. A late engine is made when it is asked more than its
        name, version and type. Raises InvalidArgument for an engine with too many cache files.
        """
        self.known = engine
        self.workers = workers
        self.closed = False
        self._capabilities = capabilities
        self._buffer_limit_bytes = buffer_limit_bytes
        self._state_directory = state_directory
        self._making = threading.Lock()
        self._parts: tuple[Engine, PlanFiles | None, LoweringEngine | None] | None = None
        if not isinstance(engine, LateEngine):
            _ = self._files
        self._prepared: weakref.WeakSet[EnginePreparedModel] = weakref.WeakSet()
        self._orphans: deque[list[FastState]] = deque()
        """Fast states of bursts that were dropped together with their prepared model."""
        self._writings: set[Fence] = set()
        self._lock = threading.Lock()
        self._buffers: buffers.Buffers | None = None
        self.loaded_in_ms: float | None = None
        """How long the import of its package and its first plan took, once that is known."""

    @property
    def engine(self) -> Engine:
        """Returns the engine, which uses as many cores as the workers have; from any thread."""
        return (self._parts or self._made())[0]

    @property
    def _lowers(self) -> LoweringEngine | None:
        """Returns the engine if it knows several ways to run a model, else None."""
        return (self._parts or self._made())[2]

    @property
    def loads_in_ms(self) -> float:
        """Returns what the engine states: about how long its import and a small model take."""
        return self.known.loads_in_ms

    @property
    def loading_ns(self) -> int:
        """Returns how long the import of the engine took in this process, 0 where it says none."""
        return support.loading_ns(self.engine)

    @property
    def has_lowerings(self) -> bool:
        """Returns whether the engine may know several ways to run a model."""
        return self._lowers is not None

    @property
    def is_made(self) -> bool:
        """Returns whether the engine exists; a late one does not before it is asked something."""
        return not isinstance(self.known, LateEngine) or self._parts is not None

    @property
    def _files(self) -> PlanFiles | None:
        return (self._parts or self._made())[1]

    def _made(self) -> tuple[Engine, PlanFiles | None, LoweringEngine | None]:
        """Makes the engine at the first use.

        Returns it, its plan cache, and itself if it has lowerings. Whether it has is found out
        once: to ask a protocol takes long.
        """
        with self._making:
            if self._parts is None:
                engine = self.known.make() if isinstance(self.known, LateEngine) else self.known
                lowers = engine if isinstance(engine, LoweringEngine) else None
                if lowers is not None:
                    lowers.cores = self.workers.cores
                files = None
                if isinstance(engine, CachingEngine):
                    files = PlanFiles(engine, self._state_directory)
                self._parts = engine, files, lowers
            return self._parts

    @property
    def name(self) -> str:
        """Returns the name of the engine."""
        return self.known.name

    @property
    def version(self) -> str:
        """Returns the version of the engine."""
        return self.known.version

    @property
    def type(self) -> DeviceType:
        """Returns the kind of hardware."""
        return self.known.type

    @property
    def feature_level(self) -> HalVersion:
        """Returns HAL 1.3."""
        return HalVersion.V1_3

    async def get_status(self) -> DeviceStatus:
        """Returns AVAILABLE until the device is closed, then OFFLINE."""
        return DeviceStatus.OFFLINE if self.closed else DeviceStatus.AVAILABLE

    async def get_capabilities(self) -> Capabilities:
        """Returns performance figures, measured ones where there are any."""
        return self._capabilities or self.engine.capabilities

    @property
    def is_calibrated(self) -> bool:
        """Returns whether its figures were measured on this machine."""
        return self._capabilities is not None

    async def get_supported_extensions(self) -> tuple[Extension, ...]:
        """Returns the extensions of the engine."""
        return self.engine.extensions

    async def get_number_of_cache_files_needed(self) -> tuple[int, int]:
        """Returns `cache_files`, or (0, 0) without a state directory."""
        return self.cache_files if self._files and self._files.keeps_digests else (0, 0)

    @property
    def cache_files(self) -> tuple[int, int]:
        """Returns the numbers of files for `preserve` and `restore`; (0, 0) if there are none."""
        return self._files.counts if self._files else (0, 0)

    @property
    def caches_late(self) -> bool:
        """Returns whether plans may replace their files after they were prepared."""
        return self._files is not None and self._files.caches_late

    async def get_supported_operations(self, model: Model) -> tuple[bool, ...]:
        """Returns the engine's answers; a wrong number of them counts as nothing supported.

        An operation whose constants lie in memory that cannot be read is not supported.
        """
        return await self._in_thread(lambda: support.supported(self.engine, self.name, model), None)

    async def why_not(self, model: Model) -> tuple[str | None, ...]:
        """Returns for each operation why the engine does not take it, or None."""
        return await self._in_thread(lambda: support.why_not(self.engine, model), None)

    async def prepare_model(
        self, model: Model, config: PrepareModelConfig = DEFAULT_PREPARE
    ) -> PreparedModel:
        """Compile on a thread; answers at the deadline even if the engine does not.

        Cache files that cannot be written fail nothing; NNASYNC_VLOG=driver says why. Raises
        InvalidArgument for a token that is not 32 bytes and a lowering that the engine does not
        offer, GeneralFailure for constants that cannot be read.
        """
        validation.validate_preference(config.preference)
        validation.validate_priority(config.priority)
        wants_cache = bool(config.model_cache or config.data_cache)
        if wants_cache:
            check_token(config.token)

        def compiled() -> Plan:
            validation.check_constants(model)
            validation.validate_model(model)
            self._sized(model)
            return self._compiled(model, config.preference, config.lowering)

        plan = await self._in_thread(compiled, config.deadline)
        prepared = self.adopt(model, plan, config.priority)
        files = self._files
        if wants_cache and files and files.keeps_digests:
            made = Compiled(model, config.lowering, config.preference, config.priority)
            reason = await self._written(
                lambda given: files.save(config.token, plan, made, given),
                config.model_cache,
                config.data_cache,
                config.deadline,
            )
            if reason:
                vlog.driver("%s: %s is not cached: %s", self.name, model.name or "model", reason)
            else:
                self._keep_late(plan, made, config)
        return prepared

    async def prepare_model_from_cache(self, config: PrepareModelConfig) -> PreparedModel:
        """Load what `prepare_model` wrote with this token; the descriptors stay the caller's.

        Raises InvalidArgument for wrong numbers of files, GeneralFailure where the device has no
        compilation cache or the files are not what it wrote.
        """
        files = self._files
        if files is None or not files.keeps_digests:
            raise GeneralFailure(f"{self.name} has no compilation cache; use prepare_model")
        check_token(config.token)
        found = await self._with_files(
            lambda given: files.load(config.token, given),
            config.model_cache,
            config.data_cache,
            config.deadline,
        )
        made = found.compiled
        prepared = self.adopt(made.model, found.plan, made.priority)
        self._keep_late(found.plan, made, config)
        return prepared

    async def preserve(
        self, plan: Plan, made: Compiled, model_fds: Sequence[int], data_fds: Sequence[int]
    ) -> str:
        """Writes a plan of the engine to `cache_files` files; returns why that failed, or "".

        The caller must verify the model cache files before restoring.
        """
        files = self._files
        if files is None:
            return f"{self.name} keeps no plans"
        return await self._written(
            lambda given: files.fill(plan, made, given), model_fds, data_fds, None
        )

    async def restore(self, deadline: Deadline | None, contents: CacheFiles) -> Restored:
        """Loads what `preserve` wrote to files, for `adopt`; what is in them now is verified.

        The model is a skeleton: inputs, outputs and states. Raises InvalidArgument for wrong
        numbers of files, GeneralFailure where they are of other versions.
        """
        files = self._files
        if files is None:
            raise GeneralFailure(f"{self.name} keeps no plans")
        return await self._in_thread(lambda: files.restore(contents), deadline)

    def keep_late(self, plan: Plan, compiled: Compiled, replace: Replace) -> None:
        """Lets a plan that was preserved or restored replace its files later, if its engine does.

        `replace` stores what is given for the model cache and the data cache; why not, or "".
        Raises a typed error where the engine fails.
        """
        if self._files is not None:
            self._files.keep_late(plan, compiled, replace, self._begin)

    def _keep_late(self, plan: Plan, compiled: Compiled, config: PrepareModelConfig) -> None:
        """Lets a plan replace the files of a client later; their descriptors are duplicated."""
        if self.caches_late and self._files is not None:
            try:
                replace = self._files.amender(config.token, config.model_cache, config.data_cache)
                self.keep_late(plan, compiled, replace)
            except (OSError, NNError) as error:
                vlog.driver("%s: its late cache files are not kept: %s", self.name, error)

    def _begin(self, work: Callable[[], None]) -> None:
        fence = self.workers.helper_threads.begin(work, self.name)
        if fence is not None:
            self._writings.add(fence)
            fence.add_callback(self._writings.discard)

    async def written(self) -> None:
        """Waits for the cache files that plans have replaced."""
        for fence in tuple(self._writings):
            with contextlib.suppress(NNError):
                await fence

    def get_ready(self) -> None:
        """Imports the engine's plan loader on a thread, without waiting for it."""

        def ready() -> None:
            if self._files is not None:
                self._files.get_ready()

        self.workers.helper_threads.begin(ready, self.name)

    async def lowerings(
        self, model: Model, preference: ExecutionPreference
    ) -> tuple[Lowering, ...]:
        """Returns the engine's ways to run a supported model; none if it knows only one."""
        lowers = self._lowers
        if lowers is None:
            return ()
        return await self._in_thread(lambda: support.lowerings(lowers, model, preference), None)

    async def compile_plan(
        self,
        model: Model,
        preference: ExecutionPreference,
        deadline: Deadline | None = None,
        lowering: Lowering | None = None,
    ) -> Plan:
        """Compile a legal model in one of its lowerings, on a thread, for `adopt`."""
        return await self._in_thread(lambda: self._plan(model, preference, lowering), deadline)

    def begin_plan(
        self,
        model: Model,
        preference: ExecutionPreference,
        choose: Callable[[Sequence[Lowering]], Sequence[Lowering | None]],
    ) -> Plan | None:
        """`compile_plan` with all questions before it, on this thread, which no loop may wait for.

        `choose` is given the lowerings that the engine offers, and tells which are wanted; the
        first is compiled. None where the engine does not take the whole model, or none is wanted.
        Raises what the engine raises, as a typed error.
        """
        self._check_open()
        try:
            if not all(support.supported(self.engine, self.name, model)):
                return None
            wanted = choose(self._offered(model, preference))
            return self._plan(model, preference, wanted[0]) if wanted else None
        except BaseException as error:
            failure = contained(error, self.name)
            raise failure from failure.__cause__

    def _offered(self, model: Model, preference: ExecutionPreference) -> tuple[Lowering, ...]:
        """Returns the lowerings of the engine; none if it fails to say, or knows one way only."""
        try:
            return support.lowerings(self._lowers, model, preference) if self._lowers else ()
        except Exception as error:
            vlog.driver("%s cannot say how it runs %s: %s", self.name, model.name, error)
            return ()

    def _plan(
        self, model: Model, preference: ExecutionPreference, lowering: Lowering | None
    ) -> Plan:
        """Compiles a legal model to a plan on this thread."""
        engine, lowers = self.engine, self._lowers

        def compiled() -> Plan:
            self._sized(model)
            way = "as it does" if lowering is None else f"as {lowering.name}"
            vlog.driver("%s: compiles %s %s", self.name, model.name or "a model", way)
            if lowering is not None and lowers is not None:
                return check_plan(lowers.compile(model, preference, lowering), self.name)
            return check_plan(engine.compile(model, preference), self.name)

        return self._timed(compiled)

    def _timed(self, compiled: Callable[[], Plan]) -> Plan:
        """Makes a plan, and notes how long the first one took."""
        engine, began_ns = self.engine, time.thread_time_ns()
        before_ns = support.loading_ns(engine)
        plan = compiled()
        if self.loaded_in_ms is None and support.loading_ns(engine):
            took_ns = time.thread_time_ns() - began_ns
            self.loaded_in_ms = (before_ns + took_ns) / 1e6
        return plan

    @property
    def terms(self) -> PlanTerms:
        """Returns what plans of its engine ask of who runs them."""
        return PlanTerms(self.name, self.engine.concurrency)

    def adopt(
        self,
        model: Model,
        plan: Plan,
        priority: Priority,
        *,
        terms: PlanTerms | None = None,
        health: Health | None = None,
    ) -> EnginePreparedModel:
        """Returns a prepared model of this device over a plan of its engine.

        `terms` are those of the plan where other engines have a part in it.
        """
        self._check_open()
        prepared = EnginePreparedModel(
            self._sized(model),
            plan,
            self.workers,
            priority=priority,
            terms=terms or self.terms,
            health=health,
            tries_ahead=self.engine.tries_ahead,
            buffers=lambda: self._buffers,
        )
        return self._own(prepared)

    async def share(self, prepared: PreparedModel, priority: Priority) -> EnginePreparedModel:
        """Returns another prepared model of the same plan.

        Raises InvalidArgument, DeviceUnavailable.
        """
        self._check_open()
        validation.validate_priority(priority)
        if not isinstance(prepared, EnginePreparedModel) or prepared not in self._all_prepared():
            raise InvalidArgument(f"{self.name}: the prepared model to share is not of this device")
        return self._own(prepared.twin(priority))

    def _own(self, prepared: EnginePreparedModel) -> EnginePreparedModel:
        weakref.finalize(prepared, _orphan, self._orphans, prepared.fast_states).atexit = False
        with self._lock:
            self._prepared.add(prepared)
        return prepared

    async def allocate(
        self,
        desc: BufferDesc,
        prepared_models: Sequence[PreparedModel],
        input_roles: Sequence[BufferRole],
        output_roles: Sequence[BufferRole],
    ) -> Buffer:
        """Allocates a buffer in the memory of the process, of any dimensions; see `Buffers`.

        Raises InvalidArgument for roles that are not legal, GeneralFailure for types of extensions,
        ResourceExhausted for what does not fit.
        """
        self._check_open()
        mine = self._all_prepared()
        models = [
            each.model if isinstance(each, EnginePreparedModel) and each in mine else None
            for each in prepared_models
        ]
        operand = validation.validate_buffer_desc(desc, models, input_roles, output_roles)
        roles = [
            (prepared_models[role.model_index], kind, role.io_index)
            for kind, given in (("input", input_roles), ("output", output_roles))
            for role in given
        ]
        if len(set(roles)) < len(roles):
            raise InvalidArgument("buffer: a role is given twice, by a prepared model given twice")
        with self._lock:
            if self._buffers is None:
                self._buffers = buffers.Buffers(self._buffer_limit_bytes)
        return engine_buffer.EngineBuffer(
            self._buffers,
            self._buffers.allocate(operand, roles),
            self.workers.helper_threads,
            self.name,
        )

    async def close(self) -> None:
        """Close the device, its prepared models and its buffers."""
        self.closed = True
        self._end_orphans()
        for prepared in self._all_prepared():
            try:
                await prepared.close()
            except Exception:
                logger.exception("%s: a prepared model was not closed well", self.name)
        if self._buffers is not None:
            self._buffers.close()

    def trim(self) -> None:
        """Has every prepared model free scratch that it has not used since the last call."""
        self._end_orphans()
        for prepared in self._all_prepared():
            prepared.trim()

    def _sized(self, model: Model) -> Model:
        """Returns the model with what the engine says of operand types of its extensions."""
        if not model.extension_name_to_prefix:
            return model
        return extensions.sized(model, self.engine.extensions, self.name)

    def _end_orphans(self) -> None:
        """Leaves the fast states whose bursts were dropped."""
        while self._orphans:
            for fast_state in self._orphans.popleft():
                fast_state.leave()

    def _all_prepared(self) -> list[EnginePreparedModel]:
        # The watchdog's thread trims while the loop prepares.
        with self._lock:
            return list(self._prepared)

    def _compiled(
        self, model: Model, preference: ExecutionPreference, lowering: Lowering | None
    ) -> Plan:
        """Returns a plan of the engine, in a lowering that it offers."""
        engine = self.engine
        vlog.driver("%s: prepares %s", self.name, model.name or "a model")
        if lowering is None:
            return check_plan(engine.compile(model, preference), self.name)
        lowers = self._lowers
        if lowers is None:
            raise InvalidArgument(f"{self.name} knows one way to run a model, not {lowering.name}")
        offered = support.lowerings(lowers, model, preference)
        if lowering not in offered:
            names = ", ".join(f"{each.name} with {each.threads} threads" for each in offered)
            raise InvalidArgument(
                f"{self.name} does not offer {lowering.name[:40]} with {lowering.threads} threads "
                f"for this model, but: {names}"
            )
        return check_plan(lowers.compile(model, preference, lowering), self.name)

    async def _written(
        self,
        write: Callable[[Descriptors], str],
        model_fds: Sequence[int],
        data_fds: Sequence[int],
        deadline: Deadline | None,
    ) -> str:
        """Has a thread write cache files; returns why that failed."""
        try:
            return await self._with_files(write, model_fds, data_fds, deadline)
        except NNError as error:
            return str(error)

    async def _with_files(
        self,
        work: Callable[[Descriptors], T],
        model_fds: Sequence[int],
        data_fds: Sequence[int],
        deadline: Deadline | None,
    ) -> T:
        """Has a thread work on duplicates of descriptors."""
        try:
            files = Descriptors(model_fds, data_fds)
        except OSError as error:
            raise GeneralFailure(f"{self.name}: a cache file cannot be used: {error}") from error

        def claimed() -> T:
            with files.claimed():
                return work(files)

        try:
            return await self._in_thread(claimed, deadline)
        finally:
            files.close()

    async def _in_thread(self, work: Callable[[], T], deadline: Deadline | None) -> T:
        self._check_open()
        return await self.workers.helper_threads.run(work, self.name, deadline)

    def _check_open(self) -> None:
        if self.closed:
            raise DeviceUnavailable(f"{self.name} is closed")


def _orphan(orphans: deque[list[FastState]], fast_states: list[FastState]) -> None:
    """Notes that a prepared model was dropped; may be called on any thread, at any point."""
    if fast_states:
        orphans.append(fast_states)
