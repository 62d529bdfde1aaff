"""A compiled network, and its calls that are bound to memory.

The memory of a request is set once, when it is bound, so that a run is one call of the engine.
Pieces of memory that the engine would not take as they are (it wants 64 bit alignment at most) are
taken all the same: its kernels load without alignment.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from nnasync._core.drivers.openvino.background import Background, Network
from nnasync._core.drivers.openvino.exports import Export, in_engine
from nnasync._core.drivers.openvino.infer_requests import InferRequest, run_interruptibly
from nnasync._core.drivers.openvino.networks import SHARED, Networks
from nnasync._core.drivers.openvino.package import faults
from nnasync._core.workers import ABORT
from nnasync.engine import BoundCall, Given, Phase, Plan, StopFlag, Target, fit, span
from nnasync.errors import BadState, GeneralFailure, InvalidArgument
from nnasync.hal import Array, Shape
from nnasync.tracing import SWITCH

_WORTH_INTERRUPTING_NS = 10_000_000
"""Runs longer than this go through a thread of the engine, where alone they can be cancelled; to
wake it and be woken costs some 15 to 60 microseconds.
"""


class OpenVinoPlan(Plan):
    """A compiled network; each of its calls has requests of its own."""

    def __init__(
        self,
        network: Network,
        output_shapes: Sequence[Shape],
        precision: str,
        threads: int,
        *,
        cores: int,
        read: Callable[[Any], Network],
        blob: Any = None,
    ) -> None:
        """`cores` are there for executions at once.

        `read` makes a network of a tensor of bytes, `blob` where this one was read too.
        """
        self._export = network.export
        self.is_imported = self._export is None
        copied = partial(_copied, network.export, read, blob)
        at_once = cores // threads
        # As many again, for what goes ahead of as many executions of less priority.
        self.networks = Networks(network, copied, 2 * at_once if at_once > 1 else 1)
        self.is_long: bool | None = None
        self.background = Background() if threads == 1 else None
        self.compiled = network.compiled
        self.precision = precision
        self.threads = threads
        self.output_shapes = tuple(output_shapes)

    def reads_in_place(self, array: Array) -> bool:
        """Returns whether an array is contiguous and writable, which the engine asks of inputs.

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
        return OpenVinoCall(self, arrays, targets)

    def exported(self) -> memoryview:
        """The compiled network with its weights, in the form of the engine.

        Raises BadState for a network that was imported: the engine cannot read what it would write.
        """
        if self._export is None:
            raise BadState("OpenVINO exports no network that it has imported itself")
        return self._export()

    def trim(self) -> None:
        """Gives back what the requests hold, unless one of them runs."""
        # The engine refuses while a request runs, and there is no way to ask it first.
        for network in tuple(self.networks.all):
            with contextlib.suppress(RuntimeError):
                network.compiled.release_memory()


def _copied(export: Export | None, read: Callable[[Any], Network], blob: Any) -> Network:
    """Another network that is the same, from its bytes or what it was read from itself."""
    return read(blob if export is None else in_engine(export()))


class OpenVinoCall(BoundCall):
    """Requests bound to arrays, one for each network; used by one thread at a time.

    A request is made when a run has taken its network: the engine makes none while another run is
    under way there, and who binds memory would wait for that, however little its priority.

    While runs of its plan take long, or nobody knows, it can be interrupted; short ones go without,
    which is cheaper. The first of a network that was imported goes without: it is waited for.
    """

    __slots__ = ("_arrays", "_give_back", "_plan", "_requests", "_take", "_targets")

    def __init__(
        self, plan: OpenVinoPlan, arrays: Sequence[Array], targets: Sequence[Array]
    ) -> None:
        self._plan = plan
        self._arrays = tuple(arrays)
        self._targets = tuple(targets)
        networks = plan.networks
        self._take, self._give_back = networks.take, networks.give_back
        self._requests: dict[int, InferRequest] = {}

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        """Runs to the end; False where it was interrupted."""
        if stop.raised:
            return False
        if SWITCH.on:
            with span(Phase.COMPUTATION, "infer with OpenVINO"):
                return self._run(stop)
        return self._run(stop)

    def _run(self, stop: StopFlag) -> bool:
        number = self._take()
        try:
            request = self._requests.get(number) or self._request_on(number)
            plan = self._plan
            if stop.demoted and number != SHARED:
                background = plan.background
                if background is not None and background.wants():
                    network, is_long = plan.networks.all[number], bool(plan.is_long)
                    return background.run(network, request, stop, is_long=is_long)
            if plan.is_long is not False:
                return self._run_timed(number, request, stop)
            request.infer()
        except RuntimeError as error:
            if stop.raised == ABORT:
                return False
            raise GeneralFailure(f"OpenVINO failed running: {error}") from error
        finally:
            self._give_back(number)
        return True

    def rewind(self) -> None:
        """Does nothing, since a run that did not end leaves nothing."""

    def _request_on(self, number: int) -> InferRequest:
        """The request of a network on which this call has not run yet."""
        network = self._plan.networks.all[max(number, 0)]
        with faults("binding memory"):
            request = InferRequest(network.compiled, self._arrays, self._targets)
        self._requests[number] = request
        if number <= 0:
            self._requests[0] = self._requests[SHARED] = request
        return request

    def _run_timed(self, number: int, request: InferRequest, stop: StopFlag) -> bool:
        """Run, and find out whether runs are long."""
        plan = self._plan
        started_ns = time.perf_counter_ns()
        network = plan.networks.all[max(number, 0)]
        if (plan.is_long or not plan.is_imported) and not network.may_be_demoted:
            run_interruptibly(request, stop)
        else:
            request.infer()
        plan.is_long = time.perf_counter_ns() - started_ns > _WORTH_INTERRUPTING_NS
        return True
