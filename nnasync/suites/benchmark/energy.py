"""What the processor packages consume, as Linux tells it (RAPL), where it may be read."""

from __future__ import annotations

from pathlib import Path

POWERCAP = Path("/sys/class/powercap")


def consumed_joules(root: Path = POWERCAP) -> tuple[float, ...] | None:
    """Counters of all packages, and None where the machine does not tell."""
    try:
        packages = sorted(root.glob("intel-rapl:?"))
        counts = tuple(int((each / "energy_uj").read_text()) / 1e6 for each in packages)
    except (OSError, ValueError):
        return None
    return counts or None


def spent_joules(before: tuple[float, ...] | None, after: tuple[float, ...] | None) -> float | None:
    """Returns the energy between two readings in joules; None where that is unknown.

    A counter that went round in between says nothing.
    """
    if before is None or after is None or len(before) != len(after):
        return None
    spent = [late - early for early, late in zip(before, after, strict=True)]
    return None if min(spent) < 0 else sum(spent)
