"""The end of the interpreter: what is under way in an engine does not end the process by force."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
import threading

import pytest

from nnasync._core import endings
from nnasync._core.runtime.tasks import tasks_of_this_loop

ENGINES = {
    "onnxruntime-cpu": "onnxruntime",
    "openvino-cpu": "openvino",
    "litert-cpu": "ai_edge_litert",
}
ONCE, OFTEN = 1, pytest.param(10, marks=pytest.mark.slow)
"""What goes wrong by chance has more of them at night."""


def child(device: str, how: str) -> subprocess.Popen[str]:
    """A program of `tests.ending` that has executions under way."""
    if importlib.util.find_spec(ENGINES[device]) is None:
        pytest.skip(f"needs {ENGINES[device]}")
    started = subprocess.Popen(
        [sys.executable, "-m", "tests.ending", device, how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "ready\n", started.communicate()[1]
    return started


@pytest.mark.parametrize("times", [ONCE, OFTEN])
@pytest.mark.parametrize("device", ENGINES)
def test_an_interpreter_that_ends_with_work_under_way(device: str, times: int) -> None:
    for _ in range(times):
        ended = child(device, "exit")
        _, text = ended.communicate(timeout=120)
        assert ended.returncode == 7, text


@pytest.mark.parametrize("times", [ONCE, OFTEN])
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_program_that_is_interrupted_ends_by_the_signal(loop: str, times: int) -> None:
    for _ in range(times):
        ended = child("onnxruntime-cpu", f"wait-{loop}")
        ended.send_signal(signal.SIGINT)
        _, text = ended.communicate(timeout=120)
        assert ended.returncode == -signal.SIGINT, text
        assert "ExceptionGroup" not in text


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_what_a_task_of_the_runtime_raises_comes_out_bare() -> None:
    async def interrupted() -> None:
        raise SystemExit(3)

    tasks = tasks_of_this_loop()
    await tasks.open()
    if type(tasks).__name__ == "_AsyncioTasks":
        await tasks.close()
        return
    tasks.start(interrupted)
    with pytest.raises(SystemExit):
        await tasks.close()


class Opened:
    def __init__(self, *, fails: bool = False) -> None:
        self.closed = threading.Event()
        self.fails = fails

    def close(self) -> None:
        self.closed.set()
        if self.fails:
            raise ValueError("on purpose")


def test_what_is_open_is_closed_and_its_threads_are_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(endings, "_open", type(endings._open)())
    monkeypatch.setattr(endings, "_threads", type(endings._threads)())
    opened, broken = Opened(), Opened(fails=True)
    thread = threading.Thread(target=opened.closed.wait, daemon=True)
    for each in (opened, broken):
        endings.close_at_exit(each)
    endings.joined_at_exit(thread).start()
    endings._end()
    assert not thread.is_alive()
    assert broken.closed.is_set()
    assert "on purpose" in caplog.text


def test_a_thread_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endings, "_open", type(endings._open)())
    monkeypatch.setattr(endings, "_threads", type(endings._threads)())
    monkeypatch.setattr(endings, "_PATIENCE_S", 0.0)
    never = threading.Event()
    thread = threading.Thread(target=never.wait, daemon=True)
    endings.joined_at_exit(thread).start()
    endings._end()
    assert thread.is_alive()
    never.set()
    thread.join()
