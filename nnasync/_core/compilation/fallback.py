"""The fallback of one compilation: the reference does what a device fails to do, and it is told.

It is allowed where the reference is among the devices that a model is compiled for. A device that
fails to prepare the model has the whole of it run there ("prepare"). One that fails to execute has
the reference run what it was there for, and no more ("partial"): its steps, or the whole where it
has all of it. Where that fails as well, or where a step of the reference itself fails beside steps
of others, the reference runs the whole model ("full").

Each of them is an entry of the report, counted, a line in the log, at level WARNING the first time
for each cause, and the event `fell_back` of instruments.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from nnasync._core.compilation.report import Fallback
from nnasync._core.deferred import deferred
from nnasync._core.engine_device import EngineDevice
from nnasync._core.plans.guarded import GuardedPlan, Health, LazyPlan
from nnasync.device import Device, PreparedModel
from nnasync.engine import Plan
from nnasync.errors import DeviceDied, NNError
from nnasync.hal import ExecutionPreference, Model, Priority

if TYPE_CHECKING:
    from nnasync._core.compilation import outside
    from nnasync._core.compilation.outside import FallbackPreparedModel
else:
    outside = deferred("nnasync._core.compilation.outside")

logger = logging.getLogger(__name__)

REFERENCE = "nnasync-reference"
"""The name of the device that computes everything, in numpy."""

_ALL: tuple[int, ...] = ()
_Key = tuple[str, tuple[int, ...], str, str]


class Fallbacks:
    """Makes plans of one model fall back to the reference, and records what did.

    Operations are those of the main subgraph; none stand for all of them, since a model that came
    out of a cache is not loaded until it is needed.
    """

    def __init__(self, reference: EngineDevice, source: Model | Callable[[], Model]) -> None:
        self._reference = reference
        self._source = source
        self._lock = threading.Lock()
        self._found: dict[_Key, tuple[str, int]] = {}
        self.health = Health()
        """The health of all plans of the model together."""

    @classmethod
    def among(
        cls, devices: Sequence[Device], source: Model | Callable[[], Model]
    ) -> Fallbacks | None:
        """Returns the fallback to the reference among these devices; None where it is not there.

        `source` is the model, or loads it, on a thread, when it is needed.
        """
        for device in devices:
            if isinstance(device, EngineDevice) and device.name == REFERENCE:
                return cls(device, source)
        return None

    def guarded(self, plan: Plan, network: str, device: str, *, kind: str = "partial") -> Plan:
        """Returns a plan of the whole model that falls back, unless it is the reference's own."""
        if device == REFERENCE:
            return plan
        reference_plan = LazyPlan(self._compiled_whole)
        return self._guarded(plan, reference_plan, network, device, _ALL, kind)

    def guarded_step(
        self, plan: Plan, step: Model, network: str, device: str, operations: tuple[int, ...]
    ) -> Plan:
        """Returns a plan of a step that falls back, unless it is the reference's own."""
        if device == REFERENCE:
            return plan
        reference_plan = LazyPlan(lambda: self._compiled(step))
        return self._guarded(plan, reference_plan, network, device, operations, "partial")

    def outside(
        self, prepared: PreparedModel, outline: Model, device: str, priority: Priority
    ) -> FallbackPreparedModel:
        """Returns a prepared model that falls back, of a device that is no engine of this process.

        Of `outline` only inputs and outputs are looked at.
        """
        reference_plan = LazyPlan(self._compiled_whole)

        def on_fallback(failure: NNError) -> None:
            self.record(outline.name, device, _ALL, "partial", failure)

        return outside.FallbackPreparedModel(
            prepared,
            lambda usual: self._reference.adopt(outline, reference_plan, usual),
            on_fallback,
            priority,
        )

    def record(
        self, network: str, device: str, operations: tuple[int, ...], kind: str, failure: NNError
    ) -> None:
        """Note that the reference takes what the device failed to do; from any thread."""
        # Whatever a death was noticed by, it is the cause.
        cause = failure if isinstance(failure, DeviceDied) else failure.__cause__ or failure
        key = (device, operations, kind, type(cause).__name__)
        with self._lock:
            reason, count = self._found.get(key, (str(failure), 0))
            self._found[key] = reason, count + 1
        level = logging.DEBUG if count else logging.WARNING
        text = "%s: %s steps in for %s (%s fallback, %s): %s"
        what = f"operations {list(operations)}" if operations else "all operations"
        logger.log(level, text, network or "model", REFERENCE, device, kind, what, str(failure))
        for hook in self._reference.workers.tracer.fell_back:
            hook(network or "model", device, kind, failure)

    def of_operations(self, operations: Sequence[int]) -> tuple[Fallback, ...]:
        """Returns what fell back so far, in order of first appearance.

        `operations` are all operations of the model.
        """
        with self._lock:
            found = list(self._found.items())
        return tuple(
            Fallback(device, part or tuple(operations), kind, reason, count)
            for (device, part, kind, _), (reason, count) in found
        )

    def _guarded(
        self,
        plan: Plan,
        reference_plan: LazyPlan,
        network: str,
        device: str,
        operations: tuple[int, ...],
        kind: str,
    ) -> GuardedPlan:
        def on_fallback(failure: NNError) -> None:
            self.record(network, device, operations, kind, failure)

        return GuardedPlan(
            plan, reference_plan, on_fallback, name=device, health=Health(self.health)
        )

    def _compiled_whole(self) -> Plan:
        source = self._source
        return self._compiled(source if isinstance(source, Model) else source())

    def _compiled(self, model: Model) -> Plan:
        return self._reference.engine.compile(model, ExecutionPreference.FAST_SINGLE_ANSWER)
