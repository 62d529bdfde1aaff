"""Calls that block: the same answers, errors and ends, from any thread."""

from __future__ import annotations

import inspect
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import nnasync as nn
from nnasync import BadState, Fence, InvalidArgument, MissedDeadline, sync
from nnasync.hal import Array
from tests import rigs

REFERENCE = [rigs.REFERENCE]


def test_a_call_blocks_and_answers(tmp_path: Path) -> None:
    nn.save(rigs.doubler(), tmp_path / "doubler.nnm")
    with sync.open_runtime(devices=REFERENCE) as rt:
        assert rt.devices == ("nnasync-reference",)
        with rt.compile(tmp_path / "doubler.nnm") as net:
            assert (net(rigs.ROW) == 2 * rigs.ROW).all()
            assert (net.as_dict(net(rigs.ONES))["y"] == 2 * rigs.ONES).all()
            assert [port.name for port in (*net.inputs, *net.outputs)] == ["x", "y"]
            assert "nnasync-reference" in repr(net.optimized())
            assert net.report().cache_hit is False
            assert "doubler" in repr(net)
            assert net.labels == ()
        assert rt.statistics().nets == 0
        assert "nnasync-reference" in repr(rt)
    assert repr(rt) == "<BlockingRuntime: not open>"


def test_numbers_are_made_fit_for_a_quantized_network() -> None:
    with sync.open_runtime(devices=REFERENCE) as rt:
        net = rt.compile(rigs.quantized())
        answer = net(net.quantize(rigs.ROW))
        assert (net.dequantize(answer) == rigs.ROW).all()


def test_a_burst_carries_its_state() -> None:
    with sync.open_runtime(devices=REFERENCE) as rt:
        net: sync.BlockingNet[Array] = rt.compile(rigs.counter())
        with net.burst() as burst:
            assert [float(burst(rigs.ONES)[0, 0]) for _ in range(3)] == [1, 2, 3]
            assert burst.state()["total"].tolist() == [[3] * 4]
            burst.load_state({"total": 7 * rigs.ONES})
            assert burst(rigs.ONES).tolist() == [[8] * 4]
            burst.reset()
            assert burst(rigs.ONES).tolist() == [[1] * 4]


def test_threads_call_at_once() -> None:
    with sync.open_runtime(devices=REFERENCE) as rt, ThreadPoolExecutor(4) as threads:
        net = rt.compile(rigs.doubler())
        inputs = [rigs.ROW * number for number in range(40)]
        for given, answer in zip(inputs, threads.map(net, inputs), strict=True):
            assert (answer == 2 * given).all()


def test_errors_are_those_of_the_calls() -> None:
    with sync.open_runtime(devices=REFERENCE) as rt:
        net = rt.compile(rigs.doubler())
        with pytest.raises(InvalidArgument, match="input 'x'"):
            net(np.zeros(3, np.float32))
        with pytest.raises(MissedDeadline):
            net(rigs.ONES, deadline=nn.Deadline(1))
        with pytest.raises(FileNotFoundError):
            rt.compile("no such file.tflite")


def test_what_is_not_open_says_so() -> None:
    rt = sync.open_runtime(devices=REFERENCE)
    with pytest.raises(BadState, match="inside `with`"):
        rt.compile(rigs.doubler())
    with rt, pytest.raises(BadState, match="open already"):
        rt.__enter__()
    with pytest.raises(BadState, match="inside `with`"):
        rt.statistics()
    with pytest.raises(InvalidArgument, match="no such"), sync.open_runtime(devices=["no such"]):
        pass
    assert not [each for each in threading.enumerate() if "portal" in each.name]


def test_what_is_open_at_the_end_of_the_runtime_is_closed_with_it() -> None:
    with sync.open_runtime(devices=REFERENCE, policy="fifo") as rt:
        net = rt.compile(rigs.counter())
        context = net.burst()
        burst = context.__enter__()
        assert burst(rigs.ONES).tolist() == [[1] * 4]
    calls: list[Callable[[], object]] = [
        lambda: burst(rigs.ONES),
        lambda: net(rigs.ONES),
        burst.state,
        net.report,
        net.close,
    ]
    for call in calls:
        with pytest.raises(BadState, match="closed"):
            call()
    context.__exit__(None, None, None)


def test_it_takes_what_the_other_one_takes() -> None:
    ours, theirs = (
        inspect.signature(each).parameters.keys() for each in (sync.open_runtime, nn.open_runtime)
    )
    assert ours == theirs


def test_ctrl_c_ends_the_wait_and_cancels_the_call() -> None:
    engine = rigs.gated()
    with sync.open_runtime(devices=[engine], options=rigs.POOL) as rt:
        net = rt.compile(rigs.doubler())
        before = engine.counters.run
        begun = engine.when(lambda counters: counters.run > before)
        interrupting = threading.Thread(target=_interrupt_when, args=(begun,))
        interrupting.start()
        with pytest.raises(KeyboardInterrupt):
            net(rigs.ONES)
        interrupting.join()
        rigs.set_free(engine)
        assert (net(rigs.ONES) == 2 * rigs.ONES).all()


def _interrupt_when(begun: Fence) -> None:
    begun.wait_blocking(rigs.GUARD_S)
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def test_a_child_of_a_fork_is_refused_and_leaves_all_to_its_parent() -> None:
    """It hung, as there is no thread of the loop in it; the alarm ends one that does."""
    program = """
import os, signal, sys
import numpy as np
import nnasync as nn
from tests.rigs import ROW, doubler

said = []
with nn.sync.open_runtime(devices=["nnasync-reference"]) as rt:
    net = rt.compile(doubler())
    opened = net.burst()
    burst = opened.__enter__()
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        for call in (lambda: net(ROW), lambda: burst(ROW), lambda: rt.compile(doubler())):
            try:
                call()
            except nn.BadState as error:
                said.append("forked" in str(error))
        net.close()
    else:
        assert os.waitpid(pid, 0)[1] == 0
        opened.__exit__(None, None, None)
        print(net(ROW).tolist())
if pid == 0:
    with nn.sync.open_runtime(devices=["nnasync-reference"]) as rt:
        print(said, rt.compile(doubler())(ROW).tolist(), flush=True)
    sys.exit(0)
"""
    # Python 3.12 and later warn whoever forks beside threads.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ended.stderr == ""
    doubled = (2 * rigs.ROW).tolist()
    assert ended.stdout == f"[True, True, True] {doubled}\n{doubled}\n"


def test_what_belongs_to_this_process_cannot_be_pickled() -> None:
    """As an argument of a function that another process shall run would be."""
    with nn.sync.open_runtime(devices=REFERENCE) as rt, rt.compile(rigs.doubler()) as net:
        for each in (rt, net, net._inner):
            with pytest.raises(TypeError, match=r"<.*belongs to this process: give the other one"):
                pickle.dumps(each)


def test_a_network_of_a_closed_runtime_says_so_alone() -> None:
    with nn.sync.open_runtime(devices=REFERENCE) as rt:
        net = rt.compile(rigs.doubler())
        with pytest.raises(BadState, match="^this is the thread of the runtime's loop"):
            net._loop.portal.call(net, rigs.ONES)
    with pytest.raises(BadState, match="^the runtime is closed$"):
        net(rigs.ONES)
