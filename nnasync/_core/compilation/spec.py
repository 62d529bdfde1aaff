"""What is to be compiled, and how: made once for a compilation, and passed down as it is."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

import msgspec

from nnasync._core.clock import Deadline
from nnasync._core.compilation.fallback import Fallbacks
from nnasync._core.compilation.verdicts import DIGEST_DIGITS, Question, Verdicts
from nnasync._core.engine_device import EngineDevice
from nnasync._core.engine_device.caching import library_version
from nnasync._core.wakeup import in_thread
from nnasync.device import Device
from nnasync.errors import BadState, DeviceUnavailable, InvalidArgument
from nnasync.hal import (
    BYTE_SIZE_OF_CACHE_TOKEN,
    ExecutionPreference,
    Model,
    Priority,
    byte_size,
    dtype_of,
    has_dtype,
    is_fully_specified,
)

if TYPE_CHECKING:
    from nnasync._core.compilation.contest_process import ContestProcess

E = TypeVar("E", bound=Enum)
T = TypeVar("T")

DEFAULT_BUDGET_NS = 300_000_000
"""How long the turns of a contest take; agreement and compiling come on top."""

DEFAULT_BACKGROUND_NS = 1_000_000_000
"""How much processor time a contest may take for which nobody waits."""

PATIENCE_S = 5.0
"""How long a device may take to run a sample."""

_MAX_BYTES = 1 << 30


class Apart(msgspec.Struct, frozen=True):
    """Says where contests are held outside of this process, and names the devices there."""

    process: Callable[[], ContestProcess]
    devices: tuple[str, ...]


class PlanTerms(msgspec.Struct, frozen=True, kw_only=True):
    """States what decides on the plan of a model; networks that agree in all of it share one plan.

    fingerprint: SHA-256 of the model or its file; `token` names it in `cache_dir` instead. devices:
    in the order in which they are tried. precision: "exact" allows only what is bit-stable, "bf16"
    floats with less than float32. pin: names who is to run the model. preemption_quantum_ms: how
    long the parts of a plan may take. wait: for the "best" plan, or only for the "first", which the
    best one follows. reference: who judges where it is not among the devices. budget_ns: how long
    the turns of a contest take, 0 for none. value_limit_bytes: what values of the file may take.
    """

    fingerprint: bytes
    devices: Sequence[Device]
    preference: ExecutionPreference = ExecutionPreference.FAST_SINGLE_ANSWER
    precision: str | None = None
    pin: str | None = None
    preemption_quantum_ms: float | None = None
    wait: str = "best"
    cache_dir: str | os.PathLike[str] | None = None
    token: bytes | None = None
    reference: Device | None = None
    budget_ns: int = DEFAULT_BUDGET_NS
    value_limit_bytes: int | None = None


class CompileSpec(PlanTerms, frozen=True, kw_only=True):
    """States the terms of a plan, and how this compilation goes about it, which is not shared.

    source: the model, or what loads it on a thread. whole: what loads it as one operation of the
    engine that its file was made for. name: of the network, in the metrics. fallbacks: without them
    nothing falls back. patience_s: how long a device may take to run a sample. code: fingerprints
    of the drivers of third parties, by device. verdicts: what earlier contests decided. loading_ms:
    reads what engines take until they are ready here, by name and version. again: hold a contest
    although its outcome is remembered. apart: where contests are held outside of this process.
    in_background: whether somebody waits for a contest less than for everything else; it may take
    `background_ns` of processor time then, from `cpu_began_ns` on the clock of this process, or
    from when the contest begins. trying: called with the name of each device before it prepares or
    runs.

    Raises InvalidArgument for what makes no sense.
    """

    source: Model | Callable[[], Model]
    whole: Callable[[], Model] | None = None
    name: str | None = None
    priority: Priority = Priority.MEDIUM
    deadline: Deadline | None = None
    fallbacks: Fallbacks | None = None
    patience_s: float = PATIENCE_S
    code: Mapping[str, str] = {}
    verdicts: Verdicts | None = None
    loading_ms: Callable[[], Mapping[str, float]] | None = None
    again: bool = False
    apart: Apart | None = None
    in_background: bool = False
    background_ns: int = DEFAULT_BACKGROUND_NS
    cpu_began_ns: int | None = None
    trying: Callable[[str], object] | None = None

    def __post_init__(self) -> None:
        _check_type("deadline", self.deadline, Deadline, "a Deadline such as nn.within(s=5)")
        _check_type("pin", self.pin, str, "a string, as report().pin is one")
        _check_type("name", self.name, str, "a string")
        _check_type("cache_dir", self.cache_dir, (str, os.PathLike), "a path")
        token: object = self.token
        is_token = isinstance(token, bytes) and len(token) == BYTE_SIZE_OF_CACHE_TOKEN
        if token is not None and not is_token:
            raise InvalidArgument(f"token must be {BYTE_SIZE_OF_CACHE_TOKEN} bytes, got {token!r}")
        if self.precision not in (None, "exact", "bf16"):
            raise InvalidArgument(
                f"precision must be None, 'exact' or 'bf16', got {self.precision!r}"
            )
        quantum: object = self.preemption_quantum_ms
        if quantum is not None and not (
            isinstance(quantum, (int, float)) and 0 < quantum < float("inf")
        ):
            raise InvalidArgument(f"preemption_quantum_ms must be above 0: {quantum!r}")
        if self.wait not in ("first", "best"):
            raise InvalidArgument(f"wait must be 'first' or 'best', got {self.wait!r}")
        preference = _choice(ExecutionPreference, self.preference)
        msgspec.structs.force_setattr(self, "preference", preference)
        msgspec.structs.force_setattr(self, "priority", _choice(Priority, self.priority))

    @property
    def quantum_ns(self) -> int | None:
        """Returns the preemption quantum in nanoseconds, None if there is none."""
        milliseconds = self.preemption_quantum_ms
        return None if milliseconds is None else int(milliseconds * 1e6)

    @property
    def model(self) -> Model:
        """Returns the model; raises BadState where it is not loaded yet."""
        if not isinstance(self.source, Model):
            raise BadState("the model is not loaded yet")
        return self.source

    @property
    def contest_cpu_ns(self) -> int:
        """Returns the processor time that a contest may take, 0 for any."""
        return self.background_ns if self.in_background else 0

    @property
    def wants_whole(self) -> bool:
        """Returns whether the file as one operation may answer first, and no cache is asked."""
        is_first = self.wait == "first" and self.cache_dir is None and not self.again
        return is_first and self.whole is not None and self.pin is None and self.budget_ns > 0

    @property
    def digest(self) -> str:
        """Returns the model's name in pins and verdicts."""
        return self.fingerprint.hex()[:DIGEST_DIGITS]

    @property
    def question(self) -> Question:
        """Returns the question whose verdict decides on this compilation."""
        engines = [each for each in self.devices if isinstance(each, EngineDevice)]
        judge = self.reference
        return Question(
            model=self.digest,
            devices=tuple((device.name, device.version) for device in self.devices),
            judge="" if judge is None else f"{judge.name} {judge.version}",
            preference=int(self.preference),
            precision=self.precision,
            cores=engines[0].workers.cores if engines else 0,
            code=dict(self.code),
            library=library_version(),
            has_whole=self.whole is not None and self.quantum_ns is None,
        )

    def of(self, model: Model) -> CompileSpec:
        """Returns this spec for another model."""
        return msgspec.structs.replace(self, source=model)

    def with_fallbacks(self) -> CompileSpec:
        """Returns this spec with plans that fall back, if the reference is among the devices."""
        fallbacks = Fallbacks.among(self.devices, self.source)
        return msgspec.structs.replace(self, fallbacks=fallbacks)

    def outlined(self, outline: Model) -> CompileSpec:
        """Returns this spec with an outline in place of a model that is not loaded."""
        return self if isinstance(self.source, Model) else self.of(outline)

    async def loaded(self) -> CompileSpec:
        """Returns this spec with the model itself, which is loaded where it was not."""
        if isinstance(self.source, Model):
            return self
        return self.of(await self.on_thread(self.source, "nnasync-loading"))

    async def on_thread(
        self, work: Callable[[], T], name: str, *, enters_engine: bool = False
    ) -> T:
        """Returns or raises what `work` does, on a thread of its own, as `in_thread` does.

        It is started by a helper thread of the runtime, which the loop does not wait for.
        """
        engines = [each for each in self.devices if isinstance(each, EngineDevice)]
        helper_threads = engines[0].workers.helper_threads if engines else None

        async def start(thread: threading.Thread) -> None:
            if helper_threads is not None:
                with contextlib.suppress(DeviceUnavailable):
                    await helper_threads.run_unwrapped(thread.start, name)
                    return
            # There are none, or not any more.
            thread.start()

        return await in_thread(work, name, enters_engine=enters_engine, start=start)


def _check_type(name: str, value: object, kind: type | tuple[type, ...], what: str) -> None:
    if value is not None and not isinstance(value, kind):
        raise InvalidArgument(f"{name} must be {what}, got {value!r}")


def _choice(kind: type[E], value: E) -> E:
    if type(value) is kind:
        return value
    try:
        return kind(value)
    except ValueError as error:
        known = ", ".join(f"{kind.__name__}.{each.name}" for each in kind)
        raise InvalidArgument(f"{value!r} is none of {known}") from error


def can_sample(model: Model) -> bool:
    """Returns whether types and shapes of all inputs and outputs are known, and within reason."""
    main = model.main
    operands = [main.operands[index] for index in (*main.input_indexes, *main.output_indexes)]
    if not all(has_dtype(each.type) and dtype_of(each.type).kind in "biuf" for each in operands):
        return False
    if not all(is_fully_specified(each.type, each.dimensions) for each in operands):
        return False
    return sum(byte_size(each.type, each.dimensions) for each in operands) <= _MAX_BYTES
