"""What stands in the way, and that a machine without it is told nothing."""

from __future__ import annotations

from typing import Any

import pytest

from nnasync.machine import find_obstacles
from tests.machine.rig import costs, facts


def test_a_machine_with_nothing_in_the_way() -> None:
    assert find_obstacles(facts(), costs()) == ()


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"quota_cores": 0.5, "throttled": 3}, "may use 0.5 of its 4 cores, which has stopped"),
        ({"stolen": 0.05}, "gave 5% of the wanted time"),
        ({"load": 3.5}, "3.5 threads wanted to run"),
        ({"cores": 1}, "one core"),
        ({"physical_cores": 2}, "4 logical processors are threads of 2 cores"),
        ({"governor": "powersave"}, "'powersave'"),
        ({"clock": "hpet"}, "'hpet'"),
        ({"kernel": (6, 1, 0)}, "Linux 6.1 has no time slices"),
        ({"descriptors": 256}, "256 files"),
        ({"memory_limit_bytes": 256 << 20}, "256 MiB"),
        ({"flags": frozenset({"avx2"})}, "VNNI"),
        ({"flags": frozenset({"avx"}), "architecture": "x86_64"}, "no AVX2"),
        ({"shared_memory_bytes": 1 << 20}, "holds 1 MiB"),
        ({"time_slices": False}, "Linux 6.12 has no time slices"),
        ({"clock_resolution_ns": 15_625_000}, "steps of 15.625 ms"),
    ],
)
def test_each_is_told_with_what_mends_it(changed: dict[str, Any], told: str) -> None:
    (found,) = find_obstacles(facts(**changed), costs())
    assert told in found.what
    assert found.effect
    assert found.mend


def test_a_slow_hop_is_told() -> None:
    (found,) = find_obstacles(facts(), costs(cold_hop_us=300))
    assert "600 us" in found.what


@pytest.mark.parametrize(
    "changed",
    [
        {"flags": frozenset({"asimd"}), "architecture": "aarch64"},
        {"flags": frozenset(), "architecture": "x86_64"},
        {"kernel": (6, 1, 0), "time_slices": True},
        {"system": "Darwin 23", "time_slices": None, "kernel": (23, 0)},
        {"shared_memory_bytes": 64 << 20},
    ],
)
def test_what_is_not_told(changed: dict[str, Any]) -> None:
    assert find_obstacles(facts(**changed), costs()) == ()
