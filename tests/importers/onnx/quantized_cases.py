"""Quantized networks in both notations of ONNX, and in the operators that quantize as they run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.importers.onnx.files import FLOAT, INT8, UINT8, Port, message, node, onnx

__all__ = ["DYNAMIC", "STATIC"]

STATIC: dict[str, Any] = {}
"""Results are at most one step apart; their scale is 0.05 where they are floats."""
DYNAMIC: dict[str, Any] = {}
"""Floats, which were quantized on the way by what they were."""

_RNG = np.random.default_rng(3)
_VENDOR = "com.microsoft"
_IMAGE = (1, 4, 6, 6)
_SCALE, _STEP = np.float32(0.02), np.float32(0.05)
Constants = dict[str, Any]


def whole(*shape: int, dtype: npt.DTypeLike = np.int8) -> npt.NDArray[Any]:
    info = np.iinfo(dtype)
    return _RNG.integers(info.min + 1, info.max + 1, shape).astype(dtype)


def graph(
    nodes: Sequence[Any], inputs: Sequence[Port], outputs: Sequence[Port], constants: Constants
) -> Any:
    """A message that may have operators of the vendor."""
    made = message(nodes, inputs, outputs, constants)
    made.opset_import.append(onnx.helper.make_opsetid(_VENDOR, 1))
    return made


def vendor(type: str, inputs: Sequence[str], outputs: Sequence[str], **options: Any) -> Any:
    return node(type, inputs, outputs, domain=_VENDOR, **options)


def parameters(dtype: npt.DTypeLike, *names: str) -> Constants:
    """Scales and zero points, `x_s` and `x_z` for `x`."""
    shift = 128 if np.dtype(dtype) == np.int8 else 0
    found: Constants = {}
    for place, name in enumerate(names):
        found[f"{name}_s"] = _STEP if name == "y" else np.float32(_SCALE * (1 + place / 4))
        found[f"{name}_z"] = np.array(120 + place - shift, dtype)
    return found


def static(name: str, nodes: Sequence[Any], shape: Sequence[int], constants: Constants) -> None:
    """Operators between `x_q`, of bytes, and `y_q`; the values outside are bytes as well."""
    kind = np.dtype(constants["x_z"].dtype)
    element = INT8 if kind == np.int8 else UINT8
    STATIC[f"{name} {kind.name}"] = graph(
        nodes, [("x_q", element, shape)], [("y_q", element, ["d"] * len(shape))], constants
    )


def linear_layers(dtype: npt.DTypeLike) -> None:
    common = parameters(dtype, "x", "y")
    for word, scales in (
        ("", _SCALE),
        (" per channel", abs(_RNG.random(6)).astype(np.float32) / 9),
    ):
        scales = np.asarray(scales, np.float32)
        zeros = np.zeros(scales.shape, np.int8)
        static(
            f"QLinearConv{word}",
            [
                node(
                    "QLinearConv",
                    ["x_q", "x_s", "x_z", "w", "w_s", "w_z", "y_s", "y_z", "b"],
                    ["y_q"],
                    pads=[1, 1, 1, 1],
                    strides=[2, 1],
                )
            ],
            _IMAGE,
            {
                **common,
                "w": whole(6, 4, 3, 3),
                "w_s": scales / 8,
                "w_z": zeros,
                "b": _RNG.integers(-900, 900, 6).astype(np.int32),
            },
        )
        static(
            f"QGemm{word}",
            [
                vendor(
                    "QGemm",
                    ["x_q", "x_s", "x_z", "w", "w_s", "w_z", "b", "y_s", "y_z"],
                    ["y_q"],
                    transB=1,
                )
            ],
            (3, 5),
            {
                **common,
                "w": whole(6, 5),
                "w_s": scales / 2,
                "w_z": zeros,
                "b": _RNG.integers(-900, 900, 6).astype(np.int32),
            },
        )
        static(
            f"QLinearMatMul{word}",
            [
                node(
                    "QLinearMatMul",
                    ["x_q", "x_s", "x_z", "w", "w_s", "w_z", "y_s", "y_z"],
                    ["y_q"],
                )
            ],
            (2, 3, 5),
            {**common, "w": whole(5, 6), "w_s": scales / 2, "w_z": zeros},
        )


def linear_others(dtype: npt.DTypeLike) -> None:
    common = parameters(dtype, "x", "y", "z")
    x, y, z = (["x_q", "x_s", "x_z"], ["y_s", "y_z"], ["c", "z_s", "z_z"])
    constant = {"c": whole(4, 1, 1, dtype=dtype)}
    for type in ("QLinearAdd", "QLinearMul"):
        static(type, [vendor(type, [*x, *z, *y], ["y_q"])], _IMAGE, {**common, **constant})
    for type, options in (
        ("QLinearSigmoid", {}),
        ("QLinearLeakyRelu", {"alpha": 0.2}),
        ("QLinearGlobalAveragePool", {}),
        ("QLinearAveragePool", {"kernel_shape": [2, 2]}),
    ):
        static(type, [vendor(type, [*x, *y], ["y_q"], **options)], _IMAGE, common)
    soft = [vendor("QLinearSoftmax", [*x, *y], ["y_q"], opset=13, axis=-1)]
    static("QLinearSoftmax", soft, (2, 5), {**common, "y_s": np.float32(1 / 256)})
    joined = [
        vendor("QLinearAdd", [*x, *z, "z_s", "z_z"], ["v"]),
        vendor("QLinearConcat", [*y, *x, "v", "z_s", "z_z"], ["y_q"], axis=1),
    ]
    static("QLinearConcat", joined, _IMAGE, {**common, **constant})


def _back(name: str) -> Any:
    return node("DequantizeLinear", [f"{name}_q", f"{name}_s", f"{name}_z"], [name])


def _there(name: str) -> Any:
    return node("QuantizeLinear", [name, f"{name}_s", f"{name}_z"], [f"{name}_q"])


def pairs(dtype: npt.DTypeLike) -> None:
    """Layers between pairs whose weights, biases or zero points are unusual."""
    common = parameters(dtype, "x", "y")
    weights = node("DequantizeLinear", ["w_q", "w_s", "w_z"], ["w"], axis=0)
    scales = abs(_RNG.random(6)).astype(np.float32) / 50 + np.float32(0.001)
    conv = node("Conv", ["x", "w", "b"], ["y"], pads=[1, 1, 1, 1])
    static(
        "conv with a bias of floats",
        [_back("x"), weights, conv, _there("y")],
        _IMAGE,
        {
            **common,
            "w_q": whole(6, 4, 3, 3),
            "w_s": scales,
            "w_z": np.zeros(6, np.int8),
            "b": _RNG.standard_normal(6).astype(np.float32),
        },
    )
    static(
        "conv of unsigned weights per channel",
        [_back("x"), weights, node("Conv", ["x", "w"], ["y"]), _there("y")],
        _IMAGE,
        {
            **common,
            "w_q": whole(6, 4, 2, 2, dtype=np.uint8),
            "w_s": scales,
            "w_z": np.full(6, 128, np.uint8),
        },
    )


def other_pairs(dtype: npt.DTypeLike) -> None:
    """Layers and values between pairs that are not what a convolution usually has."""
    common = parameters(dtype, "x", "y")
    weights = node("DequantizeLinear", ["w_q", "w_s", "w_z"], ["w"], axis=0)
    static(
        "conv of depth with asymmetric weights",
        [_back("x"), weights, node("Conv", ["x", "w"], ["y"], group=4), _there("y")],
        _IMAGE,
        {
            **common,
            "w_q": whole(4, 1, 3, 3, dtype=np.uint8),
            "w_s": np.float32(0.01),
            "w_z": np.uint8(100),
        },
    )
    static(
        "transposed conv",
        [
            _back("x"),
            node("DequantizeLinear", ["w_q", "w_s", "w_z"], ["w"]),
            node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2]),
            _there("y"),
        ],
        _IMAGE,
        {**common, "w_q": whole(4, 3, 2, 2), "w_s": np.float32(0.01), "w_z": np.int8(0)},
    )
    static(
        "bytes that are read in another scale",
        [
            _back("x"),
            node("QuantizeLinear", ["x", "x_s", "x_z"], ["v_q"]),
            node("DequantizeLinear", ["v_q", "y_s", "y_z"], ["y"]),
            _there("y"),
        ],
        _IMAGE,
        common,
    )


def blocks() -> None:
    weights = node("DequantizeLinear", ["w_q", "w_s", "w_z"], ["w"], axis=0, block_size=3)
    made = message(
        [weights, node("MatMul", ["x", "w"], ["y"])],
        [("x", FLOAT, (2, 8))],
        [("y", FLOAT, (2, 6))],
        {
            "w_q": whole(8, 6),
            "w_s": _RNG.random((3, 6)).astype(np.float32) / 50,
            "w_z": whole(3, 6),
        },
        opset=21,
    )
    made.ir_version = 10
    DYNAMIC["weights with scales per block"] = made


def dynamic() -> None:
    ports = [("x", FLOAT, (3, 8))], [("y", FLOAT, (3, 6))]
    tail = [
        node("Cast", ["sums"], ["real"], to=FLOAT),
        node("Mul", ["x_scale", "w_s"], ["scales"]),
        node("Mul", ["real", "scales"], ["y"]),
    ]
    quantize = node("DynamicQuantizeLinear", ["x"], ["x_q", "x_scale", "x_zero"])
    constants = {"w": whole(8, 6), "w_z": np.int8(3), "w_s": np.float32(0.01)}
    product = node("MatMulInteger", ["x_q", "w", "x_zero", "w_z"], ["sums"])
    DYNAMIC["MatMulInteger"] = message([quantize, product, *tail], *ports, constants)
    DYNAMIC["MatMulInteger per channel"] = message(
        [quantize, product, *tail],
        *ports,
        {**constants, "w_z": whole(6), "w_s": _RNG.random(6).astype(np.float32) / 50},
    )
    image: list[Port] = [("x", FLOAT, _IMAGE)]
    conv = node("ConvInteger", ["x_q", "w", "x_zero", "w_z"], ["sums"], pads=[1, 1, 1, 1])
    DYNAMIC["ConvInteger"] = message(
        [quantize, conv, *tail],
        image,
        [("y", FLOAT, ("a", "b", "c", "d"))],
        {"w": whole(5, 4, 3, 3), "w_z": np.int8(0), "w_s": np.float32(0.01)},
    )
    DYNAMIC["DynamicQuantizeLinear"] = message(
        [
            quantize,
            node("Cast", ["x_q"], ["r"], to=FLOAT),
            node("Mul", ["r", "x_scale"], ["y"]),
        ],
        [("x", FLOAT, (3, 6))],
        [("y", FLOAT, (3, 6)), ("x_scale", FLOAT, ()), ("x_zero", UINT8, ())],
    )


for kind in (np.uint8, np.int8):
    linear_layers(kind)
    linear_others(kind)
    pairs(kind)
    other_pairs(kind)
dynamic()
blocks()
