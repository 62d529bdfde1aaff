"""Who competes first where not all can: what earlier verdicts say, then what drivers say."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import nnasync as nn
from nnasync._core.compilation.choice import Choice, Part
from nnasync._core.compilation.promise import Promise, by_promise, kind_of, learnt
from nnasync._core.compilation.report import Candidate, Fate
from nnasync._core.compilation.verdicts import Question, Verdict, Verdicts
from nnasync._core.state_files import machine
from nnasync.hal import Model, OperandType

QUESTION = Question("aa", (("cpu", "1"),), "judge", 1, None, 2)
MODEL: Any = object()


def verdict(
    *lines: tuple[str, str, float | None, Fate], kind: str = "integers", cores: int = 2
) -> Verdict:
    candidates = tuple(
        Candidate(device, lowering, us, "agrees", "so", fate=fate)
        for device, lowering, us, fate in lines
    )
    question = msgspec.structs.replace(QUESTION, cores=cores)
    return Verdict(question, machine(), Choice((Part("cpu", "1"),)), candidates, kind=kind)


class Named:
    """What the order wants of a contender."""

    def __init__(self, name: str, lowering: str, promise: int, model: Any) -> None:
        self.name, self.lowering, self.promise = name, lowering, promise
        self.spec = SimpleNamespace(model=model)


def contender(device: str, lowering: str, promise: int = 0, model: Any = MODEL) -> Any:
    return Named(device, lowering, promise, model)


def order(contenders: list[Any], *promises: Promise, whole: Any = None) -> list[str]:
    return [f"{each.name} {each.lowering}" for each in by_promise(contenders, promises, whole)]


def test_ratios_are_averaged_over_models_of_the_kind() -> None:
    verdicts = [
        verdict(("a", "x", 10.0, Fate.CHOSEN), ("b", "y", 20.0, Fate.SLOWER)),
        verdict(("b", "y", 10.0, Fate.CHOSEN), ("a", "x", 20.0, Fate.SLOWER)),
        verdict(("b", "y", 5.0, Fate.CHOSEN), ("c", "z", 5000.0, Fate.SLOWER)),
        verdict(("a", "x", 1.0, Fate.CHOSEN), ("b", "y", 100.0, Fate.SLOWER), kind="floats"),
        verdict(("a", "x", 1.0, Fate.CHOSEN), ("b", "y", 100.0, Fate.SLOWER), cores=4),
        verdict(("a", "x", None, Fate.CHOSEN), ("b", "y", 7.0, Fate.SLOWER)),
    ]
    found = {each.device: each.ratio for each in learnt(verdicts, QUESTION, "integers")}
    assert found == pytest.approx({"a": 2**0.5, "b": 2 ** (1 / 3), "c": 8.0})


def test_what_was_wrong_or_not_tried_promises_nothing() -> None:
    lines = (
        ("a", "x", 10.0, Fate.CHOSEN),
        ("b", "y", 5.0, Fate.DISAGREES),
        ("c", "z", None, Fate.UNTRIED),
    )
    assert [each.device for each in learnt([verdict(*lines)], QUESTION, "integers")] == ["a"]


def test_usual_winners_come_first_and_usual_losers_last() -> None:
    contenders = [contender("a", "x"), contender("b", "y"), contender("c", "z")]
    assert order(contenders) == ["a x", "b y", "c z"]
    promises = Promise("a", "x", 3.0), Promise("c", "z", 1.0)
    assert order(contenders, *promises) == ["c z", "b y", "a x"]


def test_of_the_unknown_each_device_has_its_best_way_first() -> None:
    contenders = [
        contender("a", "safe"),
        contender("a", "quick", 2),
        contender("a", "middling", 1),
        contender("b", "only"),
    ]
    assert order(contenders) == ["a quick", "b only", "a middling", "a safe"]


def test_a_file_as_it_is_has_ways_of_its_own() -> None:
    whole = object()
    contenders = [contender("a", "f32"), contender("a", "file", model=whole), contender("b", "f32")]
    assert order(contenders, whole=whole) == ["a f32", "a file", "b f32"]
    assert order(contenders) == ["a f32", "b f32", "a file"]


def model_of(kind: OperandType) -> Model:
    builder = nn.ModelBuilder("add")
    x = builder.input("x", (1, 4), type=kind)
    builder.output("y", builder.add(x, x))
    return builder.build()


def test_the_kind_is_told_by_what_is_computed() -> None:
    assert kind_of(model_of(OperandType.TENSOR_FLOAT32)) == "floats"
    assert kind_of(model_of(OperandType.TENSOR_INT32)) == "integers"


def test_the_latest_verdicts_of_this_machine_are_found(tmp_path: Path) -> None:
    verdicts = Verdicts(tmp_path / "verdicts")
    assert verdicts.latest() == []
    line = Candidate("cpu", "x", 5.0, "agrees", "chosen", fate=Fate.CHOSEN)
    for model in ("aa", "bb"):
        question = msgspec.structs.replace(QUESTION, model=model)
        verdicts.keep(question, Choice((Part("cpu", "1"),)), [line], kind="floats")
    (tmp_path / "verdicts" / "zz.json").write_bytes(b"no verdict")
    found = verdicts.latest()
    assert {each.question.model for each in found} == {"aa", "bb"}
    assert learnt(found, QUESTION, "floats") == (Promise("cpu", "x", 1.0),)
    assert learnt(found, QUESTION, "integers") == ()
