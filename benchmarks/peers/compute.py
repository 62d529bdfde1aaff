"""Compute: one inference, nnasync awaited beside the peers called directly, for each model.

Two budgets of cores: one, for which peers get one thread and nnasync prepares for SUSTAINED_SPEED;
and all, for which each peer has the best of its thread counts and nnasync FAST_SINGLE_ANSWER. The
peers' figure is their bare invocation on inputs in place; ours is the whole `await net(x)`, copies
included. Each output is compared with the reference device's for the same input.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import numpy as np

import nnasync as nn
from benchmarks._report import BEST, cores
from benchmarks.peers.catalog import Entry, input_arrays
from benchmarks.peers.engines import PEERS, Peer, reason
from benchmarks.peers.timing import SETTLE_S, awaited_us, called_us, middle
from nnasync.cli.bench.figures import where
from nnasync.errors import NNError
from nnasync.hal import Array

__all__ = ["ALL_CORES", "BF16", "ONE_CORE", "child", "thread_counts"]

Sample = Callable[[float], Awaitable[dict[str, float]]]
Tell = Callable[[str], None]

ONE_CORE, ALL_CORES, BF16 = "one core", "all cores", "all cores, bf16 allowed"
PREFERENCES = {
    ONE_CORE: (nn.Preference.SUSTAINED_SPEED, None),
    ALL_CORES: (nn.Preference.FAST_SINGLE_ANSWER, None),
    BF16: (nn.Preference.FAST_SINGLE_ANSWER, "bf16"),
}
INVOKE_SHARE = 0.7


def thread_counts() -> list[int]:
    """Returns the thread counts 1, 2, 4 and so on, up to all cores."""
    total = len(cores())
    powers = [1 << n for n in range(total.bit_length()) if 1 << n < total]
    return [*powers, total]


async def child(task: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Measures one model: `name`, `path`, `rounds`, `seconds` in all, `skip` and `bf16`."""
    entry = Entry(task["name"], task["path"])
    tell("reference")
    refused: dict[str, str] = dict(task["skip"])
    async with nn.open_runtime(devices=task["devices"]) as runtime:
        judge = await _Judge.of(runtime, entry)
        contestants = _peers(entry, judge, refused, tell)
        budgets = [ONE_CORE, ALL_CORES] + [BF16] * task["bf16"]
        about = {}
        for budget in budgets:
            if "nnasync" not in refused:
                tell(f"nnasync, {budget}")
                about[budget] = await _enter(runtime, entry, budget, judge, contestants, refused)
        samples = await _take_turns(contestants, task["rounds"], task["seconds"], tell)
    return {
        "samples": samples,
        "agreement": judge.verdicts,
        "nnasync": about,
        "refused": refused,
    }


class _Judge:
    """Compares outputs with the reference device's."""

    def __init__(self, expected: Array | None, scale: float) -> None:
        self.expected = expected
        self.scale = scale
        self.verdicts: dict[str, dict[str, Any]] = {}

    @classmethod
    async def of(cls, runtime: nn.Runtime, entry: Entry) -> _Judge:
        model = nn.load(entry.path)
        net = await runtime.compile(model, devices=["nnasync-reference"])
        result = await net(*input_arrays(model))
        first = result[0] if isinstance(result, tuple) else result
        await net.close()
        return cls(np.asarray(first, np.float64).ravel(), net.outputs[0].scale)

    def judge(self, name: str, output: Array) -> None:
        """Notes the largest difference, in steps if quantized, and whether the top agrees."""
        expected = self.expected
        found = np.asarray(output, np.float64).ravel()
        if expected is None or found.shape != expected.shape:
            self.verdicts[name] = {"difference": None, "same_top": None}
            return
        self.verdicts[name] = {
            "difference": float(np.abs(found - expected).max()),
            "in_steps": bool(self.scale),
            "same_top": bool(found[expected.argmax()] == found.max()),
        }


def _peers(entry: Entry, judge: _Judge, refused: dict[str, str], tell: Tell) -> dict[str, Sample]:
    contestants: dict[str, Sample] = {}
    for name, make in PEERS.items():
        for threads in thread_counts():
            if name in refused:
                break
            tell(f"{name}, {threads} threads")
            try:
                peer = make(entry, threads)
                judge.judge(name, peer.run(peer.inputs))
            except Exception as error:
                refused[name] = reason(error)
            else:
                contestants[f"{name}|{threads}"] = _direct(peer)
    return contestants


def _direct(peer: Peer) -> Sample:
    async def sample(seconds: float) -> dict[str, float]:
        invoked = called_us(peer.invoke, seconds * INVOKE_SHARE)
        whole = called_us(lambda: peer.run(peer.inputs), seconds * (1 - INVOKE_SHARE))
        return {"us": middle(invoked), "with_copies_us": middle(whole)}

    return sample


async def _enter(
    runtime: nn.Runtime,
    entry: Entry,
    budget: str,
    judge: _Judge,
    contestants: dict[str, Sample],
    refused: dict[str, str],
) -> dict[str, Any]:
    """Compiles ours for a budget, and returns where it runs."""
    preference, precision = PREFERENCES[budget]
    model = nn.load(entry.path)
    arrays = input_arrays(model)
    try:
        net = await runtime.compile(model, preference=preference, precision=precision, options=BEST)
        result = await net(*arrays)
    except NNError as error:
        refused[f"nnasync, {budget}"] = reason(error)
        return {}
    judge.judge(f"nnasync, {budget}", result[0] if isinstance(result, tuple) else result)

    async def sample(seconds: float) -> dict[str, float]:
        return {"us": middle(await awaited_us(lambda: net(*arrays), seconds))}

    contestants[f"nnasync|{budget}"] = sample
    report = net.report()
    devices, lowering = where(report)
    return {
        "devices": devices,
        "lowering": lowering,
        "pin": report.pin,
        "candidates": [
            {
                "device": one.device,
                "lowering": one.lowering,
                "median_us": one.median_us,
                "cold_us": one.cold_us,
                "agreement": one.agreement,
                "verdict": one.verdict,
            }
            for one in report.candidates
        ],
    }


async def _take_turns(
    contestants: Mapping[str, Sample], rounds: int, seconds: float, tell: Tell
) -> dict[str, list[dict[str, float]]]:
    """Returns the samples of all rounds; the order turns by one place each round."""
    names = list(contestants)
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    slice_s = max(0.01, seconds / max(1, rounds * len(names)) - SETTLE_S)
    for turn in range(rounds):
        tell(f"round {turn + 1} of {rounds}")
        shift = turn % max(1, len(names))
        for name in names[shift:] + names[:shift]:
            await asyncio.sleep(SETTLE_S)
            samples[name].append(await contestants[name](slice_s))
    return samples
