"""The costs are measured once, and what lies in the folder is not trusted."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nnasync as nn
from nnasync.machine import Costs, Spread, costs_here, kept, kept_costs
from tests.machine.rig import costs


@pytest.fixture
def measurements(monkeypatch: pytest.MonkeyPatch) -> list[Costs]:
    made: list[Costs] = []

    def measured() -> Costs:
        made.append(costs(hop_us=10 + len(made)))
        return made[-1]

    monkeypatch.setattr(kept, "measured", measured)
    return made


def test_they_are_measured_once(tmp_path: Path, measurements: list[Costs]) -> None:
    assert kept_costs(tmp_path) is None
    first = costs_here(tmp_path)
    assert costs_here(tmp_path) == first == kept_costs(tmp_path)
    assert len(measurements) == 1
    assert costs_here(tmp_path, again=True) == measurements[1] == kept_costs(tmp_path)


@pytest.mark.usefixtures("measurements")
def test_another_machine_is_measured_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    costs_here(tmp_path)
    monkeypatch.setattr(kept, "machine", lambda: "another")
    assert kept_costs(tmp_path) is None


@pytest.mark.parametrize(
    "wrong",
    [
        msgspec.structs.replace(costs(), chill=0.5),
        msgspec.structs.replace(costs(), chill=float("nan")),
        msgspec.structs.replace(costs(), hop=Spread(9, 3)),
        msgspec.structs.replace(costs(), turn=Spread(-1, 3)),
        msgspec.structs.replace(costs(), cold_hop=Spread(1, 10**15)),
    ],
)
def test_what_cannot_be_counts_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: Costs
) -> None:
    monkeypatch.setattr(kept, "measured", lambda: wrong)
    costs_here(tmp_path)
    assert kept_costs(tmp_path) is None


@given(st.binary(max_size=200))
def test_any_file_is_survived(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.mktemp("state")
    (folder / "machine-2.msgpack").write_bytes(data)
    assert kept_costs(folder) is None


@pytest.mark.anyio
async def test_a_runtime_takes_its_inline_budget_from_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "measured", lambda: costs(cold_hop_us=70))
    costs_here(tmp_path)
    async with nn.open_runtime(
        devices=["nnasync-reference"], options=nn.Options(state_dir=tmp_path)
    ) as runtime:
        assert runtime._workers.inline._inline_budget_ns == 1_000_000
