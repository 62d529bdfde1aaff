"""A compiled network, and its calls that are bound to memory.

The memory of a request is set once, when it is bound, so that a run is one call of the engine.
Pieces of memory that the engine would not take as they are (it wants 64 bit alignment at most) are
taken all the same: its kernels load without alignment.
"""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from nnasync.drivers.openvino.package import faults, module, request_type
from nnasync.engine import BoundCall, StopFlag, Target, fit
from nnasync.errors import BadState, GeneralFailure, InvalidArgument
from nnasync.hal import Array, Shape
from nnasync.workers import ABORT

__all__ = ["OpenVinoCall", "OpenVinoPlan"]

_WORTH_INTERRUPTING_NS = 4_000_000
"""Runs longer than this go through a thread of the engine, where alone they can be cancelled; to
wake it and be woken costs some 15 to 60 microseconds.
"""


class OpenVinoPlan:
    """A compiled network; each of its calls has a request of its own."""

    def __init__(
        self,
        compiled: Any,
        output_shapes: Sequence[Shape],
        precision: str,
        threads: int,
        *,
        is_imported: bool = False,
    ) -> None:
        """`is_imported` is true for a network that the engine has read, not compiled."""
        self._is_imported = is_imported
        self.compiled = compiled
        self.precision = precision
        self.threads = threads
        self.output_shapes = tuple(output_shapes)

    def reads_in_place(self, array: Array) -> bool:
        """Whether it is in one piece, and can be written, which the engine asks for of inputs too.

        It has tensors with strides as well (a part of another tensor), but copies them itself, and
        to where the last request of the same network has its input: over the memory of a caller.
        """
        return array.flags.writeable and array.flags.c_contiguous

    def bind(self, inputs: Sequence[Array | None], outputs: Sequence[Target]) -> BoundCall:
        """A call that reads and writes these arrays in place.

        Raises InvalidArgument for an input that is omitted, OutputInsufficientSize.
        """
        arrays = []
        for place, array in enumerate(inputs):
            if array is None:
                raise InvalidArgument(f"input {place} must not be omitted on this device")
            arrays.append(array)
        targets = fit(outputs, self.output_shapes)
        with faults("binding memory"):
            request = self.compiled.create_infer_request()
            for place, array in enumerate(arrays):
                request.set_input_tensor(place, _tensor(array))
            for place, array in enumerate(targets):
                request.set_output_tensor(place, _tensor(array))
        return OpenVinoCall(request, (*arrays, *targets))

    def exported(self) -> memoryview:
        """The compiled network with its weights, in the form of the engine.

        Raises BadState for a network that was imported: the engine cannot read what it would write.
        """
        if self._is_imported:
            raise BadState("OpenVINO exports no network that it has imported itself")
        blob = io.BytesIO()
        with faults("exporting"):
            self.compiled.export_model(blob)
        return blob.getbuffer()

    def trim(self) -> None:
        """Gives back what the requests hold, unless one of them runs."""
        # The engine refuses while a request runs, and there is no way to ask it first.
        with contextlib.suppress(RuntimeError):
            self.compiled.release_memory()


def _tensor(array: Array) -> Any:
    """A tensor over the memory of an array; booleans are bytes to the engine."""
    view = array.view(np.uint8) if array.dtype == np.bool_ else array
    return module().Tensor(view, shared_memory=True)


class OpenVinoCall:
    """A request bound to arrays; used by one thread at a time.

    While its runs take long, it can be interrupted; short ones go without, which is cheaper.
    """

    __slots__ = ("_arrays", "_cancel", "_infer", "_is_long", "_start", "_wait")

    def __init__(self, request: Any, arrays: Sequence[Array]) -> None:
        self._arrays = tuple(arrays)
        inner = request_type()
        self._infer = partial(inner.infer, request, {}, share_outputs=True, decode_strings=False)
        self._start = partial(inner.start_async, request, {}, None)
        self._wait = partial(inner.wait, request)
        self._cancel: Callable[[], object] = request.cancel
        self._is_long: bool | None = None

    def run(self, stop: StopFlag) -> bool:
        """Runs to the end; False where it was interrupted."""
        if stop.raised:
            return False
        if self._is_long:
            return self._run_interruptibly(stop)
        started_ns = 0 if self._is_long is False else time.perf_counter_ns()
        try:
            self._infer()
        except RuntimeError as error:
            raise GeneralFailure(f"OpenVINO failed running: {error}") from error
        if started_ns:
            self._is_long = time.perf_counter_ns() - started_ns > _WORTH_INTERRUPTING_NS
        return True

    def rewind(self) -> None:
        """Nothing is left of a run that did not end."""

    def _run_interruptibly(self, stop: StopFlag) -> bool:
        started_ns = time.perf_counter_ns()
        try:
            self._start()
            if not stop.arm(self._cancel):
                self._cancel()
            self._wait()
        except RuntimeError as error:
            if stop.raised == ABORT:
                return False
            raise GeneralFailure(f"OpenVINO failed running: {error}") from error
        finally:
            stop.disarm()
        self._is_long = time.perf_counter_ns() - started_ns > _WORTH_INTERRUPTING_NS
        return True
