"""Reading case files: what is in them, and what is wrong with them."""

from __future__ import annotations

import copy
import gzip
import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync._core.validation import validate_model
from nnasync.conformance import case_lines as lines
from nnasync.conformance.cases import Selection, case_files, parse_case, read_cases
from nnasync.errors import InvalidArgument
from nnasync.hal import HalVersion, OperandLifeTime, OperandType, OperationType
from tests.conformance.small_cases import (
    addition,
    case,
    constant,
    endless,
    line,
    quantized_sum,
    rectified,
    tensor,
    write,
)


def test_a_case_is_model_inputs_and_outputs() -> None:
    read = case(addition(relaxed=True))
    validate_model(read.model)
    assert (read.name, read.spec, read.source) == ("add_float", "add", "small.jsonl")
    assert read.version is HalVersion.V1_0
    assert read.model.relax_computation_float32_to_float16
    assert read.operations == ("ADD",)
    main = read.model.main
    assert [operand.number_of_consumers for operand in main.operands] == [1, 1, 1, 0]
    assert main.operands[1].lifetime is OperandLifeTime.CONSTANT_REFERENCE
    assert constant(read, 1).tolist() == [10, 20]
    assert constant(read, 2) == 0
    assert read.inputs[0] is not None
    assert np.array_equal(read.inputs[0], [[1, 2], [3, 4]])
    assert np.array_equal(read.outputs[0].value, [[11, 22], [13, 24]])
    assert read.outputs[0].type == OperandType.TENSOR_FLOAT32
    assert not read.expect_failure


def test_references_and_quantization() -> None:
    read = case(endless())
    validate_model(read.model)
    assert read.expect_failure
    assert [operand.location.offset for operand in read.model.main.operands[:2]] == [0, 1]
    assert len(read.model.referenced) == 2
    operand = case(rectified()).model.main.operands[0]
    assert (operand.scale, operand.zero_point) == (0.5, 100)


def test_scales_of_channels() -> None:
    filters = tensor("f", [[[[1]]]], "CONSTANT_COPY", type="TENSOR_QUANT8_ASYMM")
    filters |= {"type": "TENSOR_QUANT8_SYMM_PER_CHANNEL", "channel_scales": [0.5], "channel_dim": 0}
    made = addition()
    made["main"]["operands"].append(filters)
    quant = case(made).model.main.operands[4].extra_params
    assert quant is not None
    assert (quant.scales, quant.channel_dim) == ((0.5,), 0)  # type: ignore[union-attr]


def test_a_helper_addition_is_not_counted() -> None:
    made = addition()
    made["main"]["operands"] += [tensor("z", [[0, 0], [0, 0]], "SUBGRAPH_OUTPUT")]
    made["main"]["operations"].append({"op": "RELU", "in": [0], "out": [4]})
    assert case(made).operations == ("RELU",)
    assert [each.type for each in case(made).model.main.operations] == [
        OperationType.ADD,
        OperationType.RELU,
    ]


def squeeze(**dims: Any) -> dict[str, Any]:
    operands = [
        tensor("x", [[1]], "SUBGRAPH_INPUT"),
        {"type": "TENSOR_INT32", "dims": [0], **dims},
        tensor("y", [1], "SUBGRAPH_OUTPUT"),
    ]
    return line("squeeze", operands, [("SQUEEZE", [0, 1], [2])])


def test_omitted_arguments() -> None:
    constant = case(squeeze(lifetime="CONSTANT_COPY"))
    assert constant.model.main.operands[1].lifetime is OperandLifeTime.NO_VALUE
    made = squeeze(lifetime="SUBGRAPH_INPUT", data="")
    made["main"]["inputs"] = [0, 1]
    assert case(made).inputs[1] is None
    made["main"]["operands"][1]["dims"] = [3]
    assert case(made).inputs[1] is None


def test_an_empty_input_that_may_not_be_omitted_is_fed() -> None:
    quant = {"type": "TENSOR_FLOAT32"}
    operands = [
        tensor("x", np.zeros((0, 2)), "SUBGRAPH_INPUT", **quant),
        tensor("y", np.zeros((0, 2)), "SUBGRAPH_OUTPUT", **quant),
    ]
    read = case(line("relu", operands, [("RELU", [0], [1])]))
    assert read.inputs[0] is not None
    assert read.inputs[0].shape == read.outputs[0].value.shape == (0, 2)


# -- files


LINES = [
    addition("add_1"),
    addition("add_2", version="V1_2"),
    rectified("relu_1", version=None),
    quantized_sum("sum_1"),
]


def names(path: Path, **selection: Any) -> list[str]:
    return [read.name for read in read_cases(path, Selection(**selection))]


@pytest.mark.parametrize("name", ["some.jsonl", "some.jsonl.gz"])
def test_files_plain_and_compressed(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, LINES)
    assert names(path) == ["add_1", "add_2", "relu_1", "sum_1"]
    assert [read.source for read in read_cases(path)] == [name] * 4


def test_selection_by_spec_and_version(tmp_path: Path) -> None:
    path = write(tmp_path / "some.jsonl", LINES)
    assert names(path, spec="a*") == ["add_1", "add_2"]
    assert names(path, version="V1_2") == ["add_2"]
    assert names(path, version="none") == ["relu_1"]
    assert names(path, spec="a*", version="none") == []


def test_parts_share_the_cases(tmp_path: Path) -> None:
    path = write(tmp_path / "some.jsonl", [addition(f"add_{n}") for n in range(40)])
    shares = [names(path, part=part, parts=3) for part in range(3)]
    assert all(shares)
    assert sorted(itertools.chain(*shares)) == sorted(names(path))


def test_folder_of_files(tmp_path: Path) -> None:
    for name in ("b.jsonl.gz", "a.jsonl", "README.md"):
        write(tmp_path / name, LINES[:1])
    assert [path.name for path in case_files(tmp_path)] == ["a.jsonl", "b.jsonl.gz"]
    assert case_files(tmp_path / "README.md") == [tmp_path / "README.md"]
    for nothing in (tmp_path / "none", tmp_path / "a.jsonl" / "x"):
        with pytest.raises(InvalidArgument, match="no case files"):
            case_files(nothing)


def test_blank_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    path.write_text("\n" + json.dumps(addition()) + "\n\n   \n")
    assert names(path) == ["add_float"]


@pytest.mark.parametrize(
    "content",
    [b"nothing compressed", gzip.compress(b"{}" * 5000, mtime=0)[:-9], b"\x1f\x8b\x08\0garbage"],
)
def test_damaged_gzip(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "some.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(InvalidArgument, match=r"some\.jsonl\.gz"):
        list(read_cases(path))


def test_lines_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "some.jsonl", LINES[:2])
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 100)
    with pytest.raises(InvalidArgument, match=r"some\.jsonl:1: longer than 100 bytes"):
        list(read_cases(path))


def test_fault_names_file_and_line(tmp_path: Path) -> None:
    bad = addition("bad")
    bad["main"]["inputs"] = [77]
    path = write(tmp_path / "some.jsonl", [LINES[0], bad])
    with pytest.raises(InvalidArgument, match=r"^some\.jsonl:2: bad: main: names operand 77"):
        list(read_cases(path))


# -- lines that are wrong


def changed(**changes: Any) -> dict[str, Any]:
    made = addition()
    for path, value in changes.items():
        target: Any = made
        *steps, last = [int(step) if step.isdigit() else step for step in path.split("__")]
        for step in steps:
            target = target[step]
        target[last] = value
    return made


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (changed(main__operands__0__data="AAAA"), "3 bytes of data, TENSOR_FLOAT32 .* takes 16"),
        (changed(main__operands__0__data="!"), "base64"),
        (changed(main__operands__0__data=3), "nothing else, has a number"),
        (changed(main__operands__0__dims=[-1]), ">= 0"),
        (changed(main__operands__0__dims=[1] * 99), "length <= 32"),
        (changed(main__operands__0__dims=[2**32 - 1] * 9), "takes"),
        (changed(main__operands__3__data=None), "with data None"),
        (
            changed(main__operands__3__dims=[0, 2**31, 2**31, 2**31], main__operands__3__data=""),
            "no array",
        ),
        (changed(main__operands__0__type="TENSOR_FLOAT99"), "is no OperandType"),
        (changed(main__operands__0__type="OEM"), "OEM with data"),
        (changed(main__operands__0__type="SUBGRAPH"), "a SUBGRAPH"),
        (changed(main__operands__0__lifetime="FOREVER"), "is no OperandLifeTime"),
        (changed(main__operands__0__zero_point=2**40), "<= 2147483647"),
        (changed(main__operations__0__op="ADDD"), "is no OperationType"),
        (changed(main__operations__0__in=[0, 1, 4]), "operation 0: names operand 4"),
        (changed(main__operations__0__out=[-3]), ">= 0"),
        (changed(main__outputs=[4]), "names operand 4, but there are 4"),
        (changed(version="V9_9"), "is no HalVersion"),
        (changed(main=[]), "not a conformance case"),
        ({"name": "x"}, "not a conformance case"),
    ],
)
def test_wrong_line(made: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        case(made)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"null", b"{", b"\xff\xfe", b'{"name":"\xff"}', b'{"x":' + b"[" * 100_000],
)
def test_no_json_object(content: bytes) -> None:
    with pytest.raises(InvalidArgument):
        parse_case(content)


SEEDS = [addition(), rectified(), quantized_sum(), endless(), squeeze(lifetime="CONSTANT_COPY")]
VALUES: list[Any] = [
    None,
    0,
    1,
    -1,
    3,
    2**31,
    2**63,
    1.5,
    "",
    "AAAA",
    "ADD",
    [],
    [0],
    [0, 0],
    {},
    True,
]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to all parts of a JSON value."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else ()
    for key, inner in enumerate(value) if isinstance(value, list) else items:
        found += places(inner, (*path, key))
    return found


@given(st.integers(0, 2**32))
def test_mutated_lines_are_read_or_refused(seed: int) -> None:
    generator = random.Random(seed)
    made = copy.deepcopy(generator.choice(SEEDS))
    for _ in range(generator.randint(1, 3)):
        *steps, last = generator.choice(places(made))
        target: Any = made
        for step in steps:
            target = target[step]
        if generator.random() < 0.2:
            del target[last]
        else:
            target[last] = copy.deepcopy(generator.choice(VALUES))
    try:
        read = case(made)
        validate_model(read.model)
    except InvalidArgument:
        return
    assert len(read.inputs) == len(read.model.main.input_indexes)
