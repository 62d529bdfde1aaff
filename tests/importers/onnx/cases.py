"""Graphs that are translated: name, graph, and the operations that come out, if that matters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.importers.onnx.files import BOOL, FLOAT, HALF, INT8, INT64, UINT8, Port, message, node

__all__ = ["CASES", "QUANTIZED"]

CASES: dict[str, Any] = {}
"""Graphs of floats: results agree but for rounding."""
QUANTIZED: dict[str, Any] = {}
"""Graphs of pairs of QuantizeLinear and DequantizeLinear: results are at most one step apart."""

_RNG = np.random.default_rng(0)
Floats = npt.NDArray[np.float32]


def f(*shape: int) -> Floats:
    return _RNG.standard_normal(shape).astype(np.float32)


def i(*numbers: int) -> npt.NDArray[np.int64]:
    return np.array(numbers, np.int64)


def case(
    name: str,
    nodes: Sequence[Any],
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    *,
    opset: int = 17,
    **constants: Any,
) -> None:
    CASES[name] = message(nodes, inputs, outputs, constants, opset=opset)


def unary(
    name: str, type: str, shape: Sequence[int] = (2, 3), *before: str, **options: Any
) -> None:
    """One operator behind others."""
    names = ["x", *(f"v{n}" for n in range(len(before))), "y"]
    chain = [
        node(each, [names[n]], [names[n + 1]], **(options if each == type else {}))
        for n, each in enumerate([*before, type])
    ]
    case(name, chain, [("x", FLOAT, shape)], [("y", FLOAT, ["d"] * len(shape))])


IMAGE: list[Port] = [("x", FLOAT, (1, 3, 9, 8))]
RESULT: list[Port] = [("y", FLOAT, ("a", "b", "c", "d"))]


def joined_layers() -> None:
    case(
        "conv",
        [
            node("Conv", ["x", "w", "b"], ["c"], strides=[2, 1], pads=[1, 0, 1, 2]),
            node("Relu", ["c"], ["y"]),
        ],
        IMAGE,
        RESULT,
        w=f(4, 3, 3, 3),
        b=f(4),
    )
    case(
        "conv with a normalization and an activation",
        [
            node("Conv", ["x", "w"], ["c"], auto_pad="SAME_LOWER", strides=[2, 2]),
            node("BatchNormalization", ["c", "g", "b", "m", "v"], ["n"]),
            node("Clip", ["n", "low", "high"], ["y"]),
        ],
        IMAGE,
        RESULT,
        w=f(4, 3, 3, 3),
        g=f(4),
        b=f(4),
        m=f(4),
        v=abs(f(4)) + 0.1,
        low=np.float32(0),
        high=np.float32(6),
    )


def convolutions() -> None:
    case(
        "conv of depth",
        [node("Conv", ["x", "w", "b"], ["y"], group=3, dilations=[2, 2], pads=[2, 2, 2, 2])],
        IMAGE,
        RESULT,
        w=f(6, 1, 3, 3),
        b=f(6),
    )
    case(
        "conv in groups",
        [node("Conv", ["x", "w"], ["y"], group=2, pads=[1, 1, 1, 1])],
        [("x", FLOAT, (1, 4, 8, 8))],
        RESULT,
        w=f(6, 2, 3, 3),
    )
    case(
        "conv transposed",
        [node("ConvTranspose", ["x", "w", "b"], ["y"], strides=[2, 2], pads=[1, 1, 1, 1])],
        [("x", FLOAT, (1, 4, 5, 6))],
        RESULT,
        w=f(4, 3, 3, 3),
        b=f(3),
    )
    case(
        "conv of halves",
        [node("Conv", ["x", "w"], ["y"])],
        [("x", HALF, (1, 3, 4, 4))],
        [("y", HALF, (1, 4, 4, 4))],
        w=f(4, 3, 1, 1).astype(np.float16),
    )


def other_layers() -> None:
    case(
        "gemm",
        [node("Gemm", ["x", "w", "b"], ["y"], alpha=0.5, beta=2.0, transB=1)],
        [("x", FLOAT, (2, 4))],
        [("y", FLOAT, (2, 5))],
        w=f(5, 4),
        b=f(1, 5),
    )
    case(
        "matmul",
        [node("MatMul", ["x", "w"], ["m"]), node("Add", ["m", "b"], ["y"])],
        [("x", FLOAT, (2, 3, 4))],
        [("y", FLOAT, (2, 3, 5))],
        w=f(4, 5),
        b=f(5),
    )
    case(
        "pools",
        [
            node("MaxPool", ["x"], ["a"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
            node("AveragePool", ["a"], ["b"], kernel_shape=[2, 2], pads=[1, 1, 0, 0]),
            node("GlobalAveragePool", ["b"], ["c"]),
            node("Flatten", ["c"], ["y"]),
            node("GlobalMaxPool", ["x"], ["z"]),
        ],
        IMAGE,
        [("y", FLOAT, (1, 3)), ("z", FLOAT, (1, 3, 1, 1))],
    )
    case(
        "constants in the graph",
        [
            node("Constant", [], ["high"], value_float=6.0),
            node("Conv", ["x", "w"], ["c"]),
            node("Clip", ["c", "", "high"], ["y"]),
        ],
        IMAGE,
        RESULT,
        w=f(4, 3, 1, 1),
    )


def resizing() -> None:
    for form in ("half_pixel", "asymmetric", "align_corners"):
        for scale in (2.0, 0.5):
            for mode, rounding in (("linear", "floor"), ("nearest", "round_prefer_floor")):
                if (mode, form, scale) == ("nearest", "align_corners", 0.5):
                    continue
                case(
                    f"resize {mode} {form} {scale}",
                    [
                        node(
                            "Resize",
                            ["x", "", "s"],
                            ["y"],
                            mode=mode,
                            coordinate_transformation_mode=form,
                            nearest_mode=rounding,
                        )
                    ],
                    [("x", FLOAT, (1, 2, 4, 6))],
                    [("y", FLOAT, ("a", "b", "c", "d"))],
                    s=np.array([1, 1, scale, scale], np.float32),
                )


def numbers() -> None:
    for type in ("Relu", "Sigmoid", "Tanh", "HardSwish", "Abs", "Exp", "Floor", "Neg", "Sin"):
        unary(type, type)
    for type in ("Elu", "LeakyRelu", "HardSigmoid", "Identity", "LogSoftmax"):
        unary(type, type)
    for type in ("Log", "Sqrt", "Reciprocal"):
        unary(type, type, (2, 3), "Exp")
    for axis in (1, -1):
        unary(f"Softmax {axis}", "Softmax", (2, 3, 4), axis=axis)
    for type in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum"):
        case(
            type,
            [node(type, ["x", "c"], ["y"])],
            [("x", FLOAT, (2, 3, 4))],
            [("y", FLOAT, (2, 3, 4))],
            c=f(3, 1),
        )
    pair = [("x", FLOAT, (2, 3)), ("z", FLOAT, (2, 3))]
    for type in ("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"):
        case(type, [node(type, ["x", "z"], ["y"])], pair, [("y", BOOL, (2, 3))])
    case(
        "logic",
        [
            node("Greater", ["x", "z"], ["a"]),
            node("Less", ["x", "k"], ["b"]),
            node("And", ["a", "b"], ["c"]),
            node("Not", ["c"], ["d"]),
            node("Or", ["d", "a"], ["e"]),
            node("Where", ["e", "x", "z"], ["y"]),
        ],
        pair,
        [("y", FLOAT, (2, 3))],
        k=np.array([0.5], np.float32),
    )
    case(
        "clip to odd bounds",
        [node("Clip", ["x", "a", "b"], ["y"])],
        [("x", FLOAT, (2, 3))],
        [("y", FLOAT, (2, 3))],
        a=np.float32(-0.3),
        b=np.float32(0.4),
    )
    case(
        "normalization alone",
        [node("BatchNormalization", ["x", "g", "b", "m", "v"], ["y"])],
        [("x", FLOAT, (2, 3, 4, 4))],
        [("y", FLOAT, (2, 3, 4, 4))],
        g=f(3),
        b=f(3),
        m=f(3),
        v=abs(f(3)) + 0.1,
    )
    case(
        "casts",
        [node("Cast", ["x"], ["a"], to=6), node("Cast", ["a"], ["y"], to=1)],
        [("x", FLOAT, (2, 3))],
        [("y", FLOAT, (2, 3))],
    )


def shapes() -> None:
    case(
        "shapes",
        [
            node("Reshape", ["x", "s"], ["a"]),
            node("Transpose", ["a"], ["b"], perm=[1, 0, 2]),
            node("Unsqueeze", ["b", "u"], ["c"]),
            node("Squeeze", ["c", "u"], ["d"]),
            node("Concat", ["d", "d"], ["y"], axis=-1),
        ],
        [("x", FLOAT, (4, 6))],
        [("y", FLOAT, (3, 2, 8))],
        s=i(2, -1, 4),
        u=i(0),
    )
    case(
        "shapes that are computed",
        [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "zero"], ["n"]),
            node("Unsqueeze", ["n", "u"], ["n1"]),
            node("Concat", ["n1", "rest"], ["t"], axis=0),
            node("Reshape", ["x", "t"], ["y"]),
        ],
        [("x", FLOAT, (2, 3, 4))],
        [("y", FLOAT, (2, 12))],
        zero=np.array(0, np.int64),
        u=i(0),
        rest=i(-1),
    )


def movement() -> None:
    case(
        "slice",
        [node("Slice", ["x", "a", "b", "c", "d"], ["y"])],
        [("x", FLOAT, (6, 8))],
        [("y", FLOAT, (2, 6))],
        a=i(1, -7),
        b=i(2**62, -1),
        c=i(0, 1),
        d=i(3, 1),
    )
    case(
        "split",
        [node("Split", ["x"], ["a", "b"], axis=1), node("Sub", ["b", "a"], ["y"])],
        [("x", FLOAT, (2, 6))],
        [("y", FLOAT, (2, 3))],
    )
    case(
        "pad, gather and tile",
        [
            node("Pad", ["x", "p", "v"], ["a"]),
            node("Gather", ["a", "i"], ["b"], axis=1),
            node("Tile", ["b", "r"], ["y"]),
        ],
        [("x", FLOAT, (2, 3))],
        [("y", FLOAT, (8, 9))],
        p=i(1, 2, 1, 2),
        v=np.float32(1.5),
        i=i(0, -1, 2),
        r=i(2, 3),
    )
    case(
        "blocks",
        [
            node("DepthToSpace", ["x"], ["y"], blocksize=2),
            node("SpaceToDepth", ["y"], ["z"], blocksize=2),
        ],
        [("x", FLOAT, (1, 8, 2, 3))],
        [("y", FLOAT, (1, 2, 4, 6)), ("z", FLOAT, (1, 8, 2, 3))],
    )


def reductions() -> None:
    for type in ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"):
        case(
            type,
            [
                node(type, ["x"], ["a"], axes=[1, -1], keepdims=0),
                node(type, ["x"], ["b"], axes=[0]),
            ],
            [("x", FLOAT, (2, 3, 4))],
            [("a", FLOAT, (2,)), ("b", FLOAT, (1, 3, 4))],
        )
    case(
        "sums and extremes",
        [
            node("ReduceSum", ["x", "axes"], ["a"]),
            node("ArgMax", ["x"], ["b"], axis=1, keepdims=0),
            node("ArgMin", ["x"], ["c"], axis=-1),
        ],
        [("x", FLOAT, (2, 3, 4))],
        [("a", FLOAT, (2, 1, 4)), ("b", INT64, (2, 4)), ("c", INT64, (2, 3, 1))],
        axes=i(1),
    )


def recurrent() -> None:
    case(
        "lstm",
        [node("LSTM", ["x", "w", "r", "b", "", "h", "c"], ["y", "yh", "yc"], hidden_size=4)],
        [("x", FLOAT, (3, 2, 5))],
        [("y", FLOAT, (3, 1, 2, 4)), ("yh", FLOAT, (1, 2, 4)), ("yc", FLOAT, (1, 2, 4))],
        w=f(1, 16, 5),
        r=f(1, 16, 4),
        b=f(1, 32),
        h=f(1, 2, 4),
        c=f(1, 2, 4),
    )
    case(
        "lstm with peepholes",
        [node("LSTM", ["x", "w", "r", "", "", "", "", "p"], ["", "yh"], hidden_size=4)],
        [("x", FLOAT, (3, 2, 5))],
        [("yh", FLOAT, (1, 2, 4))],
        w=f(1, 16, 5),
        r=f(1, 16, 4),
        p=f(1, 12),
    )


def there_and_back(name: str) -> list[Any]:
    """Quantize a value and back: name_q and name_d."""
    parameters = [f"{name}_s", f"{name}_z"]
    return [
        node("QuantizeLinear", [name, *parameters], [f"{name}_q"]),
        node("DequantizeLinear", [f"{name}_q", *parameters], [f"{name}_d"]),
    ]


def quantized(name: str, dtype: npt.DTypeLike, *, per_channel: bool) -> None:
    shift = 128 if np.dtype(dtype) == np.int8 else 0
    scale = np.float32(0.02)
    scales = abs(f(4)) * np.float32(0.01) + np.float32(0.001) if per_channel else np.float32(0.01)
    shape = (4,) if per_channel else ()
    QUANTIZED[f"conv {name} {'per channel' if per_channel else 'whole'}"] = message(
        [
            *there_and_back("x"),
            node("DequantizeLinear", ["w", "w_s", "w_z"], ["wd"], axis=0),
            node("DequantizeLinear", ["b", "b_s"], ["bd"], axis=0),
            node("Conv", ["x_d", "wd", "bd"], ["c"], pads=[1, 1, 1, 1]),
            *there_and_back("c"),
            node("MaxPool", ["c_d"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
            node("Reshape", ["p", "shape"], ["y"]),
        ],
        [("x", FLOAT, (1, 3, 6, 6))],
        [("y", FLOAT, (1, 36))],
        {
            "x_s": scale,
            "x_z": np.array(120 - shift, dtype),
            "w": _RNG.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8),
            "w_s": scales,
            "w_z": np.zeros(shape, np.int8),
            "b": _RNG.integers(-500, 500, 4).astype(np.int32),
            "b_s": scale * scales,
            "c_s": np.float32(0.05),
            "c_z": np.array(100 - shift, dtype),
            "shape": i(1, -1),
        },
    )


def quantized_others(name: str, element: int, dtype: npt.DTypeLike) -> None:
    shift = 128 if np.dtype(dtype) == np.int8 else 0
    parameters = {
        "x_s": np.float32(0.02),
        "x_z": np.array(120 - shift, dtype),
        "z_s": np.float32(0.03),
        "z_z": np.array(128 - shift, dtype),
        "r_s": np.float32(0.02),
        "r_z": np.array(0 - shift, dtype),
    }
    QUANTIZED[f"add {name}"] = message(
        [
            *there_and_back("x"),
            *there_and_back("z"),
            node("Add", ["x_d", "z_d"], ["a"]),
            node("Relu", ["a"], ["r"]),
            *there_and_back("r"),
            node("Identity", ["r_d"], ["y"]),
        ],
        [("x", FLOAT, (1, 3, 6, 6)), ("z", FLOAT, (1, 3, 6, 6))],
        [("y", FLOAT, (1, 3, 6, 6))],
        parameters,
    )
    QUANTIZED[f"hard swish {name}"] = message(
        [
            *there_and_back("x"),
            node("HardSwish", ["x_d"], ["r"]),
            *there_and_back("r"),
            node("Identity", ["r_d"], ["y"]),
        ],
        [("x", FLOAT, (2, 3))],
        [("y", FLOAT, (2, 3))],
        {key: parameters[key] for key in ("x_s", "x_z", "r_s", "r_z")},
    )
    QUANTIZED[f"gemm {name}"] = message(
        [
            node("DequantizeLinear", ["x", "x_s", "x_z"], ["d"]),
            node("DequantizeLinear", ["w", "w_s"], ["wd"]),
            node("Gemm", ["d", "wd"], ["g"]),
            node("QuantizeLinear", ["g", "z_s", "z_z"], ["y"]),
        ],
        [("x", element, (2, 5))],
        [("y", element, (2, 3))],
        {
            **{key: parameters[key] for key in ("x_s", "x_z", "z_s", "z_z")},
            "w": _RNG.integers(-127, 128, (5, 3)).astype(np.int8),
            "w_s": np.float32(0.01),
        },
    )


for build in (
    joined_layers,
    convolutions,
    other_layers,
    resizing,
    numbers,
    shapes,
    movement,
    reductions,
    recurrent,
):
    build()
for word, number, kind in (("uint8", UINT8, np.uint8), ("int8", INT8, np.int8)):
    quantized(word, kind, per_channel=False)
    quantized(word, kind, per_channel=True)
    quantized_others(word, number, kind)
