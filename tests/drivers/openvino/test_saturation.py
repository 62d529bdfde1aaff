"""Products of bytes are exact whatever the instructions of the processor are."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnasync._core.drivers.openvino import OpenVinoEngine, package, saturation
from nnasync._core.drivers.openvino.lowering import products
from nnasync._core.drivers.openvino.saturation import fits_16_bits
from nnasync.engine import Lowering
from nnasync.hal import Array
from nnasync.machine import facts
from tests.drivers.openvino.rig import FAST
from tests.drivers.openvino.saturating import layer
from tests.rigs import GUARD_S

ROOT = Path(__file__).resolve().parents[3]
IS_X86 = platform.machine() in ("x86_64", "AMD64")


@pytest.mark.parametrize("instructions", ["AVX2", "AVX512_CORE", "ALL"])
def test_sums_are_right_with_fewer_instructions(instructions: str) -> None:
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": instructions}
    done = subprocess.run(
        [sys.executable, "-m", "tests.drivers.openvino.saturating"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        check=False,
        timeout=GUARD_S * 3,
    )
    # Roundings of halves differ by a step, or by two; sums that saturate by 30 and more.
    assert done.returncode == 0, done.stderr.decode()
    found = json.loads(done.stdout)
    assert {name: steps for name, steps in found["far"].items() if steps > 2} == {}
    if IS_X86 and instructions != "ALL":
        assert found["saturates"]


@pytest.mark.parametrize(
    ("weights", "fits"),
    [
        ([[64, 64, -64, -64]], True),
        ([[127, 1, 1, 0]], True),
        ([[1, 127, 0, 2]], False),
        ([[-127, 127, -1, 0]], True),
        ([[-127, 127, -2, 0]], False),
        ([[127], [-128]], True),
        ([[0, 0], [65, 64]], False),
    ],
)
def test_which_weights_need_no_wide_sums(weights: Array, fits: bool) -> None:
    assert fits_16_bits(np.asarray(weights, np.int16)) is fits


def test_weights_that_fit_cannot_saturate() -> None:
    """By all pairs of weights of a row and the loudest bytes."""
    rng = np.random.default_rng(5)
    for largest in (40, 66, 128):
        for _ in range(50):
            row = rng.integers(-largest, largest, 6)
            pairs = [a + b for n, a in enumerate(row) for b in row[n + 1 :]]
            sums = [255 * pair for pair in (*pairs, *row)]
            exact = min(sums) >= -(2**15) and max(sums) < 2**15
            assert exact or not fits_16_bits(row[None])


def with_flags(monkeypatch: pytest.MonkeyPatch, flags: str) -> None:
    """Let the processor have these flags."""
    monkeypatch.setattr(facts, "_processor", lambda root: ("", frozenset(flags.split())))
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    forget_the_processor()


def forget_the_processor() -> None:
    """Have the processor's flags looked up anew."""
    for asked in (facts.processor_flags, package.has_bfloat16, saturation.lacks_wide_sums):
        asked.cache_clear()


@pytest.mark.parametrize(
    ("flags", "loud"), [("avx2", False), ("avx2 avx_vnni", True), ("avx512_vnni", True)]
)
def test_bytes_are_offered_where_they_are_exact(
    monkeypatch: pytest.MonkeyPatch, flags: str, loud: bool
) -> None:
    engine = OpenVinoEngine()
    with monkeypatch.context() as patch:
        with_flags(patch, flags)
        for name, offered in (
            ("3x3", loud),
            ("by depth", True),
            ("3x3 of small weights", True),
        ):
            names = [each.name for each in engine.lowerings(layer(name), FAST)]
            assert any(each.startswith("int8") for each in names) is offered
    forget_the_processor()


@pytest.mark.parametrize(
    ("name", "asks"), [("3x3", True), ("by depth", False), ("3x3 of small weights", False)]
)
def test_what_the_engine_does_is_tried_for_loud_weights_only(
    monkeypatch: pytest.MonkeyPatch, name: str, asks: bool
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(products, "adds_in_16_bits", lambda: asked.append(name))
    OpenVinoEngine().compile(layer(name), FAST, Lowering("int8"))
    assert bool(asked) is asks


def test_a_trial_that_fails_is_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Any:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(saturation, "core", fail)
    saturation.adds_in_16_bits.cache_clear()
    try:
        assert saturation.adds_in_16_bits()
    finally:
        saturation.adds_in_16_bits.cache_clear()
