"""Whether products of bytes are exact on this processor, and for which weights they are anyway.

Processors with VNNI add four products of bytes to 32 bits at once. For others OpenVINO's kernels
use `vpmaddubsw`, which adds two products, of an unsigned byte by a signed one each, in 16 bits, and
what is beyond these it cuts off: 255 * 127 + 255 * 127 becomes 32767 instead of 64770. Whole
convolutions and FULLY_CONNECTED do that in all forms that were found (jit and brgemm for AVX2 and
AVX-512, with images of unsigned and of signed bytes), those by depth do not: they have one product
a pixel and channel. Which two weights are added depends on the kernel.

So no sum is beyond 16 bits if the two largest weights that make one result add to 128 at most, and
the two least to -128 at least. Filters of which that is not true are computed with real numbers
where products saturate: halving the weights would round them, and to have each channel twice takes
twice as many products, while bytes without VNNI are faster by a fifth only (MobileNet v2). Those
of FULLY_CONNECTED always are, since without VNNI OpenVINO 2026.4 fails to compile some in bytes.

Whether products saturate is tried out with a network of one layer, since what the engine uses may
be less than what the processor has.
"""

from __future__ import annotations

import functools

import numpy as np

from nnasync._core.drivers.openvino.package import (
    core,
    element_type,
    faults,
    module,
    opset,
)
from nnasync.errors import GeneralFailure
from nnasync.hal import Array
from nnasync.machine.facts import processor_flags

_MOST = 128
"""Times 255 this is within 16 bits, and one more is not."""
_CHANNELS = 64
_LARGEST = 255


def fits_16_bits(weights: Array) -> bool:
    """Returns whether no two products exceed 16 bits, for signed bytes [results, ...]."""
    rows = weights.reshape(len(weights), -1)
    if rows.shape[1] < 2:
        return True
    ordered = np.partition(rows.astype(np.int16), (1, rows.shape[1] - 2), axis=1)
    highest = np.maximum(ordered[:, -2:], 0).sum(axis=1)
    lowest = np.minimum(ordered[:, :2], 0).sum(axis=1)
    return bool(highest.max(initial=0) <= _MOST and lowest.min(initial=0) >= -_MOST)


@functools.cache
def lacks_wide_sums() -> bool:
    """Returns whether this processor says it cannot add products of bytes in 32 bits; is quick."""
    flags = processor_flags()
    return bool(flags) and not any(flag.endswith("_vnni") for flag in flags)


@functools.cache
def adds_in_16_bits() -> bool:
    """Returns whether the engine's products of bytes saturate here; True if that is unknown.

    The first call compiles a network of one layer, which takes some 20 ms.
    """
    try:
        with faults("trying products of bytes"):
            return not _is_exact()
    except GeneralFailure:
        return True


def _is_exact() -> bool:
    op = opset()
    image = op.parameter([1, _CHANNELS, 4, 4], element_type("u8"))
    limits = (np.float32(0), np.float32(_LARGEST))
    values = op.fake_quantize(op.convert(image, "f32"), *limits, *limits, _LARGEST + 1)
    numbers = np.full((_CHANNELS, _CHANNELS, 1, 1), 127, np.int8)
    numbers[1::2] = -128
    weights = op.multiply(op.convert(op.constant(numbers), "f32"), np.float32(1))
    sums = op.convolution(values, weights, [1, 1], [0, 0], [0, 0], [1, 1])
    network = module().Model([op.result(sums)], [image], "products of bytes")
    options = {
        "INFERENCE_NUM_THREADS": 1,
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,
        "INFERENCE_PRECISION_HINT": "f32",
        "LP_TRANSFORMS_MODE": True,
    }
    compiled = core().compile_model(network, "CPU", options)
    found = compiled(np.full((1, _CHANNELS, 4, 4), _LARGEST, np.uint8))[0]
    wanted = _CHANNELS * _LARGEST * numbers[:, 0].astype(np.float32)
    return bool((found == wanted[None]).all())
