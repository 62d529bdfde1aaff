"""Processes of one application, and what they use of the cores."""

from __future__ import annotations

import subprocess
import sys

import pytest

from nnasync._core.kin import Kin

BUSY = """
import sys, time
while time.process_time_ns() < 20_000_000:
    pass
print(flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells it of other processes")
def test_the_time_of_those_that_live_is_told() -> None:
    kin = Kin()
    assert kin.ran_ns() == {}
    command = [sys.executable, "-c", BUSY]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        kin.joins(child.pid)
        assert child.stdout is not None
        child.stdout.readline()
        assert kin.ran_ns().keys() == {child.pid}
        assert kin.ran_ns()[child.pid] >= 20_000_000
    assert kin.ran_ns() == {}, "it has ended"
    kin.leaves(child.pid)
    kin.leaves(child.pid)


def test_elsewhere_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    kin = Kin()
    kin.joins(1)
    assert kin.ran_ns() == {}
