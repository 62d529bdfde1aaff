"""Networks of one layer: convolutions, dense layers, pools, resizing, recurrent ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.importers.tflite.elementwise_cases import tensor
from tests.importers.tflite.judge import Make, Network
from tests.importers.tflite_files import Op, T

PLAIN = ("FLOAT32", "UINT8", "INT8")


def weights(
    random: np.random.Generator, type: str, shape: Any, axis: int = 0, *, many: bool = False
) -> T:
    shape = tuple(int(n) for n in shape)
    if type == "FLOAT32":
        return T(type, shape, random.uniform(-1, 1, shape).astype(np.float32))
    count = shape[axis] if many else 1
    zero = 0 if type == "INT8" else 128
    data = random.integers(-127, 128, shape) + zero
    scales = tuple(float(np.float32(n)) for n in random.uniform(0.005, 0.02, count))
    return T(type, shape, data.astype(type.lower()), scales, (zero,) * count, axis)


def bias(random: np.random.Generator, type: str, scales: Any, size: int) -> T:
    if type == "FLOAT32":
        return weights(random, type, (size,))
    data = random.integers(-500, 500, size).astype(np.int32)
    return T("INT32", (size,), data, tuple(float(np.float32(0.05 * s)) for s in scales))


def layer(name: str, type: str, *, kind: str = "", many: bool = False, groups: int = 1) -> Make:
    """A convolution; `kind` is the type of its weights."""

    def make(random: np.random.Generator) -> Network:
        n, h, w, c = (int(n) for n in random.integers([1, 4, 4, 1], [3, 8, 8, 4]))
        k, s = int(random.integers(1, 4)), int(random.integers(1, 3))
        c *= groups
        dilation = 2 if s == 1 and groups == 1 and random.random() < 0.5 else 1
        reach = (k - 1) * dilation + 1
        same = bool(random.integers(0, 2))
        sizes = [-(-n // s) if same else (n - reach) // s + 1 for n in (h, w)]
        if min(sizes) < 1:
            same, sizes = True, [-(-n // s) for n in (h, w)]
        out = int(random.integers(1, 5)) * groups
        options = {
            "Padding": int(not same),
            "StrideW": s,
            "StrideH": s,
            "DilationWFactor": dilation,
            "DilationHFactor": dilation,
            "FusedActivationFunction": int(random.choice([0, 1, 3])),
        }
        if name == "DEPTHWISE_CONV_2D":
            out = c * (out % 2 + 1)
            options["DepthMultiplier"] = out // c
            filter = weights(random, kind or type, (1, k, k, out), 3, many=many)
            table = "DepthwiseConv2DOptions"
        else:
            shape = (out, k, k, c // groups)
            filter, table = weights(random, kind or type, shape, many=many), "Conv2DOptions"
        added = bias(random, type, filter.scales, out)
        tensors = [tensor(type, (n, h, w, c)), filter, added, tensor(type, (n, *sizes, out), 0.1)]
        tolerance = 0.2 if kind else 1e-5
        op = Op(name, (0, 1, 2), (3,), table, options)
        return Network(tensors, [op], tolerance=tolerance, low=-1, high=1)

    return make


def dense(type: str, *, kind: str = "", many: bool = False, keep: bool = False) -> Make:
    def make(random: np.random.Generator) -> Network:
        batch, size, units = (int(n) for n in random.integers(1, 9, 3))
        filter = weights(random, kind or type, (units, size), many=many)
        ahead = (2, batch) if keep else (batch,)
        shape, result = (*ahead, size), (*ahead, units)
        tensors = [
            tensor(type, shape),
            filter,
            bias(random, type, filter.scales, units),
            tensor(type, result, 0.1),
        ]
        options = {"KeepNumDims": keep, "FusedActivationFunction": int(random.choice([0, 1]))}
        op = Op("FULLY_CONNECTED", (0, 1, 2), (3,), "FullyConnectedOptions", options)
        tolerance = 0.2 if kind else 1e-5
        return Network(tensors, [op], tolerance=tolerance, low=-1, high=1)

    return make


def transposed(type: str, *, many: bool = False) -> Make:
    def make(random: np.random.Generator) -> Network:
        n, h, w, c = (int(n) for n in random.integers(1, 5, 4))
        k, s, out = 3, int(random.integers(1, 3)), int(random.integers(1, 4))
        same = bool(random.integers(0, 2))
        sizes = [n * s if same else (n - 1) * s + k for n in (h, w)]
        filter = weights(random, type, (out, k, k, c), many=many)
        result = (n, *sizes, out)
        tensors = [
            T("INT32", (4,), np.asarray(result, np.int32)),
            filter,
            tensor(type, (n, h, w, c)),
            tensor(type, result, 0.1),
            bias(random, type, filter.scales, out),
        ]
        options = {"Padding": int(not same), "StrideW": s, "StrideH": s}
        op = Op("TRANSPOSE_CONV", (0, 1, 2, 4), (3,), "TransposeConvOptions", options)
        return Network(tensors, [op], low=-1, high=1, step=int(type == "UINT8"))

    return make


def pool(name: str, type: str) -> Make:
    def make(random: np.random.Generator) -> Network:
        n, h, w, c = (int(n) for n in random.integers(3, 7, 4))
        k, s = int(random.integers(1, 4)), int(random.integers(1, 3))
        options = {
            "Padding": 0,
            "StrideW": s,
            "StrideH": s,
            "FilterWidth": k,
            "FilterHeight": k,
            "FusedActivationFunction": int(random.choice([0, 3])),
        }
        result = (n, -(-h // s), -(-w // s), c)
        tensors = [tensor(type, (n, h, w, c)), tensor(type, result)]
        return Network(tensors, [Op(name, (0,), (1,), "Pool2DOptions", options)])

    return make


def resize(name: str, type: str, align: bool, half: bool) -> Make:
    def make(random: np.random.Generator) -> Network:
        n, h, w, c, height, width = (int(n) for n in random.integers(2, 7, 6))
        table = {
            "RESIZE_BILINEAR": "ResizeBilinearOptions",
            "RESIZE_NEAREST_NEIGHBOR": "ResizeNearestNeighborOptions",
        }[name]
        size = T("INT32", (2,), np.asarray([height, width], np.int32))
        tensors = [tensor(type, (n, h, w, c)), size, tensor(type, (n, height, width, c))]
        options = {"AlignCorners": align, "HalfPixelCenters": half}
        step = int(name == "RESIZE_BILINEAR")
        return Network(tensors, [Op(name, (0, 1), (2,), table, options)], step=step)

    return make


def recurrent(name: str, *, kind: str = "FLOAT32") -> Make:
    def make(random: np.random.Generator) -> Network:
        batch, size, units, time = (int(n) for n in random.integers(1, 5, 4))
        shape = (batch, size) if name == "RNN" else (batch, time, size)
        result = (*shape[:-1], units)
        tensors = [
            T("FLOAT32", shape),
            weights(random, kind, (units, size)),
            weights(random, kind, (units, units)),
            weights(random, "FLOAT32", (units,)),
            T("FLOAT32", (batch, units), variable=True),
            T("FLOAT32", result),
        ]
        table = "RNNOptions" if name == "RNN" else "SequenceRNNOptions"
        op = Op(name, (0, 1, 2, 3, 4), (5,), table, {"FusedActivationFunction": 4})
        return Network(tensors, [op], tolerance=0.1 if kind != "FLOAT32" else 1e-5)

    return make


def memory(name: str, *, kind: str = "FLOAT32") -> Make:
    """An LSTM with all four gates and nothing else."""

    def make(random: np.random.Generator) -> Network:
        batch, size, units, time = (int(n) for n in random.integers(1, 5, 4))
        shape = (batch, size) if name == "LSTM" else (batch, time, size)
        tensors = [T("FLOAT32", shape)]
        tensors += [weights(random, kind, (units, size)) for _ in range(4)]
        tensors += [weights(random, kind, (units, units)) for _ in range(4)]
        tensors += [weights(random, "FLOAT32", (units,)) for _ in range(4)]
        tensors += [T("FLOAT32", (batch, units), variable=True)] * 2
        tensors += [T("FLOAT32", (*shape[:-1], units))]
        inputs = (*range(9), -1, -1, -1, *range(9, 13), -1, -1, 13, 14, -1, -1, -1, -1)
        table = "LSTMOptions" if name == "LSTM" else "UnidirectionalSequenceLSTMOptions"
        op = Op(name, inputs, (15,), table, {"FusedActivationFunction": 4})
        return Network(tensors, [op], tolerance=0.1 if kind != "FLOAT32" else 1e-5)

    return make


def both_ways(*, merge: bool) -> Make:
    def make(random: np.random.Generator) -> Network:
        batch, size, units, time = (int(n) for n in random.integers(1, 5, 4))
        half = [
            weights(random, "FLOAT32", (units, size)),
            weights(random, "FLOAT32", (units, units)),
            weights(random, "FLOAT32", (units,)),
            T("FLOAT32", (batch, units), variable=True),
        ]
        results = [T("FLOAT32", (batch, time, units * (1 + merge)))] * (2 - merge)
        tensors = [T("FLOAT32", (batch, time, size)), *half, *half, *results]
        options = {"FusedActivationFunction": 4, "MergeOutputs": merge}
        where = tuple(range(9, 9 + len(results)))
        name = "BIDIRECTIONAL_SEQUENCE_RNN"
        op = Op(name, (*range(9), -1, -1, -1), where, f"{_OPTIONS[name]}", options)
        return Network(tensors, [op])

    return make


_OPTIONS = {"BIDIRECTIONAL_SEQUENCE_RNN": "BidirectionalSequenceRNNOptions"}
CASES: dict[str, Make] = {
    **{
        f"{name} {type}": layer(name, type)
        for name in ("CONV_2D", "DEPTHWISE_CONV_2D")
        for type in PLAIN
    },
    **{
        f"{name} INT8 per channel": layer(name, "INT8", many=True)
        for name in ("CONV_2D", "DEPTHWISE_CONV_2D")
    },
    **{
        f"{name} FLOAT32 with weights of INT8": layer(name, "FLOAT32", kind="INT8", many=True)
        for name in ("CONV_2D", "DEPTHWISE_CONV_2D")
    },
    "CONV_2D FLOAT32 in groups": layer("CONV_2D", "FLOAT32", groups=2),
    **{f"FULLY_CONNECTED {type}": dense(type) for type in PLAIN},
    "FULLY_CONNECTED INT8 per channel": dense("INT8", many=True),
    "FULLY_CONNECTED FLOAT32 of rank 3": dense("FLOAT32", keep=True),
    "FULLY_CONNECTED FLOAT32 with weights of INT8": dense("FLOAT32", kind="INT8"),
    **{f"TRANSPOSE_CONV {type}": transposed(type) for type in PLAIN},
    "TRANSPOSE_CONV INT8 per channel": transposed("INT8", many=True),
    **{
        f"{name} {type}": pool(name, type)
        for name in ("AVERAGE_POOL_2D", "MAX_POOL_2D")
        for type in PLAIN
    },
    "L2_POOL_2D FLOAT32": pool("L2_POOL_2D", "FLOAT32"),
    **{
        f"{name} {type} {way}": resize(name, type, *ways)
        for name in ("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR")
        for type in PLAIN
        for way, ways in [("", (False, False)), ("aligned", (True, False)), ("half", (False, True))]
    },
    **{f"{name} FLOAT32": recurrent(name) for name in ("RNN", "UNIDIRECTIONAL_SEQUENCE_RNN")},
    "RNN with weights of INT8": recurrent("RNN", kind="INT8"),
    **{f"{name} FLOAT32": memory(name) for name in ("LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM")},
    "LSTM with weights of INT8": memory("LSTM", kind="INT8"),
    "BIDIRECTIONAL_SEQUENCE_RNN FLOAT32": both_ways(merge=False),
    "BIDIRECTIONAL_SEQUENCE_RNN FLOAT32 merged": both_ways(merge=True),
}
