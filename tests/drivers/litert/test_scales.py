"""Scales that the engine does not survive are declined, and others are not."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from nnasync._core.drivers.litert.flatbuffer import FileTensor
from nnasync._core.formats.litert_limits import LiteRTUnsupported, check_multipliers, check_scales
from tests.drivers.litert.hostile import killers
from tests.drivers.litert.rig import need_litert

need_litert()

TINY, HUGE = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)


def byte(*scales: float) -> FileTensor:
    return FileTensor("UINT8", (2,), scales, (0,) * len(scales))


def test_what_ended_the_process_is_declined_when_asked_and_when_compiled() -> None:
    command = [sys.executable, "-m", "tests.drivers.litert.hostile"]
    child = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    lines = child.stdout.splitlines()
    assert child.returncode == 0, child.stdout + child.stderr
    assert len(lines) == len(list(killers()))
    for line in lines:
        assert ": declined, ModelError: operation 0" in line


def test_denormal_and_infinite_scales_have_no_tensor() -> None:
    check_scales((TINY, 1.0, HUGE))
    for scale in (TINY / 2, float(np.float32(1.4e-45)), 2 * HUGE, float("nan")):
        with pytest.raises(LiteRTUnsupported, match="a scale of"):
            check_scales((1.0, scale))


@pytest.mark.parametrize(
    ("name", "inputs", "output"),
    [
        ("ADD", (0.5, 0.25), 2.0**-20),
        ("ADD", (2.0**127, 1.0), 2.0**107),
        ("ADD", (1.0, 1.0), 2.0**108),
        ("CONV_2D", (2.0**10, 2.0**10), 2.0**-11),
        ("BATCH_MATMUL", (2.0**10, 2.0**10), 2.0**13),
        ("MUL", (2.0**64, 2.0**64), 1.0),
        ("QUANTIZE", (2.0**31,), 1.0),
    ],
)
def test_the_first_ratio_that_fixed_point_cannot_hold(
    name: str, inputs: tuple[float, ...], output: float
) -> None:
    with pytest.raises(LiteRTUnsupported, match="fixed point"):
        check_multipliers(name, [byte(each) for each in inputs], [byte(output)])


@pytest.mark.parametrize(
    ("name", "inputs", "output"),
    [
        ("ADD", (0.5, 0.25), 2.0**-19),
        ("ADD", (2.0**125, 1.0), 2.0**107),
        ("ADD", (1.0, 1.0), 2.0**107),
        ("CONV_2D", (2.0**10, 2.0**10), 2.0**-10),
        ("BATCH_MATMUL", (2.0**10, 2.0**10), 2.0**14),
        ("QUANTIZE", (2.0**30,), 1.0),
        ("QUANTIZE", (TINY,), HUGE),
    ],
)
def test_the_last_ratio_that_it_holds(name: str, inputs: tuple[float, ...], output: float) -> None:
    check_multipliers(name, [byte(each) for each in inputs], [byte(output)])


def test_each_channel_counts() -> None:
    weights, data = byte(1.0, 2.0**31), byte(1.0)
    with pytest.raises(LiteRTUnsupported, match="fixed point"):
        check_multipliers("CONV_2D", [data, weights], [byte(1.0)])
