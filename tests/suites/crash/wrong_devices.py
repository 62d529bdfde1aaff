"""Devices that are made wrong on purpose: the reference, and one fault each.

They are named as "tests.suites.crash.wrong_devices:hanging", which children import by themselves.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.drivers.null import NullEngine
from nnasync.engine import BoundCall, EngineBase, Given, OutputBuffer, Plan, StopFlag, Target
from nnasync.hal import Array, DeviceType, ExecutionPreference, Extension, Model

QUIET_RUNS = 8
"""More than happen in quiet, and fewer than clients that infer once each."""
PAGE = 1 << 12


class WrongEngine(EngineBase):
    """The reference under another name; `ran` is called after each run with its number."""

    type = DeviceType.ACCELERATOR
    version = "1"
    extensions: tuple[Extension, ...] = ()
    concurrency = 0
    capabilities = NullEngine().capabilities
    name = "wrong"

    def __init__(self, name: str = "right") -> None:
        self.name = name
        self.lock = threading.Lock()
        self.runs = self.compilations = self.compiling = 0
        self.kept: list[Any] = []
        self.compile_times = 1
        self.ran: Callable[[Sequence[Array], Callable[[], Any]], None] = lambda outputs, again: None
        self.compiled: Callable[[Model], None] = lambda model: None

    def supported_operations(self, model: Model) -> list[bool]:
        return [True] * len(model.main.operations)

    def compile(self, model: Model, preference: ExecutionPreference) -> Plan:
        with self.lock:
            self.compilations += 1
            self.compiling += 1
        try:
            self.compiled(model)
            for _ in range(self.compile_times):
                plan = ReferenceEngine().compile(model, preference)
        finally:
            with self.lock:
                self.compiling -= 1
        return _WrongPlan(self, plan)


class _WrongPlan(Plan):
    def __init__(self, engine: WrongEngine, inner: Plan) -> None:
        self.engine = engine
        self.inner = inner

    def bind(self, inputs: Sequence[Array | None], outputs: Sequence[Target]) -> _WrongCall:
        return _WrongCall(self.engine, self.inner.bind(inputs, outputs), outputs)

    def trim(self) -> None:
        self.inner.trim()


class _WrongCall(BoundCall):
    def __init__(self, engine: WrongEngine, inner: Any, outputs: Sequence[Target]) -> None:
        self.engine = engine
        self.inner = inner
        self.outputs = outputs

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        done = bool(self.inner.run(stop, given))
        with self.engine.lock:
            self.engine.runs += 1
        arrays = [each for each in self.outputs if not isinstance(each, OutputBuffer)]
        self.engine.ran(arrays, lambda: self.inner.run(stop, given))
        return done

    def rewind(self) -> None:
        self.inner.rewind()


def hanging() -> WrongEngine:
    """Hangs once it is stressed."""
    engine = WrongEngine()

    def ran(outputs: Sequence[Array], again: Callable[[], Any]) -> None:
        if engine.runs > QUIET_RUNS:
            threading.Event().wait()

    engine.ran = ran
    return engine


def crashing() -> WrongEngine:
    """Takes its process with it once it is stressed."""
    engine = WrongEngine()

    def ran(outputs: Sequence[Array], again: Callable[[], Any]) -> None:
        if engine.runs > QUIET_RUNS:
            os.kill(os.getpid(), signal.SIGSEGV)

    engine.ran = ran
    return engine


def dying_at_once() -> WrongEngine:
    """Takes its process with it when it compiles anything."""
    engine = WrongEngine()
    engine.compiled = lambda model: os.kill(os.getpid(), signal.SIGSEGV)
    return engine


def off() -> WrongEngine:
    """Is 3 % off, always."""
    engine = WrongEngine()
    engine.ran = lambda outputs, again: _scale(outputs)
    return engine


def off_under_load() -> WrongEngine:
    """Is 3 % off once it is stressed."""
    engine = WrongEngine()

    def ran(outputs: Sequence[Array], again: Callable[[], Any]) -> None:
        if engine.runs > QUIET_RUNS:
            _scale(outputs)

    engine.ran = ran
    return engine


def leaking_memory() -> WrongEngine:
    """Keeps a megabyte of each compilation."""
    engine = WrongEngine()

    def compiled(model: Model) -> None:
        block = np.zeros(1 << 20, np.uint8)
        block[::PAGE] = 1
        engine.kept.append(block)

    engine.compiled = compiled
    return engine


def leaking_descriptors() -> WrongEngine:
    """Keeps a descriptor of each compilation."""
    engine = WrongEngine()
    engine.compiled = lambda model: engine.kept.append(os.open(os.devnull, os.O_RDONLY))
    return engine


def slow_beside_compilation() -> WrongEngine:
    """Needs many times as long for a run while it compiles."""
    engine = WrongEngine()
    engine.compile_times = 400

    def ran(outputs: Sequence[Array], again: Callable[[], Any]) -> None:
        while engine.compiling:
            again()

    engine.ran = ran
    return engine


def right() -> WrongEngine:
    """Has no fault."""
    return WrongEngine()


def _scale(outputs: Sequence[Array]) -> None:
    for each in outputs:
        if each.dtype.kind == "f":
            each *= 1.03
