"""`nnasync doctor`: its page, and that it measures once."""

from __future__ import annotations

import pytest

from nnasync.cli import main
from nnasync.machine import kept
from tests.cli.doctor.conftest import Patient
from tests.machine.rig import costs


@pytest.fixture(autouse=True)
def _measured(patient: Patient) -> None:
    patient.patch.setattr(kept, "measured", lambda: costs(hop_us=17, cold_hop_us=44))


def test_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    told = capsys.readouterr().out
    for part in (
        "machine\n",
        "what follows\n",
        "devices\n",
        "in the way\n",
        "nnasync-reference",
        "a webcam",
    ):
        assert part in told
    told = " ".join(told.split())  # long lines are wrapped
    assert "17.0" in told
    assert "executions of up to 880 us run on the thread of the loop" in told
    assert "launches of up to 44 us" in told
    assert ("are spread over the cores" in told) != ("calls are not spread" in told)


def test_the_page_fits_into_a_terminal(
    patient: Patient, capsys: pytest.CaptureFixture[str]
) -> None:
    patient.set({"proc/loadavg": "9.00 9.00 9.00 1/100 4711", "dev/video0": ""})
    patient.patch.setattr(kept, "measured", lambda: costs(hop_us=17, cold_hop_us=4400))
    assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "mend: " in "".join(lines)
    wide = [line for line in lines if len(line) > 80]
    assert [line for line in wide if "/" not in line.split()[-1]] == []  # a path is not broken


def test_json_has_it_all(patient: Patient) -> None:
    told = patient.examined()
    assert told["costs"]["cold_hop"]["low_ns"] == 44_000
    assert told["decisions"]["inline_budget_ns"] == 880_000
    assert told["decisions"]["launch_budget_ns"] == 44_000
    assert told["facts"]["cores"] >= told["cores"] >= 1


def test_again_measures_anew(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main(["doctor"])
    monkeypatch.setattr(kept, "measured", lambda: costs(hop_us=33))
    main(["doctor"])
    assert "33.0" not in capsys.readouterr().out
    main(["doctor", "--again"])
    assert "33.0" in capsys.readouterr().out
