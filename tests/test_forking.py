"""What a child of a fork may do: nothing with what it inherited, and everything of its own."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
import weakref

import pytest

from nnasync._core import endings
from nnasync._core.wakeup import Wakeup
from nnasync.errors import BadState


@pytest.mark.parametrize(
    ("device", "package", "loop"),
    [
        ("nnasync-reference", "numpy", "asyncio"),
        ("litert-cpu", "ai_edge_litert", "trio"),
        ("onnxruntime-cpu", "onnxruntime", "asyncio"),
        ("openvino-cpu", "openvino", "trio"),
    ],
)
def test_children_are_refused_what_they_inherit_and_run_their_own(
    device: str, package: str, loop: str
) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}")
    command = [sys.executable, "-W", "ignore", "-m", "tests.forking", device, loop]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["0"] * 3, ended.stderr


class Home:
    """Stands for a loop."""


@pytest.mark.anyio
async def test_a_way_in_that_was_inherited_leads_nowhere() -> None:
    home = Home()
    wakeup = Wakeup(home, is_trio=False)
    assert not wakeup.is_current()
    wakeup.leave_to_parent()
    assert wakeup.is_inherited
    assert not wakeup.post(lambda: None)
    with pytest.raises(BadState, match="forked"):
        wakeup.is_current()


def test_locks_that_were_held_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_open", "_threads", "_locks"):
        monkeypatch.setattr(endings, name, weakref.WeakSet())
    plain = endings.renewed_in_child(threading.Lock())
    again = endings.renewed_in_child(threading.RLock())
    plain.acquire()
    holder = threading.Thread(target=again.acquire)
    holder.start()
    holder.join()
    endings._forget()
    for lock in (plain, again):
        assert lock.acquire(blocking=False)
        lock.release()
