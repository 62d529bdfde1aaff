"""A session bound to arrays: it reads inputs and writes outputs where they are.

What cannot be bound in place is staged: an array that is not aligned, or whose type ONNX has and
the HAL has not. Outputs of unknown shape are allocated by ONNX Runtime in every run and copied.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from nnasync._core.drivers.onnxruntime.providers import package
from nnasync._core.giving_way import giving_way
from nnasync.engine import BoundCall, Given, Phase, StopFlag, span
from nnasync.errors import GeneralFailure, NNError
from nnasync.hal import Array
from nnasync.tracing import SWITCH

SHORT_NS = 1_000_000
"""A run that was ever shorter is not made interruptible any more: it ends soon enough."""

Move = tuple[Array, Array]
"""Where to copy to, and from."""


class OnnxCall(BoundCall):
    """A session bound to arrays; used by one thread at a time.

    `before` are copied ahead of a run, `after` behind it; `finish` delivers what has no place yet.
    """

    __slots__ = (
        "_after",
        "_before",
        "_binding",
        "_finish",
        "_is_short",
        "_kept",
        "_options",
        "_run",
        "_staged",
    )

    def __init__(
        self,
        session: Any,
        binding: Any,
        options: Any,
        *,
        before: Sequence[Move] = (),
        after: Sequence[Move] = (),
        finish: Callable[[], None] | None = None,
        kept: Sequence[object] = (),
    ) -> None:
        """`kept` is the memory that the binding points to."""
        run, self._binding = _direct(session, binding)
        self._run = giving_way(run)
        self._options = options
        self._before = tuple(before)
        self._after = tuple(after)
        self._finish = finish
        self._staged = bool(before or after or finish)
        self._kept = tuple(kept)
        self._is_short = False

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        """Run to the end; False if it was aborted. Raises GeneralFailure with the engine's text."""
        try:
            if self._staged:
                return self._run_staged(stop)
            if SWITCH.on:
                with span(Phase.COMPUTATION, "run ONNX Runtime"):
                    return self._run_interruptibly(stop)
            if self._is_short:
                self._run(self._binding, self._options)
                return True
            return self._run_interruptibly(stop)
        except NNError:
            raise
        except Exception as error:
            raise GeneralFailure(f"ONNX Runtime failed: {error}") from error

    def rewind(self) -> None:
        """There is nothing to forget: a run that was aborted starts anew."""

    def _run_staged(self, stop: StopFlag) -> bool:
        if not SWITCH.on:
            self._take_in()
            if not self._compute(stop):
                return False
            self._bring()
            return True
        with span(Phase.INPUTS_AND_OUTPUTS, "convert inputs"):
            self._take_in()
        with span(Phase.COMPUTATION, "run ONNX Runtime"):
            if not self._compute(stop):
                return False
        with span(Phase.RESULTS, "convert outputs"):
            self._bring()
        return True

    def _take_in(self) -> None:
        for target, source in self._before:
            np.copyto(target, source)

    def _compute(self, stop: StopFlag) -> bool:
        if not self._is_short:
            return self._run_interruptibly(stop)
        self._run(self._binding, self._options)
        return True

    def _bring(self) -> None:
        for target, source in self._after:
            np.copyto(target, narrowed(source, target.dtype), casting="same_kind")
        if self._finish is not None:
            self._finish()

    def _run_interruptibly(self, stop: StopFlag) -> bool:
        options = self._options
        options.terminate = False
        if not stop.arm(self._interrupt):
            stop.disarm()
            return False
        begun_ns = time.perf_counter_ns()
        try:
            self._run(self._binding, options)
        except Exception:
            if stop.raised:
                return False
            raise
        finally:
            stop.disarm()
        self._is_short = time.perf_counter_ns() - begun_ns < SHORT_NS
        if self._is_short:
            options.terminate = False
        return True

    def _interrupt(self) -> None:
        self._options.terminate = True


def _direct(session: Any, binding: Any) -> tuple[Callable[[Any, Any], object], Any]:
    """The native call behind `run_with_iobinding`, and the native binding.

    The wrapper takes ten times as long as a small network when it is given options.
    """
    native, inner = getattr(session, "_sess", None), getattr(binding, "_iobinding", None)
    if native is not None and inner is not None:
        return native.run_with_iobinding, inner
    return session.run_with_iobinding, binding


class OwnOutputs:
    """The outputs of a binding, for which ONNX Runtime finds memory in each run.

    By the native binding, for the same reason as in `_direct`; a loop over its wrapper's outputs
    takes as long as a small network.
    """

    __slots__ = ("_bind", "_clear", "_get")

    def __init__(self, binding: Any, names: Sequence[str]) -> None:
        device = package().OrtDevice.make("cpu", 0)
        native, place = getattr(binding, "_iobinding", None), getattr(device, "_get_c_device", None)
        found = binding if native is None or place is None else native
        where = "cpu" if found is binding or place is None else place()
        self._clear: Callable[[], object] = found.clear_binding_outputs
        self._bind = tuple(partial(found.bind_output, name, where) for name in names)
        self._get: Callable[[], Any] = found.get_outputs

    def bind(self) -> None:
        """Have memory found for the outputs of the next run, too."""
        self._clear()
        for bind in self._bind:
            bind()

    def values(self) -> list[Any]:
        """Returns the outputs of the last run."""
        found = self._get()  # Its iterator takes long to be made.
        return [found[number] for number in range(len(self._bind))]


def narrowed(values: Array, dtype: np.dtype[Any]) -> Array:
    """Values as the HAL has them; raises GeneralFailure where an int64 is no int32."""
    if values.dtype == dtype:
        return values
    if values.dtype != np.int64 or dtype != np.int32:
        return values.astype(dtype, copy=False)
    narrow = values.astype(np.int32)
    if not np.array_equal(narrow, values):
        raise GeneralFailure("an output of int64 has numbers that are no int32")
    return narrow
