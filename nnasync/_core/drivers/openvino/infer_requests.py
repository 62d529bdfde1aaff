"""Requests of a compiled network on some memory, and runs of them that can be interrupted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from nnasync._core.drivers.openvino.package import module, request_type
from nnasync._core.giving_way import giving_way
from nnasync._core.workers import StopFlag
from nnasync.hal import Array


class InferRequest:
    """A request of one network on some memory, and what can be done with it."""

    __slots__ = ("cancel", "infer", "start", "wait", "wait_for")

    def __init__(self, network: Any, arrays: Sequence[Array], targets: Sequence[Array]) -> None:
        """Raises what the engine raises for memory that it does not take."""
        request = network.create_infer_request()
        for place, array in enumerate(arrays):
            request.set_input_tensor(place, _tensor(array))
        for place, array in enumerate(targets):
            request.set_output_tensor(place, _tensor(array))
        inner = request_type()
        infer = partial(inner.infer, request, {}, share_outputs=True, decode_strings=False)
        start: Callable[[], object] = partial(inner.start_async, request, {}, None)
        wait: Callable[[], object] = partial(inner.wait, request)
        self.start, self.wait = start, wait
        self.wait_for: Callable[[int], bool] = partial(inner.wait_for, request)
        self.cancel: Callable[[], object] = request.cancel

        def apart() -> None:
            start()
            wait()

        self.infer: Callable[[], object] = giving_way(infer, apart)


def run_interruptibly(request: InferRequest, stop: StopFlag, patience_ns: float = math.inf) -> bool:
    """Run on the engine's thread; whether the run was taken back because it had no end in time.

    Raises what the engine raises, also for a run that was aborted.
    """
    is_late = False
    try:
        request.start()
        if not stop.arm(request.cancel):
            request.cancel()
        if patience_ns < math.inf:
            is_late = not request.wait_for(math.ceil(patience_ns / 1e6))
            if is_late:
                request.cancel()
        request.wait()
    except RuntimeError:
        if is_late:
            return True
        raise
    finally:
        stop.disarm()
    return False


def _tensor(array: Array) -> Any:
    """A tensor over the memory of an array; booleans are bytes to the engine."""
    view = array.view(np.uint8) if array.dtype == np.bool_ else array
    return module().Tensor(view, shared_memory=True)
