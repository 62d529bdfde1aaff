"""Why a device does not run a model: what engines say, what is said for those that say nothing."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import nnasync as nn
from nnasync import hal
from nnasync._core.drivers import built_in, is_installed
from nnasync._core.drivers.null import NullEngine
from nnasync._core.engine_device.reasons import LONGEST
from nnasync.errors import GeneralFailure
from nnasync.extensions import ONNX, TFLITE, GraphOperation, TfliteOperation
from nnasync.hal import OperandType, OperationType
from nnasync.kernels import Tensor
from tests.rigs import REFERENCE, calculator, runtime

pytestmark = [
    pytest.mark.one_loop("Reasons are the same on every loop."),
    pytest.mark.anyio,
    pytest.mark.usefixtures("no_leaks"),
    pytest.mark.filterwarnings("ignore:network .* was dropped:ResourceWarning"),
]


class Adder(NullEngine):
    """Takes ADD, and says of other operations what it is told to say."""

    def __init__(self, said: Any = None) -> None:
        super().__init__("adder", operation_types=[OperationType.ADD])
        self.said = said

    def why_not(self, model: hal.Model) -> Sequence[str | None]:
        """What a test put there."""
        if isinstance(self.said, Exception):
            raise self.said
        reasons: Sequence[str | None] = self.said
        return reasons


async def rejected(engine: NullEngine, model: nn.Model | None = None) -> list[tuple[int, str]]:
    """The rejections of an engine beside the reference."""
    async with runtime(engine, REFERENCE) as rt:
        report = (await rt.compile(calculator() if model is None else model)).report()
        assert {each.device for each in report.rejections} <= {engine.name}
        return [(each.operation, each.reason) for each in report.rejections]


async def test_the_reason_of_the_engine_is_told() -> None:
    assert await rejected(Adder([None, "products are not its business"])) == [
        (1, "MUL: products are not its business")
    ]


async def test_a_reason_that_names_its_operation_is_told_as_it_is() -> None:
    assert await rejected(Adder([None, "MUL: no products"])) == [(1, "MUL: no products")]


@pytest.mark.parametrize("said", [[None, None], [None, ""], [None, "  "], (None, None)])
async def test_an_engine_that_says_nothing_is_spoken_for(said: Any) -> None:
    assert await rejected(Adder(said)) == [(1, "MUL is not supported as it is used here")]


async def test_an_engine_without_reasons_is_spoken_for() -> None:
    plain = NullEngine("plain", operation_types=[OperationType.ADD])
    assert await rejected(plain) == [(1, "MUL is not supported as it is used here")]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (RuntimeError("lost its table"), "why_not failed: .*lost its table"),
        (["one"], "why_not gave 1 reason for 2 operations"),
        (17, "why_not gave int, it must give a list"),
        ([None, 17], "why_not gave int for this operation, it must give a text or None"),
    ],
)
async def test_a_why_not_that_is_wrong_costs_no_compilation(said: Any, told: str) -> None:
    ((operation, reason),) = await rejected(Adder(said))
    assert operation == 1
    assert reason.startswith("MUL is not supported as it is used here")
    assert re.search(told, reason)


async def test_reasons_are_one_line_and_not_endless() -> None:
    ((_, reason),) = await rejected(Adder([None, "a\x1b[31m\nb " + "x" * 10_000]))
    assert reason.startswith("MUL: a?[31m b xxx")
    assert len(reason) <= LONGEST + len("MUL: ")
    assert reason.isprintable()


async def test_a_list_of_the_wrong_length_is_told_as_the_mistake_of_the_driver(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Short(NullEngine):
        def supported_operations(self, model: hal.Model) -> list[bool]:
            return [True]

    with caplog.at_level(logging.WARNING):
        found = await rejected(Short("short"))
    mistake = "supported_operations gave 1 answer for 2 operations"
    assert [operation for operation, _ in found] == [0, 1]
    assert all(mistake in reason and "mistake of the driver" in reason for _, reason in found)
    assert mistake in caplog.text


@pytest.mark.parametrize(("given", "kind"), [(None, "NoneType"), (True, "bool"), ("yes", "str")])
async def test_an_answer_that_is_no_list_is_told_as_the_mistake_of_the_driver(
    given: Any, kind: str
) -> None:
    class Odd(NullEngine):
        def supported_operations(self, model: hal.Model) -> list[bool]:
            answer: list[bool] = given
            return answer

    found = await rejected(Odd("odd"))
    mistake = f"supported_operations gave {kind}, it must give a list of True or False"
    assert [operation for operation, _ in found] == [0, 1]
    assert all(mistake in reason and "mistake of the driver" in reason for _, reason in found)


async def test_operations_of_extensions_have_names() -> None:
    poor = NullEngine("poor", operation_types=())
    async with runtime(poor) as rt:
        with pytest.raises(GeneralFailure) as caught:
            await rt.compile(theirs())
    assert "org.nnasync.tflite.QUANTIZE" in str(caught.value)
    assert "0x" not in str(caught.value)


async def test_a_file_kept_whole_says_why_wherever_it_is_refused() -> None:
    model = whole("If is not translated")
    async with runtime(REFERENCE) as rt:
        with pytest.raises(GeneralFailure) as caught:
            await rt.compile(model)
    told = str(caught.value)
    assert "If is not translated" in told
    assert ONNX.name in told
    assert "0x" not in told
    assert "-1" not in told


async def test_no_message_shows_a_number_that_stands_for_the_whole_model() -> None:
    def supports(*_: Any) -> bool:
        raise KeyError("table")

    async with runtime(NullEngine("confused", supports=supports)) as rt:
        with pytest.raises(GeneralFailure, match="table") as caught:
            await rt.compile(calculator())
    assert "operation -1" not in str(caught.value)


@pytest.mark.parametrize("name", ["litert-cpu", "openvino-cpu", "onnxruntime-cpu", REFERENCE])
@pytest.mark.parametrize("model", ["open", "theirs", "whole"])
async def test_our_engines_say_why(name: str, model: str) -> None:
    """Each operation that `supported_operations` refuses has a reason, and no other has one."""
    if not is_installed(name):
        pytest.skip(f"{name} is not installed")
    engine: Any = built_in(name)
    asked = {"open": unknown_shape(), "theirs": theirs(), "whole": whole("If")}[model]
    answers, reasons = engine.supported_operations(asked), engine.why_not(asked)
    assert [reason is None for reason in reasons] == list(answers)
    assert not any("0x" in (reason or "") for reason in reasons)


async def test_the_reason_of_one_of_our_engines_is_in_the_report() -> None:
    async with runtime("openvino-cpu", REFERENCE) as rt:
        ((_, reason),) = [
            (each.operation, each.reason)
            for each in (await rt.compile(unknown_shape())).report().rejections
        ]
    assert reason == "ADD: a shape is only known when the network runs"


def unknown_shape() -> nn.Model:
    """A sum of rows whose number only the run tells."""
    builder = nn.ModelBuilder("open")
    x = builder.input("x", (0, 4))
    builder.output("y", builder.add(x, x))
    return builder.build()


def theirs() -> nn.Model:
    """Floats to 16 bits, as TFLite does it."""
    builder = nn.ModelBuilder("theirs")
    x = builder.input("x", (1, 4))
    halves = Tensor(type=OperandType.TENSOR_QUANT16_SYMM, shape=(1, 4), scale=0.5)
    (y,) = builder.operation_outputs(
        builder.extension_type(TFLITE.name, TfliteOperation.QUANTIZE), x, outputs=[halves]
    )
    builder.output("y", y)
    return builder.build()


def whole(reason: str) -> nn.Model:
    """A model like one of an ONNX file that was not translated."""
    builder = nn.ModelBuilder("file")
    x = builder.input("x", (1, 4))
    type = OperandType.TENSOR_OEM_BYTE
    label = f"file.onnx, as it is: {reason}"
    file = builder.constant(np.frombuffer(b"onnx", np.uint8), type=type, name=label)
    (y,) = builder.operation_outputs(
        builder.extension_type(ONNX.name, GraphOperation.GRAPH),
        x,
        file,
        outputs=[floats((1, 4))],
    )
    builder.output("y", y)
    return builder.build()


def floats(shape: hal.Shape) -> Any:
    """A float32 tensor."""
    return Tensor(type=OperandType.TENSOR_FLOAT32, shape=shape)
