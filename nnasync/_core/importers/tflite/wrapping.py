"""A TFLite file as a model of one operation: GRAPH of the extension org.nnasync.litert."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence, Set
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from nnasync._core.deferred import deferred
from nnasync._core.formats.litert_limits import (
    WITH_RULES,
    LiteRTUnsupported,
    check_operator,
    check_tensor,
)
from nnasync._core.formats.whole import State, WholePort, own_type, whole
from nnasync._core.importers.tflite.checking import check
from nnasync._core.importers.tflite.interface import Interface, TflitePort
from nnasync._core.importers.tflite.settled import check_replaceable, is_settled
from nnasync._core.importers.tflite.tflite_file import (
    File,
    Graph,
    OperatorInfo,
    TensorInfo,
    labeled,
    read_file,
)
from nnasync._core.importers.tflite.value_sizes import check_sizes
from nnasync.errors import ModelError
from nnasync.extensions import LITERT, FileOperand
from nnasync.hal import Memory, Model, OperandType, Shape, StatePair
from nnasync.kernels.tensor import Tensor

if TYPE_CHECKING:
    from nnasync._core.importers.tflite import carried_variables
    from nnasync._core.importers.tflite.carried_variables import Carried
else:
    carried_variables = deferred("nnasync._core.importers.tflite.carried_variables")

CUSTOM_OPERATORS = ("TFLite_Detection_PostProcess", "Mfcc", "AudioSpectrogram", "NumericVerify")
"""Custom operators that are part of LiteRT."""

MEDIAPIPE_OPERATORS: dict[str, struct.Struct] = {
    "Convolution2DTransposeBias": struct.Struct("<3i"),
    "MaxPoolingWithArgmax2D": struct.Struct("<5i"),
    "MaxUnpooling2D": struct.Struct("<5i"),
}
"""MediaPipe's custom operators that XNNPACK runs: padding, strides, and the size of the window."""
_POOLING, _UNPOOLING = "MaxPoolingWithArgmax2D", "MaxUnpooling2D"
_MOST_STEP = 1 << 15

_VARIABLE = "VAR_HANDLE"
_CUSTOM, _FLEX, _EDGE_TPU = "CUSTOM ", "Flex", "edgetpu-custom-op"
_HANDLE, _TABLE = "VAR_HANDLE", "HASHTABLE"
_CONTROL = ("ThenSubgraphIndex", "ElseSubgraphIndex", "CondSubgraphIndex", "BodySubgraphIndex")

_MAY_BE_LEFT_OUT: dict[str, int] = {
    "CONV_2D": 2,
    "CONV_3D": 2,
    "CONV_3D_TRANSPOSE": 3,
    "DEPTHWISE_CONV_2D": 2,
    "FULLY_CONNECTED": 2,
    "SVDF": 3,
    "TRANSPOSE_CONV": 3,
    **dict.fromkeys(
        (
            "BIDIRECTIONAL_SEQUENCE_LSTM",
            "BIDIRECTIONAL_SEQUENCE_RNN",
            "LSTM",
            "UNIDIRECTIONAL_SEQUENCE_LSTM",
        ),
        1,
    ),
}
"""From which input on an operator's inputs may be left out; all others LiteRT takes to be there."""

_NEEDED_WITH: dict[str, tuple[tuple[int, int], ...]] = {
    "LSTM": ((1, 12),),
    "UNIDIRECTIONAL_SEQUENCE_LSTM": ((1, 12),),
    "BIDIRECTIONAL_SEQUENCE_LSTM": ((1, 12), (18, 29)),
}
"""Pairs of inputs: with the weights of an input gate LiteRT takes its bias to be there."""

_LEAST_INPUTS = {"SLICE": 3, "STRIDED_SLICE": 4}
"""Of how many inputs LiteRT takes an operator to have without a look."""

_AT_LEAST_ONE: dict[str, tuple[str, ...]] = {
    "TRANSPOSE_CONV": ("StrideW", "StrideH"),
    **dict.fromkeys(
        ("AVERAGE_POOL_2D", "L2_POOL_2D", "MAX_POOL_2D"), ("FilterWidth", "FilterHeight")
    ),
}
"""Options that LiteRT divides by, or counts up to, without a look; 0 where they are not stated."""

_LARGEST_RADIUS = 1 << 16
"""What LiteRT adds to the number of a channel without a look."""

_MOST_ELEMENTS = 1 << 31

_OWN: dict[str, FileOperand] = {
    "FLOAT64": FileOperand.FLOAT64,
    "INT64": FileOperand.INT64,
    "UINT32": FileOperand.UINT32,
    "UINT64": FileOperand.UINT64,
    "COMPLEX64": FileOperand.COMPLEX64,
}
"""Operand types of the extension for what the HAL has not."""

_KINDS: dict[str, tuple[OperandType, float]] = {
    "FLOAT32": (OperandType.TENSOR_FLOAT32, 0.0),
    "FLOAT64": (OperandType.TENSOR_FLOAT32, 0.0),
    "FLOAT16": (OperandType.TENSOR_FLOAT16, 0.0),
    "INT32": (OperandType.TENSOR_INT32, 0.0),
    "INT64": (OperandType.TENSOR_INT32, 0.0),
    "BOOL": (OperandType.TENSOR_BOOL8, 0.0),
    "UINT8": (OperandType.TENSOR_QUANT8_ASYMM, 1.0),
    "INT8": (OperandType.TENSOR_QUANT8_ASYMM_SIGNED, 1.0),
    "UINT16": (OperandType.TENSOR_QUANT16_ASYMM, 1.0),
    "INT16": (OperandType.TENSOR_QUANT16_SYMM, 1.0),
}
"""Operand types of inputs and outputs, and their scale where the file states none."""


def wrap(
    file: File,
    interface: Interface,
    memory: Memory,
    name: str,
    reason: str,
    *,
    is_replaceable: bool = False,
    value_limit_bytes: int | None = None,
) -> Model:
    """The model that runs a file whole; `reason` becomes a part of the name of the file's operand.

    `is_replaceable`: the translated model is to take its place. Raises ModelError that lists the
    operators which LiteRT does not run, names a value that takes more than `value_limit_bytes` (or
    than befits the size of the file), or names inputs, outputs or states that no operand can
    hold, or whose values the translated model would take for something else.
    """
    content: bytes | Memory = memory
    data = memory.view
    carried, why_not = _carried(file, interface, data)
    if carried is not None:
        content, data = carried.content, memoryview(carried.content)
        file = read_file(data)
        check(file)
    _check_operators(file, data, why_not)
    for each in file.graphs:
        check_sizes(each, data, value_limit_bytes)
    graph = file.graphs[interface.graph]
    if interface.graph:
        content = _with_main(file, memory.view, interface.graph)
    shapes = _shapes(graph, interface, is_replaceable=is_replaceable)
    variables = () if carried is None else carried.variables
    before, after = _variable_ports(graph, variables)
    model = whole(
        LITERT.name,
        content,
        f"{name}.tflite, as it is: {reason}" if reason else f"{name}.tflite",
        name=name,
        inputs=[
            *(_port(port, graph, port.shape or (1,)) for port in interface.inputs),
            *before,
        ],
        outputs=[
            *(
                _port(port, graph, shape)
                for port, shape in zip(interface.outputs, shapes, strict=True)
            ),
            *after,
        ],
        states=_states(file, graph),
    )
    inputs, outputs = len(interface.inputs), len(interface.outputs)
    pairs = (StatePair(inputs + n, outputs + n) for n in range(len(variables)))
    return msgspec.structs.replace(model, state=(*pairs, *model.state))


def _shapes(graph: Graph, interface: Interface, *, is_replaceable: bool) -> list[Shape]:
    """The shapes of the outputs: the stated ones where they follow from those of the inputs.

    Raises ModelError where it is to be replaceable and is not.
    """
    if is_replaceable:
        check_replaceable(graph)
    stated = [graph.tensors[port.tensor].shape for port in interface.inputs]
    if [port.shape for port in interface.inputs] == stated and is_settled(graph):
        return [graph.tensors[port.tensor].shape for port in interface.outputs]
    return [port.shape for port in interface.outputs]


def _has_variables(file: File) -> bool:
    """Returns whether operators of a file keep values by name."""
    return any(each.name == _VARIABLE for graph in file.graphs for each in graph.operators)


def _carried(file: File, interface: Interface, data: memoryview) -> tuple[Carried | None, str]:
    """The file with its variables outside, if it has some and they can be; or why they cannot."""
    if not _has_variables(file):
        return None, ""
    if interface.graph:
        return None, "they are in the main subgraph"
    try:
        return carried_variables.carry_variables(file, data), ""
    except ModelError as error:
        return None, str(error)


def _variable_ports(
    graph: Graph, variables: Sequence[tuple[str, int, int]]
) -> tuple[list[WholePort], list[WholePort]]:
    """Inputs and outputs for the values of variables before and after a run."""
    ports: tuple[list[WholePort], list[WholePort]] = ([], [])
    for name, before, after in variables:
        info = graph.tensors[before]
        shape = info.shape or graph.tensors[after].shape
        if not shape or 0 in shape:
            raise ModelError(f"variable {name!r} has a shape that is not known")
        tensor = _operand(before, info, shape)
        ports[0].append(WholePort(name, tensor))
        ports[1].append(WholePort(f"{name}/next", tensor))
    return ports


def _check_operators(file: File, data: memoryview, why_not: str) -> None:
    """Raise one ModelError for all operators that LiteRT does not run as they are.

    `why_not` says why variables cannot be states, if there are some that cannot.
    """
    found: dict[str, list[str]] = {}
    for number, graph in enumerate(file.graphs):
        seen: set[int] = set()
        _check_mediapipe(graph)
        for operator in graph.operators:
            name = operator.name.removeprefix(_CUSTOM)
            if operator.name.startswith(_CUSTOM) and name in MEDIAPIPE_OPERATORS:
                continue
            if operator.name.startswith(_CUSTOM) and name not in CUSTOM_OPERATORS:
                where = f"{operator.index}" + (f" of subgraph {number}" if number else "")
                found.setdefault(name, []).append(where)
            elif operator.name == _HANDLE and not why_not:
                continue
            elif operator.name in (_HANDLE, _TABLE) or _overruns(graph, operator):
                found.setdefault(operator.name, []).append(f"{operator.index}")
            else:
                _check_limits(graph, operator, seen)
                if operator.name == "TILE":
                    _check_repeats(graph, operator, data)
    if found:
        lines = [
            f"{len(places)} x {name}, first operator {places[0]}: {_remedy(name, why_not)}"
            for name, places in found.items()
        ]
        raise ModelError(f"has operators that neither devices nor LiteRT run: {'; '.join(lines)}")


def _check_mediapipe(graph: Graph) -> None:
    """Raise ModelError for what XNNPACK takes as it is: parameters, places, unused results."""
    forms = {_CUSTOM + name: form for name, form in MEDIAPIPE_OPERATORS.items()}
    operators = [each for each in graph.operators if each.name in forms]
    if not operators:
        return
    used = {index for each in graph.operators for index in each.inputs}.union(graph.outputs)
    pools = {
        (each.outputs[1], each.custom_options[: forms[each.name].size])
        for each in operators
        if each.name.endswith(_POOLING) and len(each.outputs) == 2
    }
    for operator in operators:
        form, options = forms[operator.name], operator.custom_options
        where = f"operator {operator.index} ({operator.name})"
        if not used.issuperset(operator.outputs):
            raise ModelError(f"{where}: has a result without a use")
        padding, *steps = form.unpack_from(options) if len(options) >= form.size else (0,)
        if padding not in (1, 2) or not all(0 < step < _MOST_STEP for step in steps):
            raise ModelError(f"{where}: has illegal parameters")
        if operator.name.endswith(_UNPOOLING) and not _has_places(graph, operator, pools):
            raise ModelError(f"{where}: has places of no such pool")


def _has_places(graph: Graph, operator: OperatorInfo, pools: Set[tuple[int, bytes]]) -> bool:
    """Returns whether the places that XNNPACK writes unchecked are those of a matching pool."""
    if len(operator.inputs) != 2 or min(operator.inputs) < 0:
        return False
    values, places = operator.inputs
    options = operator.custom_options[: MEDIAPIPE_OPERATORS[_UNPOOLING].size]
    is_alike = graph.tensors[values].shape == graph.tensors[places].shape
    return is_alike and (places, options) in pools


_ZERO_POINTS = {"INT8": (-128, 127), "UINT8": (0, 255), "INT16": (-32768, 32767)}
"""XNNPACK defines no tensor with another one, and LiteRT's delegate goes on without it."""


def _check_limits(graph: Graph, operator: OperatorInfo, seen: set[int]) -> None:
    """Raise ModelError for an operator that LiteRT does not refuse, but that ends the process.

    `seen` are the tensors that were looked at for operators before it.
    """
    if -1 in operator.inputs and not operator.name.startswith(_CUSTOM):
        place = operator.inputs.index(-1)
        if place < _MAY_BE_LEFT_OUT.get(operator.name, len(operator.inputs)):
            raise ModelError(f"{_named(operator)}: input {place} is left out")
    for weights, bias in _NEEDED_WITH.get(operator.name, ()):
        pair = operator.inputs[weights : weights + 1], operator.inputs[bias : bias + 1]
        if pair[1] == (-1,) != pair[0]:
            text = f"input {bias} is left out, and input {weights} is not"
            raise ModelError(f"{_named(operator)}: {text}")
    if len(operator.inputs) < _LEAST_INPUTS.get(operator.name, 0):
        raise ModelError(f"{_named(operator)}: has {len(operator.inputs)} inputs")
    radius = operator.options.get("Radius", 0)
    if not isinstance(radius, int) or not 0 <= radius <= _LARGEST_RADIUS:
        raise ModelError(f"{_named(operator)}: has radius {radius}")
    _check_numbers(operator)
    tensors = graph.tensors
    try:
        for index in (*operator.inputs, *operator.outputs):
            if index >= 0 and index not in seen:
                tensor = tensors[index]
                if tensor.type in _ZERO_POINTS:
                    _check_zero_points(tensor, operator)
                    check_tensor(tensor)
                seen.add(index)
        if operator.name in WITH_RULES:
            inputs, outputs = (
                [tensors[index] for index in indexes if index >= 0]
                for indexes in (operator.inputs, operator.outputs)
            )
            check_operator(operator.name, inputs, outputs)
    except LiteRTUnsupported as error:
        raise ModelError(f"{_named(operator)}: {error}") from error


def _named(operator: OperatorInfo) -> str:
    return f"operator {operator.index} ({operator.name})"


def _check_zero_points(tensor: TensorInfo, operator: OperatorInfo) -> None:
    low, high = _ZERO_POINTS[tensor.type]
    for point in tensor.quantization.zero_points:
        if not low <= point <= high:
            text = f"a zero point of {point}, of {tensor.type} {low} to {high} are legal"
            raise ModelError(f"{_named(operator)}: {text}")


def _check_numbers(operator: OperatorInfo) -> None:
    """Raise ModelError for options with which an operator ends the process."""
    name, options = operator.name, operator.options
    for option in _AT_LEAST_ONE.get(name, ()):
        number = options.get(option, 0)
        if not isinstance(number, int) or number < 1:
            text = f"{option} is {number}, expected at least 1"
            raise ModelError(f"{_named(operator)}: {text}")
    if name == "SPLIT" and options.get("NumSplits", 0) != len(operator.outputs):
        text = f"splits into {options.get('NumSplits', 0)}, and has {len(operator.outputs)} outputs"
        raise ModelError(f"{_named(operator)}: {text}")


def _check_repeats(graph: Graph, operator: OperatorInfo, data: memoryview) -> None:
    """Raise ModelError for a TILE whose result LiteRT would make room for with a wrong size."""
    if len(operator.inputs) != 2:
        return
    x, repeats = (graph.tensors[index] for index in operator.inputs)
    if not repeats.length or repeats.type not in ("INT32", "INT64"):
        return
    if math.prod(repeats.shape) != len(x.shape):
        raise ModelError(
            f"operator {operator.index} (TILE): {list(repeats.shape)} repeats for "
            f"{len(x.shape)} dimensions"
        )
    numbers = np.frombuffer(
        data[repeats.offset : repeats.offset + repeats.length], repeats.type.lower()
    ).tolist()
    elements = math.prod(x.shape) * math.prod(numbers)
    if any(number < 0 for number in numbers) or elements >= _MOST_ELEMENTS:
        raise ModelError(f"operator {operator.index} (TILE): repeats {numbers} times")


def _overruns(graph: Graph, operator: OperatorInfo) -> bool:
    """Returns whether LiteRT writes beyond a tensor: SVDF takes its state for one of 16 bits."""
    state = operator.inputs[4] if operator.name == "SVDF" and len(operator.inputs) > 4 else -1
    return state >= 0 and graph.tensors[state].type == "INT8"


def _remedy(name: str, why_not: str) -> str:
    """Returns why an operator is run by nobody here, and what would run it."""
    if name == _EDGE_TPU:
        return "compiled for an Edge TPU; load the file that it was compiled from"
    if name.startswith(_FLEX):
        return "an operator of TensorFlow, which needs the package tensorflow; convert without it"
    if name in (_HANDLE, _TABLE):
        told = f", and cannot be states: {why_not}" if name == _HANDLE else ""
        return f"its values would stay in LiteRT from one call to the next{told}"
    if name == "SVDF":
        return "its state has 8 bits, and LiteRT writes 16"
    return "a custom operator, which needs the library of its maker"


def _port(port: TflitePort, graph: Graph, shape: Shape) -> WholePort:
    info = graph.tensors[port.tensor]
    own = _OWN.get(info.type)
    if own is None:
        return WholePort(port.name, _operand(port.tensor, info, shape))
    return WholePort(port.name, Tensor(type=own_type(own), shape=shape))


def _operand(index: int, info: TensorInfo, shape: Shape) -> Tensor:
    if info.type not in _KINDS:
        raise ModelError(f"{labeled(index, info)} is {info.type}, which no operand can hold")
    type, default = _KINDS[info.type]
    if not default:
        return Tensor(type=type, shape=shape)
    scales, zero_points = info.quantization.scales, info.quantization.zero_points
    zero_point = zero_points[0] if zero_points and info.type != "INT16" else 0
    scale = scales[0] if scales and scales[0] > 0 else default
    return Tensor(type=type, shape=shape, scale=scale, zero_point=zero_point)


def _states(file: File, graph: Graph) -> list[State]:
    """The variable tensors of the graph; raises ModelError for one of a part."""
    for other in file.graphs:
        if other is not graph and any(info.is_variable for info in other.tensors):
            raise ModelError("has a state inside a part of it, which no stream can carry")
    return [
        State(info.name or f"state{index}", _operand(index, info, info.shape), index)
        for index, info in enumerate(graph.tensors)
        if info.is_variable
    ]


def _with_main(file: File, content: memoryview, number: int) -> bytes:
    """The file with another subgraph as its main one: both change places.

    Raises ModelError where operators refer to one of them by its number.
    """
    for graph in file.graphs:
        for operator in graph.operators:
            parts = {operator.options.get(name) for name in _CONTROL}
            if parts & {0, number} or operator.name in ("CALL", "CALL_ONCE"):
                raise ModelError(f"operator {operator.index} refers to a subgraph that would move")
    data = bytearray(content)
    (root,) = struct.unpack_from("<I", data, 0)
    vector = _vector(data, root, 2)
    places = [vector + 4 + 4 * index for index in (0, number)]
    targets = [place + struct.unpack_from("<I", data, place)[0] for place in places]
    for place, target in zip(places, reversed(targets), strict=True):
        if target <= place:
            raise ModelError(f"subgraph {number} cannot become the main one")
        struct.pack_into("<I", data, place, target - place)
    return bytes(data)


def _vector(data: bytearray, table: int, field: int) -> int:
    """Returns where a table's vector begins, by the layout of flatbuffers."""
    (back,) = struct.unpack_from("<i", data, table)
    (offset,) = struct.unpack_from("<H", data, table - back + 4 + 2 * field)
    place = table + offset
    return int(place + struct.unpack_from("<I", data, place)[0])
