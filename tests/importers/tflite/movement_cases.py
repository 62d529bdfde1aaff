"""Networks of one operator that moves numbers or reduces along axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.importers.tflite.elementwise_cases import shape_of, tensor
from tests.importers.tflite.judge import Make, Network
from tests.importers.tflite_files import Op, T

PLAIN = ("FLOAT32", "UINT8", "INT8")
NUMBERS = (*PLAIN, "INT32")
ANY = (*NUMBERS, "BOOL")


def ints(*values: Any) -> T:
    data = np.asarray(values[0] if len(values) == 1 else values, np.int32)
    return T("INT32", data.shape, data)


def one(name: str, type: str, table: str, make: Any) -> Make:
    """A network of one operator; `make` gives shapes of input and output, constants, options."""

    def network(random: np.random.Generator) -> Network:
        shape, result, constants, options = make(random)
        inputs = (0, *range(2, 2 + len(constants)))
        tensors = [tensor(type, shape), tensor(type, result), *constants]
        version = 2 if name == "BROADCAST_TO" else 1
        return Network(tensors, [Op(name, inputs, (1,), table, options, version=version)])

    return network


def transpose(random: Any) -> Any:
    shape = shape_of(random)
    order = random.permutation(len(shape))
    return shape, [shape[n] for n in order], [ints(order)], {}


def reshape(random: Any) -> Any:
    a, b, c = (int(n) for n in random.integers(1, 5, 3))
    return (a, b, c), (a * b, c), [ints(-1, c)], {}


def squeeze(random: Any) -> Any:
    a, b = (int(n) for n in random.integers(1, 5, 2))
    return (a, 1, b, 1), (a, b, 1), [], {"SqueezeDims": (1,)}


def expand(random: Any) -> Any:
    shape = shape_of(random, 1, 3)
    axis = int(random.integers(0, len(shape) + 1))
    result = (*shape[:axis], 1, *shape[axis:])
    return shape, result, [T("INT32", (), np.int32(axis - (len(shape) + 1) * (axis % 2)))], {}


def part(random: Any) -> Any:
    shape = [int(n) for n in random.integers(2, 6, random.integers(1, 5))]
    begin = [int(random.integers(0, n)) for n in shape]
    size = [int(random.integers(1, n - b + 1)) for n, b in zip(shape, begin, strict=True)]
    return shape, size, [ints(begin), ints(size)], {}


def strided(random: Any, *, steps: bool = True) -> Any:
    shape = [int(n) for n in random.integers(3, 7, random.integers(1, 5))]
    begin = [int(random.integers(-n, n)) for n in shape]
    end = [int(random.integers(-n, n + 2)) for n in shape]
    stride = [int(random.choice([-2, -1, 1, 2])) if steps else 1 for _ in shape]
    masks = [int(random.integers(0, 2 ** len(shape))) for _ in range(2)]
    shrink = int(random.integers(0, 2 ** (len(shape) - 1))) if steps else 0
    parts = []
    for axis, size in enumerate(shape):
        bit = 1 << axis
        if shrink & bit:
            begin[axis], stride[axis] = abs(begin[axis]) % size, 1
            end[axis] = begin[axis] + 1
            parts.append(1)
            continue
        walk = slice(
            None if masks[0] & bit else begin[axis],
            None if masks[1] & bit else end[axis],
            stride[axis],
        )
        count = len(range(size)[walk])
        if not count:
            begin[axis], end[axis], stride[axis], count = 0, size, 1, size
        parts.append(count)
    result = [n for axis, n in enumerate(parts) if not shrink >> axis & 1]
    options = {"BeginMask": masks[0], "EndMask": masks[1], "ShrinkAxisMask": shrink}
    return shape, result, [ints(begin), ints(end), ints(stride)], options


def with_ellipsis(random: Any) -> Any:
    shape = (3, 4, 5)
    constants = [ints(1, 0, 0, 2), ints(3, 0, 0, 3), ints(1, 1, 1, 1)]
    return shape, (2, 1, 4), constants, {"EllipsisMask": 4, "NewAxisMask": 2, "ShrinkAxisMask": 8}


def pad(random: Any) -> Any:
    shape = shape_of(random)
    pads = random.integers(0, 3, (len(shape), 2))
    return shape, np.add(shape, pads.sum(1)), [ints(pads)], {}


def pad_with(type: str) -> Any:
    def make(random: Any) -> Any:
        shape, result, constants, options = pad(random)
        data = np.asarray(7.0 if type == "FLOAT32" else 9, type.lower())
        value = T(type, (), data) if type == "FLOAT32" else T(type, (), data, (0.05,), (3,))
        if type != "FLOAT32":
            zero = 120 if type == "UINT8" else -7
            value = T(type, (), data, (0.05,), (zero,))
        return shape, result, [*constants, value], options

    return make


def mirror(mode: int) -> Any:
    def make(random: Any) -> Any:
        shape = [int(n) for n in random.integers(3, 6, random.integers(1, 4))]
        pads = random.integers(0, 3, (len(shape), 2))
        return shape, np.add(shape, pads.sum(1)), [ints(pads)], {"Mode": mode}

    return make


def reverse(random: Any) -> Any:
    shape = shape_of(random)
    return shape, shape, [ints([int(random.integers(0, len(shape)))])], {}


def tile(random: Any) -> Any:
    shape = shape_of(random)
    times = random.integers(1, 4, len(shape))
    return shape, np.multiply(shape, times), [ints(times)], {}


def broadcast(random: Any) -> Any:
    shape = shape_of(random, 2, 4)
    source = [n if random.random() < 0.5 else 1 for n in shape][random.integers(0, 2) :]
    return source, shape, [ints(shape)], {}


def gather(random: Any) -> Any:
    shape = shape_of(random, 1, 3)
    axis = int(random.integers(0, len(shape)))
    count = () if random.random() < 0.3 and len(shape) > 1 else (int(random.integers(1, 5)),)
    indices = random.integers(0, shape[axis], count)
    result = (*shape[:axis], *count, *shape[axis + 1 :])
    return shape, result, [ints(indices)], {"Axis": axis}


def block(name: str) -> Any:
    def make(random: Any) -> Any:
        n, h, w, c = (int(n) for n in random.integers(1, 4, 4))
        small, large = (n, h, w, c * 4), (n, h * 2, w * 2, c)
        ends = (small, large) if name == "DEPTH_TO_SPACE" else (large, small)
        return *ends, [], {"BlockSize": 2}

    return make


def to_batches(random: Any) -> Any:
    n, h, w, c = (int(n) for n in random.integers(1, 4, 4))
    pads = [[1, 1], [0, 2]]
    result = (n * 4, (h * 2 + 2) // 2, (w * 2 + 2) // 2, c)
    return (n, h * 2, w * 2, c), result, [ints(2, 2), ints(pads)], {}


def from_batches(random: Any) -> Any:
    n, h, w, c = (int(n) for n in random.integers(2, 4, 4))
    crops = [[0, 1], [1, 0]]
    return (n * 4, h, w, c), (n, h * 2 - 1, w * 2 - 1, c), [ints(2, 2), ints(crops)], {}


def sequence_to_batches(random: Any) -> Any:
    n, t, c = (int(n) for n in random.integers(1, 4, 3))
    return (n, t * 2, c), (n * 2, t + 1, c), [ints([2]), ints([[2, 0]])], {}


def sequence_from_batches(random: Any) -> Any:
    n, t, c = (int(n) for n in random.integers(1, 4, 3))
    return (n * 2, t, c), (n, t * 2 - 1, c), [ints([2]), ints([[0, 1]])], {}


def axes_of(random: Any, shape: Any, keep: bool) -> Any:
    count = int(random.integers(1, len(shape) + 1))
    axes = random.permutation(len(shape))[:count]
    rest = [1 if axis in axes else n for axis, n in enumerate(shape) if keep or axis not in axes]
    return ints(axes), rest


def reduction(name: str, type: str) -> Make:
    def make(random: np.random.Generator) -> Network:
        shape, keep = shape_of(random), bool(random.integers(0, 2))
        axes, rest = axes_of(random, shape, keep)
        tensors = [tensor(type, shape), axes, tensor(type, rest)]
        op = Op(name, (0, 1), (2,), "ReducerOptions", {"KeepDims": keep})
        return Network(tensors, [op], low=-1.5, high=1.5, step=int(name == "MEAN"))

    return make


def index_of(name: str, type: str, target: str) -> Make:
    def make(random: np.random.Generator) -> Network:
        shape = shape_of(random, 2)
        axis = int(random.integers(0, len(shape)))
        result = [n for place, n in enumerate(shape) if place != axis]
        tensors = [tensor(type, shape), T("INT32", (), np.int32(axis)), T(target, tuple(result))]
        table = "ArgMaxOptions" if name == "ARG_MAX" else "ArgMinOptions"
        number = 2 if target == "INT32" else 4
        return Network(tensors, [Op(name, (0, 1), (2,), table, {"OutputType": number})])

    return make


def largest(type: str) -> Make:
    def make(random: np.random.Generator) -> Network:
        shape = shape_of(random, 1, 3)
        count = int(random.integers(1, shape[-1] + 1))
        rest = (*shape[:-1], count)
        tensors = [
            tensor(type, shape),
            T("INT32", (), np.int32(count)),
            tensor(type, rest),
            T("INT32", rest),
        ]
        return Network(tensors, [Op("TOPK_V2", (0, 1), (2, 3))])

    return make


def join(name: str, type: str) -> Make:
    def make(random: np.random.Generator) -> Network:
        shape = list(shape_of(random, 1, 3))
        axis = int(random.integers(0, len(shape)))
        count = int(random.integers(1, 4))
        result, table, options = list(shape), "ConcatenationOptions", {"Axis": axis}
        if name == "PACK":
            result.insert(axis, count)
            table, options = "PackOptions", {"Axis": axis, "ValuesCount": count}
        else:
            result[axis] *= count
        tensors = [*[tensor(type, shape)] * count, tensor(type, result)]
        return Network(tensors, [Op(name, tuple(range(count)), (count,), table, options)])

    return make


def split(name: str, type: str) -> Make:
    def make(random: np.random.Generator) -> Network:
        shape = [int(n) for n in random.integers(1, 4, random.integers(2, 5))]
        axis, count = int(random.integers(0, len(shape))), int(random.integers(1, 4))
        rest = list(shape)
        sizes = [shape[axis]] * count
        if name == "SPLIT_V":
            sizes = [int(n) for n in random.integers(1, 4, count)]
        elif name == "UNPACK":
            rest.pop(axis)
        shape[axis] = count if name == "UNPACK" else sum(sizes)
        parts = [
            tensor(type, rest if name == "UNPACK" else [*rest[:axis], n, *rest[axis + 1 :]])
            for n in sizes
        ]
        along, where = T("INT32", (), np.int32(axis)), tuple(range(3, 3 + count))
        x = tensor(type, shape)
        tensors = [x, along, ints(sizes), *parts]
        op = {
            "SPLIT": Op("SPLIT", (1, 0), where, "SplitOptions", {"NumSplits": count}),
            "SPLIT_V": Op("SPLIT_V", (0, 2, 1), where, "SplitVOptions", {"NumSplits": count}),
            "UNPACK": Op("UNPACK", (0,), where, "UnpackOptions", {"Num": count, "Axis": axis}),
        }[name]
        return Network(tensors, [op])

    return make


def one_hot(type: str) -> Make:
    def make(random: np.random.Generator) -> Network:
        shape = shape_of(random, 1, 2)
        axis = int(random.integers(-1, len(shape)))
        result = list(shape)
        result.insert(axis if axis >= 0 else len(shape), 4)
        on, off = (T(type, (), np.asarray(n, type.lower())) for n in (2, -1))
        tensors = [T("INT32", shape), T("INT32", (), np.int32(4)), on, off, T(type, tuple(result))]
        op = Op("ONE_HOT", (0, 1, 2, 3), (4,), "OneHotOptions", {"Axis": axis})
        return Network(tensors, [op], low=0)

    return make


def normal(name: str, type: str, table: str, result: Any = None, **options: Any) -> Make:
    def make(random: np.random.Generator) -> Network:
        shape = shape_of(random, 4) if name.startswith("L") else shape_of(random)
        scale, zero = result or (0.05, None)
        op = Op(name, (0,), (1,), table, options)
        return Network([tensor(type, shape), tensor(type, shape, scale, zero)], [op])

    return make


def lookup(random: np.random.Generator) -> Network:
    table = np.asarray(random.uniform(-1, 1, (5, 3)), np.float32)
    tensors = [T("INT32", (4,)), T("FLOAT32", (5, 3), table), T("FLOAT32", (4, 3))]
    return Network(tensors, [Op("EMBEDDING_LOOKUP", (0, 1), (2,))], low=0)


_MOVES: list[tuple[str, str, Any, tuple[str, ...]]] = [
    ("TRANSPOSE", "", transpose, (*PLAIN, "BOOL")),
    ("RESHAPE", "", reshape, (*PLAIN, "BOOL")),
    ("SQUEEZE", "SqueezeOptions", squeeze, PLAIN),
    ("EXPAND_DIMS", "", expand, NUMBERS),
    ("SLICE", "", part, ANY),
    ("STRIDED_SLICE", "StridedSliceOptions", strided, (*PLAIN, "BOOL")),
    ("PAD", "", pad, PLAIN),
    ("REVERSE_V2", "", reverse, ANY),
    ("TILE", "", tile, ANY),
    ("BROADCAST_TO", "", broadcast, ANY),
    ("GATHER", "GatherOptions", gather, (*PLAIN, "BOOL")),
    ("DEPTH_TO_SPACE", "DepthToSpaceOptions", block("DEPTH_TO_SPACE"), PLAIN),
    ("SPACE_TO_DEPTH", "SpaceToDepthOptions", block("SPACE_TO_DEPTH"), PLAIN),
    ("SPACE_TO_BATCH_ND", "", to_batches, PLAIN),
    ("BATCH_TO_SPACE_ND", "", from_batches, PLAIN),
]
CASES: dict[str, Make] = {
    **{f"{n} {type}": one(n, type, t, make) for n, t, make, types in _MOVES for type in types},
    "STRIDED_SLICE INT32": one(
        "STRIDED_SLICE", "INT32", "StridedSliceOptions", lambda r: strided(r, steps=False)
    ),
    "STRIDED_SLICE with an ellipsis": one(
        "STRIDED_SLICE", "FLOAT32", "StridedSliceOptions", with_ellipsis
    ),
    "SPACE_TO_BATCH_ND of rank 3": one("SPACE_TO_BATCH_ND", "INT8", "", sequence_to_batches),
    "BATCH_TO_SPACE_ND of rank 3": one("BATCH_TO_SPACE_ND", "INT8", "", sequence_from_batches),
    **{f"PADV2 {type}": one("PADV2", type, "", pad_with(type)) for type in PLAIN},
    **{
        f"MIRROR_PAD {type} {mode}": one("MIRROR_PAD", type, "MirrorPadOptions", mirror(mode))
        for type in ("FLOAT32", "INT8")
        for mode in (0, 1)
    },
    **{f"{n} {type}": join(n, type) for n in ("CONCATENATION", "PACK") for type in PLAIN},
    **{f"{n} {type}": split(n, type) for n in ("SPLIT", "SPLIT_V", "UNPACK") for type in PLAIN},
    "SPLIT INT32": split("SPLIT", "INT32"),
    **{f"ONE_HOT {type}": one_hot(type) for type in ("FLOAT32", "INT32")},
    "EMBEDDING_LOOKUP FLOAT32": lookup,
    **{
        f"{name} {type}": reduction(name, type)
        for name, types in [
            ("MEAN", PLAIN),
            ("SUM", ("FLOAT32",)),
            ("REDUCE_PROD", ("FLOAT32",)),
            ("REDUCE_MAX", PLAIN),
            ("REDUCE_MIN", PLAIN),
            ("REDUCE_ANY", ("BOOL",)),
            ("REDUCE_ALL", ("BOOL",)),
        ]
        for type in types
    },
    **{
        f"{name} {type} {target}": index_of(name, type, target)
        for name in ("ARG_MAX", "ARG_MIN")
        for type in NUMBERS
        for target in ("INT32", "INT64")
    },
    **{f"TOPK_V2 {type}": largest(type) for type in ("FLOAT32", "UINT8", "INT8", "INT32")},
    "SOFTMAX FLOAT32": normal("SOFTMAX", "FLOAT32", "SoftmaxOptions", Beta=1.5),
    "SOFTMAX UINT8": normal("SOFTMAX", "UINT8", "SoftmaxOptions", (1 / 256, 0), Beta=1.0),
    "SOFTMAX INT8": normal("SOFTMAX", "INT8", "SoftmaxOptions", (1 / 256, -128), Beta=1.0),
    "LOG_SOFTMAX FLOAT32": normal("LOG_SOFTMAX", "FLOAT32", ""),
    "L2_NORMALIZATION FLOAT32": normal("L2_NORMALIZATION", "FLOAT32", "L2NormOptions"),
    "L2_NORMALIZATION INT8": normal("L2_NORMALIZATION", "INT8", "L2NormOptions", (1 / 128, 0)),
    "LOCAL_RESPONSE_NORMALIZATION FLOAT32": normal(
        "LOCAL_RESPONSE_NORMALIZATION",
        "FLOAT32",
        "LocalResponseNormalizationOptions",
        Radius=2,
        Bias=1.0,
        Alpha=0.5,
        Beta=0.75,
    ),
}
