"""The page "Write a driver": its code is the example's, its programs print what it says."""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

import nnasync as nn
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync.cli import main
from nnasync.engine import CachingEngine, LoweringEngine, StopFlag
from nnasync.errors import BadState, GeneralFailure, InvalidArgument
from nnasync.hal import Array, Model
from tests.installing import EXAMPLE, install_example, installing

PAGE = Path(__file__).resolve().parent.parent / "docs" / "write_a_driver.md"
FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [(kind, text.rstrip("\n")) for kind, text in FENCED.findall(PAGE.read_text("utf-8"))]
SOURCE = (EXAMPLE / "nnasync_dense.py").read_text("utf-8")
PROGRAMS = [n for n, (kind, text) in enumerate(BLOCKS) if kind == "python" and text not in SOURCE]
COMMANDS = [
    line
    for kind, text in BLOCKS
    if kind == "sh"
    for line in text.splitlines()
    if line.startswith("nnasync ")
]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The example's package is installed."""
    folder = tmp_path_factory.mktemp("site")
    install_example(folder)
    with installing(folder):
        yield


def perceptron(layers: int = 3, batch: int = 2, width: int = 5) -> Model:
    """Dense layers with a sum and a product between them, all of which the example takes."""
    random = np.random.default_rng(1)
    builder = nn.ModelBuilder("perceptron")
    x = builder.input("x", (batch, width))
    for activation in ("relu", "relu6", "none")[:layers]:
        weights = random.normal(size=(width, width)).astype(np.float32)
        x = builder.fully_connected(x, weights, np.ones(width, np.float32), activation=activation)
        x = builder.mul(builder.add(x, random.normal(size=(width,)).astype(np.float32)), x)
    builder.output("y", builder.operation(nn.OperationType.RELU1, x))
    return builder.build()


def numbers(batch: int = 2, width: int = 5) -> Array:
    return np.random.default_rng(2).normal(size=(batch, width)).astype(np.float32)


def test_the_page_has_all_of_the_code_in_order() -> None:
    shown = [text for kind, text in BLOCKS if kind == "python" and text in SOURCE]
    assert "\n\n\n".join(shown) == SOURCE[SOURCE.index("from __future__") :].rstrip("\n")


def test_the_page_has_the_project_file() -> None:
    assert ("toml", (EXAMPLE / "pyproject.toml").read_text("utf-8").rstrip("\n")) in BLOCKS


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("number", PROGRAMS)
def test_programs_print_what_the_page_says(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(BLOCKS[number][1], f"{PAGE.name}, block {number}", "exec"), {})
    assert BLOCKS[number + 1] == ("text", capsys.readouterr().out.rstrip("\n"))


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_succeed(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(command)[1:]
    quick = {
        "devices": [],
        "conformance": ["--spec", "fully_connected*", "--jobs", "1"],
        "conformance hal": ["--only", "caching/*offset*"],
        "randomgraph": ["--jobs", "1", "--save", str(tmp_path)],
    }
    assert main([*words, *quick[words[0] + " hal" * ("hal" in words)]]) == 0
    told = capsys.readouterr().out
    assert "dense-cpu" in told
    if words[0] == "conformance":
        assert max(map(int, re.findall(r"(\d+) passed", told))) > 0


@pytest.mark.usefixtures("installed")
def test_it_is_listed_with_its_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--json"]) == 0
    told = {each["name"]: each for each in msgspec.json.decode(capsys.readouterr().out)}
    assert told["dense-cpu"]["source"] == "nnasync-dense 1.0"
    assert told["nnasync-reference"]["source"] == "nnasync"


@pytest.mark.usefixtures("installed")
def test_results_are_those_of_the_reference() -> None:
    async def answer(device: str) -> Array:
        async with nn.open_runtime(devices=[device]) as runtime:
            network = await runtime.compile(perceptron())
            assert {part.device for part in network.report().partitions} == {device}
            return np.asarray(await network(numbers()))

    np.testing.assert_allclose(
        nn.run(answer, "dense-cpu"), nn.run(answer, "nnasync-reference"), rtol=1e-5, atol=1e-6
    )


@pytest.mark.usefixtures("installed")
def test_it_says_why_it_does_not_take_an_operation() -> None:
    async def rejections() -> list[str]:
        builder = nn.ModelBuilder("row and tanh")
        x = builder.input("x", (0, 4))
        builder.output("y", builder.tanh(builder.add(x, np.ones(4, np.float32))))
        async with nn.open_runtime(devices=["dense-cpu", "nnasync-reference"]) as runtime:
            network = await runtime.compile(builder.build())
            return [str(each) for each in network.report().rejections]

    assert nn.run(rejections) == [
        "dense-cpu: operation 0: ADD: a shape is only known when the network runs",
        "dense-cpu: operation 1: TANH: not among the operations of this engine",
    ]


@pytest.mark.usefixtures("installed")
class TestEngine:
    """What the example does with a stop flag, with omitted inputs, and with its files."""

    def engine(self) -> CachingEngine:
        engine: CachingEngine = importlib.import_module("nnasync_dense").CachingDenseEngine()
        assert isinstance(engine, CachingEngine)
        assert isinstance(engine, LoweringEngine)
        return engine

    def test_a_raised_flag_stops_between_operations_and_the_run_goes_on(self) -> None:
        plan = self.engine().compile(perceptron(), nn.Preference.LOW_POWER)
        whole, parts = np.zeros((2, 5), np.float32), np.zeros((2, 5), np.float32)
        assert plan.bind([numbers()], [whole]).run(StopFlag())
        call, stop = plan.bind([numbers()], [parts]), _AtEverySecondLook()
        stops = 0
        while not call.run(stop):
            stops += 1
        assert stops > 5
        np.testing.assert_array_equal(parts, whole)
        parts[...] = 0
        assert not call.run(_AtEverySecondLook())
        call.rewind()
        assert call.run(StopFlag())
        np.testing.assert_array_equal(parts, whole)

    def test_an_omitted_input(self) -> None:
        plan = self.engine().compile(perceptron(), nn.Preference.LOW_POWER)
        with pytest.raises(InvalidArgument, match="no input can be omitted"):
            plan.bind([None], [np.zeros((2, 5), np.float32)])

    @pytest.mark.parametrize("layers", [0, 3])
    def test_a_plan_from_its_files(self, layers: int) -> None:
        engine = self.engine()
        plan = engine.compile(perceptron(layers), nn.Preference.LOW_POWER)
        files = engine.serialize(plan)
        assert (len(files.model), len(files.data)) == engine.cache_files
        answers = []
        for each in (plan, engine.deserialize(files, None)):
            out = np.zeros((2, 5), np.float32)
            each.bind([numbers()], [out]).run(StopFlag())
            answers.append(out)
        np.testing.assert_array_equal(answers[0], answers[1])

    def test_files_that_are_not_its_own(self) -> None:
        engine = self.engine()
        with pytest.raises(BadState, match="no plans of type"):
            engine.serialize(ReferenceEngine().compile(perceptron(), nn.Preference.LOW_POWER))
        files = engine.serialize(engine.compile(perceptron(), nn.Preference.LOW_POWER))
        short = msgspec.structs.replace(files, data=(bytes(files.data[0])[:-4],))
        with pytest.raises(GeneralFailure, match="another length"):
            engine.deserialize(short, None)


class _AtEverySecondLook(StopFlag):
    """Is raised every second time it is looked at."""

    looks = 0

    @property
    def raised(self) -> int:
        self.looks += 1
        return self.looks % 2 == 0

    @raised.setter
    def raised(self, value: int) -> None:
        """Stay as it is."""
