"""Devices that are made wrong on purpose, each in one way; what is odd is one model by its name."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import threading
from collections.abc import Callable, Sequence
from unittest import mock

import numpy as np

from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.drivers.null import NullEngine
from nnasync.engine import BoundCall, EngineBase, OutputBuffer, Plan, StopFlag, Target
from nnasync.hal import Array, DeviceType, ExecutionPreference, Model, OperationType

ODD = OperationType.RELU

Deed = Callable[[Sequence[Array], Sequence[Array]], object]
"""Is given the outputs as bytes, and what was in them before the run."""


class Wrong(EngineBase):
    """The reference, but for a model whose first operation is the odd one."""

    type = DeviceType.ACCELERATOR
    version = "1"
    extensions = ()
    concurrency = 0
    capabilities = NullEngine().capabilities

    def __init__(
        self, name: str, deed: Callable[[Sequence[Array], Sequence[Array]], object]
    ) -> None:
        self.name = name
        self.deed = deed
        self._reference = ReferenceEngine()

    def supported_operations(self, model: Model) -> list[bool]:
        return self._reference.supported_operations(model)

    def compile(self, model: Model, preference: ExecutionPreference) -> Plan:
        plan = self._reference.compile(model, preference)
        first = model.main.operations[:1]
        return _WrongPlan(self, plan) if first and first[0].type == ODD else plan


class _NeverEnding(Wrong):
    def compile(self, model: Model, preference: ExecutionPreference) -> Plan:
        return _NeverEndingPlan(self, self._reference.compile(model, preference))


class _WrongPlan(Plan):
    def __init__(self, engine: Wrong, inner: Plan) -> None:
        self.engine, self.inner = engine, inner

    def trim(self) -> None:
        self.inner.trim()

    def reads_in_place(self, array: Array) -> bool:
        return self.inner.reads_in_place(array)

    def bind(self, inputs: Sequence[Array | None], outputs: Sequence[Target]) -> BoundCall:
        return _WrongCall(self.engine, self.inner.bind(inputs, outputs), outputs)


class _NeverEndingPlan(_WrongPlan):
    def trim(self) -> None:
        threading.Event().wait()


class _WrongCall(BoundCall):
    def __init__(self, engine: Wrong, inner: BoundCall, outputs: Sequence[Target]) -> None:
        self.engine, self.inner, self.outputs = engine, inner, outputs

    def run(self, stop: StopFlag, given: Sequence[Array] | None = None) -> bool:
        outputs = [_bytes(each) for each in self.outputs]
        before = [each.copy() for each in outputs]
        done = self.inner.run(stop, given)
        self.engine.deed(outputs, before)
        return done

    def rewind(self) -> None:
        self.inner.rewind()


def _bytes(target: Target) -> Array:
    array = target.memory if isinstance(target, OutputBuffer) else target
    return array.reshape(-1).view(np.uint8)


def _crash(outputs: Sequence[Array], before: Sequence[Array]) -> None:
    ctypes.string_at(0)


def _hang(outputs: Sequence[Array], before: Sequence[Array]) -> None:
    threading.Event().wait()


_kept: list[mmap.mmap] = []
_ARENAS = 24
"""Inputs run twice: more than a first look sees, less than there are arenas."""


def _keep(size: int) -> None:
    kept = mmap.mmap(-1, size)
    for place in range(0, size, mmap.PAGESIZE):
        kept[place] = 1
    _kept.append(kept)


def _leak(outputs: Sequence[Array], before: Sequence[Array]) -> None:
    _keep(5 << 20)


def _fill_arenas(outputs: Sequence[Array], before: Sequence[Array]) -> None:
    if len(_kept) < _ARENAS:
        _keep(5 << 20)


def _take(outputs: Sequence[Array], before: Sequence[Array]) -> None:
    _keep(100 << 20)
    _kept.clear()


def _read_undefined(outputs: Sequence[Array], before: Sequence[Array]) -> None:
    for output, found in zip(outputs, before, strict=True):
        output[:1] ^= found[:1]


def _interrupt(outputs: Sequence[Array], before: Sequence[Array]) -> None:
    """Press Ctrl-C for whoever fuzzes, and never come back."""
    os.kill(os.getppid(), signal.SIGINT)
    threading.Event().wait()


def interrupting() -> Wrong:
    return Wrong("interrupting", _interrupt)


def crashing() -> Wrong:
    return Wrong("crashing", _crash)


def hanging() -> Wrong:
    return Wrong("hanging", _hang)


def leaking() -> Wrong:
    return Wrong("leaking", _leak)


def filling_arenas() -> Wrong:
    return Wrong("filling arenas", _fill_arenas)


def filling_arenas_of_many_cores() -> Wrong:
    mock.patch.object(os, "cpu_count", return_value=10_000).start()
    return filling_arenas()


def taking() -> Wrong:
    return Wrong("taking", _take)


def undefined() -> Wrong:
    return Wrong("undefined", _read_undefined)


def never_ending() -> Wrong:
    """It is right, but hangs when it is to let a model go."""
    return _NeverEnding("never-ending", lambda outputs, before: None)


def right() -> Wrong:
    return Wrong("right", lambda outputs, before: None)
