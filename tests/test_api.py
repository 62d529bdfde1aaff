"""Names and signatures that programs of users rely on."""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

import nnasync as nn
from nnasync import errors
from nnasync._core.runtime.compile_request import PendingNet
from tests.rigs import ROW, SHAPE, calculator, doubler

KEYWORD = inspect.Parameter.KEYWORD_ONLY


def keywords(function: Callable[..., Any]) -> dict[str, Any]:
    """Names and defaults of the keyword-only parameters."""
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters if each.kind is KEYWORD}


def test_all_lists_what_is_there() -> None:
    assert len(set(nn.__all__)) == len(nn.__all__)
    for name in nn.__all__:
        assert getattr(nn, name) is not None


def test_the_version_is_that_of_the_project() -> None:
    project = Path(nn.__file__).parent.parent / "pyproject.toml"
    assert nn.__version__ == tomllib.loads(project.read_text())["project"]["version"]


def test_dir_shows_what_is_meant_to_be_used() -> None:
    shown = {name for name in dir(nn) if not name.startswith("__")}
    assert shown == {*nn.__all__, "audio", "errors", "hal", "streaming", "sync", "vision"}
    assert {"__doc__", "__version__"} <= set(dir(nn))


def test_every_error_is_at_the_top() -> None:
    tree = {
        name
        for name, item in vars(errors).items()
        if isinstance(item, type) and issubclass(item, errors.NNError)
    }
    assert tree - set(nn.__all__) == set()
    for name in tree:
        assert getattr(nn, name) is getattr(errors, name)


def test_names_of_the_example() -> None:
    for name in (
        "open_runtime",
        "load",
        "save",
        "run",
        "within",
        "Priority",
        "Preference",
        "merge",
    ):
        assert name in nn.__all__
    assert [each.name for each in sorted(nn.Priority)] == ["LOW", "MEDIUM", "HIGH"]
    assert nn.Preference.FAST_SINGLE_ANSWER in nn.Preference
    assert nn.Preference.SUSTAINED_SPEED in nn.Preference
    assert nn.Preference.LOW_POWER in nn.Preference


def test_open_runtime() -> None:
    found = keywords(nn.open_runtime)
    assert found["devices"] is None
    assert found["isolate"] == ()
    assert "options" in found
    runtime = nn.open_runtime(devices=None, isolate=(), options=nn.Options())
    assert isinstance(runtime, nn.Runtime)


def test_options() -> None:
    options = nn.Options(
        cores=1,
        inline_budget_us=1,
        stall_budget_us=2,
        queue_limit=3,
        low_os_priority=False,
        switch_interval_us=4,
    )
    assert options.queue_limit == 3
    plain = nn.Options()
    assert (plain.inline_budget_us, plain.stall_budget_us) == (None, 1000)
    assert plain.low_os_priority == "auto"
    assert plain.cores >= 1


def test_compile() -> None:
    assert keywords(nn.Runtime.compile) == {
        "devices": None,
        "preference": nn.Preference.FAST_SINGLE_ANSWER,
        "priority": nn.Priority.MEDIUM,
        "deadline": None,
        "cache_dir": None,
        "precision": None,
        "name": None,
        "io": None,
        "options": None,
    }
    assert issubclass(PendingNet, Coroutine)  # awaited, entered, or given to a task


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (nn.Net.__call__, {"deadline", "out"}),
        (nn.Net.launch, {"wait_for", "deadline", "duration_s", "loop_timeout_s", "measure"}),
        (nn.Net.burst, {"depth"}),
        (nn.Burst.__call__, {"deadline", "out"}),
        (nn.within, {"s", "ms", "us"}),
    ],
)
def test_keywords_of_calls(function: Callable[..., Any], names: set[str]) -> None:
    assert names <= set(keywords(function))


TIMES = re.compile(
    r"(^|_)(aging|budget|delay|duration|grace|hang_after|interval|patience|period|quantum|slice"
    r"|timeout)(_(?!bytes)[a-z]+)?$"
)
UNITS = ("_ns", "_us", "_ms", "_s")
MODULES = [
    "device",
    "devices",
    "dump",
    "engine",
    "extensions",
    "fences",
    "hal",
    "machine",
    "memory",
    "streaming",
    "tracing",
]


def callables(item: Any) -> Iterator[Any]:
    """A public function, or a public class and its public methods."""
    yield item
    if isinstance(item, type):
        yield from (part for name, part in vars(item).items() if callable(part) and name[0] != "_")


@pytest.mark.parametrize("module", ["", *MODULES])
def test_every_time_says_its_unit_in_its_name(module: str) -> None:
    found = importlib.import_module(f"nnasync.{module}".rstrip("."))
    unnamed = set()
    for name in found.__all__:
        for function in callables(getattr(found, name)):
            try:
                parameters = inspect.signature(function).parameters
            except (TypeError, ValueError):
                continue
            times = [each for each in parameters if TIMES.search(each)]
            unnamed |= {f"{name}: {each}" for each in times if not each.endswith(UNITS)}
    assert unnamed == set()


def test_parts_of_a_network_and_of_an_execution() -> None:
    for name in ("inputs", "outputs", "report", "launch", "burst", "close"):
        assert hasattr(nn.Net, name)
    for name in ("fence", "info", "cancel", "close"):
        assert hasattr(nn.Execution, name)
    for name in ("state", "load_state", "reset", "statistics", "close"):
        assert hasattr(nn.Burst, name)


def test_the_example_runs() -> None:
    async def main(row: Any) -> Any:
        async with nn.open_runtime() as rt:
            net = await rt.compile(doubler(), priority=nn.Priority.HIGH)
            y = await net(row)
            y = await net(y, deadline=nn.within(s=60))
            other = await rt.compile(doubler("other"))
            first = await net.launch(y)
            second = await other.launch(first.outputs, wait_for=[first.fence])
            await second.fence
            info = await second.info()
            async with net.burst() as burst:
                z = await burst(second.outputs[0].array, deadline=nn.within(s=60))
            return z, info, net.report(), net.inputs, rt.devices

    z, info, report, inputs, devices = nn.run(main, ROW)
    assert z.tolist() == (32 * ROW).tolist()
    assert info.status is nn.ErrorStatus.NONE
    assert {"time_on_device_ns", "time_in_driver_ns"} <= set(dir(info.timing_launched))
    assert hasattr(info, "timing_fenced")
    assert [part.device in {device.name for device in devices} for part in report.partitions] == [
        True
    ]
    for name in ("partitions", "candidates", "rejections", "cache_hit", "cache_reason", "pin"):
        assert hasattr(report, name)
    for name in ("name", "shape", "dtype", "scale", "zero_point"):
        assert hasattr(inputs[0], name)
    assert devices[-1].name == "nnasync-reference"


def test_several_outputs_come_as_a_tuple_and_timings_beside() -> None:
    async def main() -> Any:
        async with nn.open_runtime() as rt:
            net = await rt.compile(calculator())
            return await net.measured({"a": ROW, "b": ROW})

    result, timing = nn.run(main)
    assert isinstance(result, tuple)
    assert [each.shape for each in result] == [SHAPE, SHAPE]
    assert isinstance(timing, nn.Timing)


def test_run_uses_uvloop_and_returns_the_result() -> None:
    async def main(first: int, second: int) -> tuple[str, int]:
        return type(asyncio.get_running_loop()).__module__, first + second

    module, total = nn.run(main, 1, 2)
    assert module.split(".")[0] == "uvloop"
    assert total == 3


def test_run_passes_errors_on() -> None:
    async def main() -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        nn.run(main)


def test_a_model_is_saved_and_loaded(tmp_path: Any) -> None:
    path = tmp_path / "model.nnm"
    nn.save(doubler(), path)

    async def main() -> Any:
        async with nn.open_runtime() as rt:
            net = await rt.compile(nn.load(path))
            return await net(ROW)

    assert nn.run(main).tolist() == (2 * ROW).tolist()


def test_lazy_names_are_those_that_type_checkers_see() -> None:
    tree = ast.parse(Path(nn.__file__).read_text())
    seen = {
        alias.asname: f"{statement.module.removeprefix('nnasync.')}:{alias.name}"
        for statement in ast.walk(tree)
        if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith("nnasync.")
        for alias in statement.names
        if statement.module and alias.asname
    }
    assert seen == nn._HOMES
    assert set(seen) == set(nn.__all__)


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        getattr(nn, "no_such_name")  # noqa: B009


@pytest.mark.parametrize("name", sorted(nn._MOVED))
def test_names_of_before_work_and_say_what_to_use_now(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"nnasync.{name}: use ") as caught:
        found = getattr(nn, name)
    assert callable(found)
    assert caught[0].filename == __file__
    home = re.search(r"nnasync\.(\w+)\.(\w+)$", str(caught[0].message))
    if home is not None:
        assert found is getattr(importlib.import_module(f"nnasync.{home[1]}"), home[2])
    assert name not in nn.__all__
    assert name not in dir(nn)


def test_importing_loads_no_engine_and_little_else() -> None:
    code = "import sys, nnasync; print(sorted(m for m in sys.modules if m.startswith('nnasync')))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "['nnasync']"


WARM_START = """
import sys
import numpy as np
import nnasync as nn
model, cache = sys.argv[1:]
async def main():
    # The first device gets the model: on a busy machine either might win.
    options = nn.Options(competition_budget_ms=0)
    devices = ["litert-cpu", "nnasync-reference"]
    async with nn.open_runtime(devices=devices, options=options) as rt:
        net = await rt.compile(model, cache_dir=cache)
        first, = net.inputs
        await net(np.ones(first.shape, first.dtype))
        print(net.report().cache_hit, *sorted(sys.modules))
nn.run(main)
"""
NOT_NEEDED = {
    "anyio",
    "bisect",
    "numpy.typing",
    "pathlib",
    "random",
    "importlib.metadata",
    "nnasync._core.engine_device.buffers",
    "nnasync.burst",
    "nnasync._core.cache.eviction",
    "nnasync._core.cache.handles",
    "nnasync._core.cache.writing",
    "nnasync._core.compilation.compiler",
    "nnasync._core.compilation.trials",
    "nnasync._core.drivers.cpu.engine",
    "nnasync._core.drivers.litert.litert_programs",
    "nnasync._core.drivers.service",
    "nnasync._core.execution.burst",
    "nnasync._core.execution.flexible",
    "nnasync.extensions",
    "nnasync.hal.operations",
    "nnasync._core.importers.tflite",
    "nnasync.kernels",
    "nnasync.memory.image",
    "nnasync._core.partition",
    "nnasync._core.service",
    "nnasync._core.versions",
}
"""What a network out of the cache answers without."""


def test_a_warm_start_imports_what_it_needs_only(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert", reason="needs LiteRT")
    nn.save(doubler(), tmp_path / "doubler.nnm")
    command = [sys.executable, "-c", WARM_START, f"{tmp_path}/doubler.nnm", f"{tmp_path}/cache"]
    for expected in ("False", "True"):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        hit, *modules = done.stdout.split()
        assert hit == expected
    assert NOT_NEEDED & set(modules) == set()
