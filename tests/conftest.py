"""Fixtures that tests of several modules share: event loops, reference data, guards."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Set
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
import uvloop
from hypothesis import HealthCheck, settings

from nnasync import memory
from nnasync._core.compilation import contest_process
from nnasync._core.runtime import compile_request
from tests.rigs import Deadlines

ROOT = Path(__file__).resolve().parent.parent

# Hundreds of processes start: each would compile the package anew where none may keep bytecode.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Else who imports ONNX Runtime ahead of nnasync has a thread that now and then reports what it was
# used for, and opens descriptors for that: tests that count them failed by chance.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

# Else who imports OpenVINO ahead of nnasync has a thread that forks this process to report that,
# and keeps a pipe to the fork: the test that was the first to import it failed by chance.
sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]  # So no module is found.

# Else each of hundreds of processes that import numpy begins with 30 ms in which the threads of
# OpenBLAS wait busily for work.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")

# Who starts the tests in the background of a script has them ignore Ctrl-C, and children inherit
# that: programs that wait to be interrupted would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

BACKENDS = {
    "asyncio": ("asyncio", {"use_uvloop": False}),
    "asyncio+uvloop": ("asyncio", {"use_uvloop": True}),
    "trio": ("trio", {}),
}

SETTLE_ABOVE = 20_000
"""Old objects from which on it pays to look through them once for all."""

# The same few examples each time, as more of the same find nothing new; `scripts/nightly` looks for
# others with the profile `explore`. What fails prints a line that repeats it.
settings.register_profile(
    "same",
    max_examples=40,
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "explore", settings.get_profile("same"), max_examples=500, derandomize=False
)
settings.load_profile("same")


@pytest.fixture(params=list(BACKENDS.values()), ids=list(BACKENDS))
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """Run an async test (`pytestmark = pytest.mark.anyio`) on each event loop that we support."""
    return request.param


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run on asyncio alone what is marked with `one_loop`, and why the loop has no part in it."""
    if "anyio_backend" in metafunc.fixturenames and metafunc.definition.get_closest_marker(
        "one_loop"
    ):
        one = pytest.mark.parametrize("anyio_backend", [BACKENDS["asyncio"]], ids=["asyncio"])
        metafunc.definition.add_marker(one)


@pytest.fixture(scope="session")
def state_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A name for each test's folder, without the search that `mktemp` makes among thousands."""
    base = tmp_path_factory.mktemp("state")
    return (base / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def own_state(state_folders: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where nnasync keeps things from run to run is another folder for each test, not made yet.

    Tests never touch the user's own. Few write there, and thousands of folders take their time.
    """
    folder = next(state_folders)
    monkeypatch.setenv("NNASYNC_STATE_DIR", str(folder))
    return folder


@pytest.fixture(scope="session", autouse=True)
def defaults_of_tests() -> Iterator[None]:
    """Contests are held in this process, as thousands of others would take a second each to start.

    And what is compiled is what the contest chose; a test of first answers asks for `wait="first"`.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contest_process, "can_start", lambda: False)
        patch.setattr(compile_request, "DEFAULT_WAIT", "best")
        yield


@pytest.fixture
def state_folder(own_state: Path) -> Path:
    """That folder, made and empty."""
    own_state.mkdir()
    return own_state


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder of reference data beside the checkout; a test that needs it is skipped without it."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip("needs the reference data: there is no folder ../shared beside the checkout")
    return folder


class StallWatch:
    """A thread that notices when one callback holds the event loop longer than `limit_s`.

    It pings the loop and waits for the answer. What it charges is not plain wall-clock time, which
    a busy machine stretches: it is the larger of the CPU time that the loop's thread used, and the
    time that this thread watched. Of a slice of it in which some thread of the process could run
    only what the process did run counts: the loop's thread may have no core, or wait for the
    interpreter lock of one that has none. A loop that computes earns the first, one that sleeps or
    waits for others the second, and one that is merely not scheduled neither.
    """

    limit_s = 0.2
    slice_s = 0.01

    def __init__(self, post: Callable[[Callable[[], object]], object]) -> None:
        self.stalls: list[str] = []
        self._post = post
        self._loop_thread = threading.get_ident()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stall-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._closing.wait(self.slice_s):
            answered = threading.Event()
            self._post(answered.set)
            self._await_answer(answered)

    def _await_answer(self, answered: threading.Event) -> None:
        cpu_start, watched_s, told = self._loop_cpu_s(), 0.0, False
        while not self._closing.is_set():
            started, ran_s = time.monotonic(), time.process_time()
            if answered.wait(self.slice_s):
                return
            slice_s = min(time.monotonic() - started, 2 * self.slice_s)
            if self._others_could_run():
                slice_s = min(slice_s, time.process_time() - ran_s)
            watched_s += slice_s
            if not told and max(watched_s, self._loop_cpu_s() - cpu_start) > self.limit_s:
                told = True
                self.stalls.append(self._stack())

    def _others_could_run(self) -> bool:
        """Whether a thread of this process beside this one has a core, or waits for one."""
        here = str(threading.get_native_id())
        for stat in Path("/proc/self/task").glob("*/stat"):
            with suppress(OSError):  # It has just ended.
                state = stat.read_text().rpartition(")")[2].split(maxsplit=1)[0]
                if state == "R" and stat.parent.name != here:
                    return True
        return False

    def _loop_cpu_s(self) -> float:
        if not hasattr(time, "pthread_getcpuclockid"):
            return 0.0
        return time.clock_gettime(time.pthread_getcpuclockid(self._loop_thread))

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._loop_thread)
        return "".join(traceback.format_stack(frame)[-8:]) if frame else "(no stack)"


@pytest.fixture
async def stall_guard(anyio_backend: Any) -> AsyncIterator[StallWatch]:
    """Fail the test when a callback blocks its event loop longer than `StallWatch.limit_s`.

    For a whole module: `pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("stall_guard")]`.
    """
    watch = StallWatch(loop_poster(anyio_backend[0]))
    watch.start()
    yield watch
    watch.close()
    if watch.stalls:
        pytest.fail("the event loop was blocked here:\n" + "\n".join(watch.stalls), pytrace=False)


def loop_poster(library: str) -> Callable[[Callable[[], object]], object]:
    """How to run a function on the running event loop from another thread."""
    if library == "trio":
        return trio.lowlevel.current_trio_token().run_sync_soon
    return asyncio.get_running_loop().call_soon_threadsafe


@pytest.fixture
def deadlines(monkeypatch: pytest.MonkeyPatch) -> Deadlines:
    """Has deadlines that are hours away pass when the test says so."""
    return Deadlines(monkeypatch)


@pytest.fixture(scope="session")
def process_wide_descriptors() -> None:
    """Make the pipe for signals that libuv opens with its first loop and never closes."""
    uvloop.run(asyncio.sleep(0))


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Who has run its half takes tests of the others: the parts of the suite take unlike times.

    And a half is whole modules, of which each worker imports and compiles what they need.
    """
    from xdist.scheduler import WorkStealingScheduling  # type: ignore[import-untyped]  # xdist has no types.

    return WorkStealingScheduling(config, log) if config.getvalue("dist") == "load" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Send no keywords with what passed: nobody reads them, and they are most of a report."""
    report = yield
    if report.passed:
        report.keywords = {}
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what a clone without the reference data has not run."""
    reports = terminalreporter.stats.get("skipped", [])
    missing = [each for each in reports if "../shared" in str(each.longrepr)]
    if missing:
        modules = sorted({each.nodeid.split("::")[0] for each in missing})
        terminalreporter.write_line(
            f"NOT RUN: official cases and networks, without ../shared ({', '.join(modules)});"
            " the project's own are in a clone with it",
            yellow=True,
        )


def begins_at_the_end(config: pytest.Config) -> bool:
    """Whether this is every other worker of xdist; several folders keep the order they came in."""
    worker: str = getattr(config, "workerinput", {}).get("workerid", "gw0")
    return int(worker.removeprefix("gw")) % 2 == 1 and len(config.args) == 1


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Have every other worker import the tests from the last to the first.

    In a fresh clone each module is compiled by whoever comes to it first: so each does a half.
    """
    report = yield
    if isinstance(collector, pytest.Dir) and begins_at_the_end(collector.config):
        report.result.reverse()
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Bring the tests of a worker that began with the last ones in the order of all workers."""
    if begins_at_the_end(config):
        items.sort(key=lambda item: item.path.parts)


def collect_and_settle() -> None:
    """Collect garbage; what is left is what later tests need not look through again.

    Only between tests: garbage that frozen objects become is never collected.
    """
    gc.collect()
    gc.freeze()


def pytest_collection_finish() -> None:
    """Keep what has been imported and collected out of all later looks for garbage."""
    collect_and_settle()


@pytest.fixture(scope="module", autouse=True)
def settled() -> None:
    """Keep what earlier modules imported and cached out of the looks for garbage of this one.

    Among the objects of a large run one look takes a third of a second.
    """
    if len(gc.get_objects(2)) > SETTLE_ABOVE:
        collect_and_settle()


@pytest.fixture
def collected() -> None:
    """Collect what earlier tests left, which would else be given back while this one counts."""
    gc.collect()


@pytest.fixture
def no_leaks(process_wide_descriptors: None) -> Iterator[None]:
    """Fail the test when it leaves a thread of ours or an open file descriptor behind.

    Name it before fixtures that are coroutines (`usefixtures` counts as before), so that the event
    loop is closed when it looks.
    """
    threads, descriptors = our_threads(), open_descriptors()
    pools = memory.statistics().pools
    yield
    for thread in our_threads() - threads:
        thread.join(timeout=10)
    assert {thread.name for thread in our_threads() - threads} == set()
    if open_descriptors().keys() - descriptors.keys() or memory.statistics().pools > pools:
        collect_and_settle()
    assert kept_open(descriptors.keys()) == {}


def kept_open(before: Set[int], patience_s: float = 10) -> dict[int, str]:
    """Descriptors beyond those before, once threads have let go that are not ours.

    A thread of anyio that has handed over what it has read keeps it until it gets its next turn.
    """
    turn, end_s = threading.Event(), time.monotonic() + patience_s
    while True:
        found = {fd: name for fd, name in open_descriptors().items() if fd not in before}
        if not found or time.monotonic() > end_s:
            return found
        turn.wait(0.001)


def our_threads() -> set[threading.Thread]:
    """Living threads that nnasync started."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("nnasync")}


def opened_since(before: dict[int, str]) -> dict[int, str]:
    """Descriptors that were opened after an earlier look at them, which `open_descriptors` gave.

    What others have left may be closed meanwhile: by the collector, or by threads that end late.
    """
    return dict(open_descriptors().items() - before.items())


def open_descriptors() -> dict[int, str]:
    """Open file descriptors of this process, and what they refer to where that is known."""
    folder = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
    found = {}
    for name in os.listdir(folder):
        try:
            found[int(name)] = os.readlink(f"{folder}/{name}") if folder != "/dev/fd" else ""
            os.fstat(int(name))
        except OSError:
            found.pop(int(name), None)
    return found
