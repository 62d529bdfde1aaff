"""The processor time of a contest in the background: what its next steps will take, before they do.

It is not to be exceeded, and most of it goes to few steps: an engine that is imported takes a third
of it. So nobody is prepared who is likely to take more than what is left, less what judging and
measuring those who are ready will take. Both are foretold from what is known by then: what engines
took to be ready, on this machine or as they state it; what the dearest plan of this model took so
far; and a run of the reference, which answers each sample twice, and than which the others are
hardly slower.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from nnasync._core.compilation.spec import CompileSpec
from nnasync._core.engine_device import EngineDevice

_FIRST_RESERVE = 0.42
"""The part of the time that is kept for judging and measuring before the reference has run."""
_RUNS_OF_REFERENCE = 8
"""Three samples, each as it is and moved, the run that says how many there can be, and its own."""
_RUNS_OF_ANOTHER = 3
_TURNS = 3
_MS_NS = 1e6


class Purse:
    """Keeps account of limited processor time: what is left, and what has to be kept back."""

    def __init__(
        self, limit_ns: float, left_ns: Callable[[], float], loads_in_ms: Mapping[str, float]
    ) -> None:
        """`left_ns` reads the clock; `loads_in_ms` are what engines take until they are ready."""
        self._left_ns = left_ns
        self._loads_in_ms = loads_in_ms
        self._took_ns: dict[str, float] = {}
        self._reserve_ns = _FIRST_RESERVE * limit_ns

    def note(self, devices: Sequence[str], took_ns: float) -> None:
        """Notes how long it took to prepare a contender of these devices."""
        for name in devices:
            self._took_ns[name] = max(took_ns, self._took_ns.get(name, 0.0))

    def note_reference(self, run_ns: float, slice_ns: float, count: int) -> None:
        """Notes how long a run of the reference and a turn take, and how many compete."""
        runs = _RUNS_OF_REFERENCE + _RUNS_OF_ANOTHER * count
        self._reserve_ns = runs * run_ns + _TURNS * slice_ns * (count + 1)

    def expected_ns(self, devices: Sequence[str]) -> float:
        """Returns how long it will take to prepare a contender of these devices."""
        dearest = max(self._took_ns.values(), default=0.0)
        new = [name for name in devices if name not in self._took_ns]
        loading = sum(self._loads_in_ms.get(name, 0.0) for name in new) * _MS_NS
        known = max((self._took_ns[name] for name in devices if name in self._took_ns), default=0.0)
        return loading + (dearest if new else known)

    def affords(self, devices: Sequence[str]) -> bool:
        """Returns whether there is time to prepare, judge and measure another contender."""
        return self._left_ns() >= self.expected_ns(devices) + self._reserve_ns


def loading_ms_of(spec: CompileSpec) -> dict[str, float]:
    """Returns how long engines take until they are ready, by the name of their device.

    It was measured on this machine before, or else the engine states it.
    """
    known = {} if spec.loading_ms is None else spec.loading_ms()
    return {
        each.name: known.get(f"{each.name} {each.version}", each.loads_in_ms)
        for each in spec.devices
        if isinstance(each, EngineDevice)
    }
