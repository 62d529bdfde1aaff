"""The measured costs, kept in the folder of state from run to run.

They are measured again where the processor, the number of cores, the kernel or the interpreter is
another one than before. A file that is damaged, foreign or implausible counts as none.
"""

from __future__ import annotations

import os
import platform

import msgspec

from nnasync._core.state_files import machine, read_state, write_state
from nnasync.hal import Struct
from nnasync.machine.costs import Costs, Spread, measured
from nnasync.machine.facts import cores_allowed

_NAME = "machine-2.msgpack"
_MOST_BYTES = 4096
_LONGEST_NS = 1_000_000_000
_MOST_CHILL = 1000.0


class _Kept(Struct, frozen=True):
    """The content of the file: the costs, and what they were measured on."""

    digest: str
    costs: Costs


def kept_costs(folder: str | os.PathLike[str]) -> Costs | None:
    """The costs that were measured on this machine before, None where there are none."""
    data = read_state(os.path.join(folder, _NAME), _MOST_BYTES)
    if data is None:
        return None
    try:
        kept = msgspec.msgpack.decode(data, type=_Kept)
    except msgspec.MsgspecError:
        return None
    is_ours = kept.digest == digest() and _is_plausible(kept.costs)
    return kept.costs if is_ours else None


def costs_here(folder: str | os.PathLike[str], *, again: bool = False) -> Costs:
    """The kept costs, else those that are measured now, which blocks, and kept.

    Raises OSError or RuntimeError where nothing can be measured.
    """
    known = None if again else kept_costs(folder)
    if known is not None:
        return known
    costs = measured()
    write_state(os.path.join(folder, _NAME), msgspec.msgpack.encode(_Kept(digest(), costs)))
    return costs


def digest() -> str:
    """Returns a digest of everything on which the costs depend, as far as the system tells."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{machine()} {platform.release()} {python} {cores_allowed()}"


def _is_plausible(costs: Costs) -> bool:
    return 0.0 <= costs.noise <= 1.0 <= costs.chill <= _MOST_CHILL and all(
        0 <= spread.low_ns <= spread.high_ns <= _LONGEST_NS
        for spread in (costs.turn, costs.hop, costs.cold_hop, costs.switch)
        if isinstance(spread, Spread)
    )
