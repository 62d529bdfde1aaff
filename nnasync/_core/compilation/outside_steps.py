"""Devices that are no engines of this process, made to run steps of a partitioned model.

A step runs on a worker thread and is plain and synchronous; such a device is a set of coroutines on
the loop of its runtime. `stand_in` makes an engine of it: the worker hands the coroutine over to
the loop and blocks until that has answered. So no run of such a plan may begin on the thread of the
loop, which would wait for itself. What the step reads and writes is copied to and from shared
memory, since the device may be in another process.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnasync._core.compilation.spec import CompileSpec
from nnasync._core.engine_device import EngineDevice
from nnasync._core.versions import Discovered, Errand, Errands, Versioned
from nnasync._core.workers import ABORT, Workers
from nnasync.device import Device, PreparedModel, PrepareModelConfig
from nnasync.engine import BoundCall, EngineBase, Given, OutputBuffer, Plan, StopFlag, Target, fit
from nnasync.errors import GeneralFailure, InvalidArgument, OutputInsufficientSize
from nnasync.hal import (
    Array,
    Capabilities,
    DataLocation,
    DeviceType,
    ExecutionConfig,
    ExecutionPreference,
    ExecutionResult,
    Extension,
    Model,
    OutputShape,
    Request,
    RequestArgument,
)
from nnasync.memory import Pool, layout


async def stand_in(device: Device, workers: Workers | None, spec: CompileSpec) -> Device:
    """Returns a device over an engine that stands for a device that has none.

    Devices that have engines are returned as they are.
    """
    if workers is None or not isinstance(device, Versioned | Discovered):
        return device
    capabilities = await device.get_capabilities()
    extensions = await device.get_supported_extensions()
    return EngineDevice(OutsideEngine(device, capabilities, extensions, spec), workers)


def runs_outside(device: EngineDevice) -> bool:
    """Returns whether a device only stands in for one that has no engine."""
    return isinstance(device.engine, OutsideEngine)


class OutsideEngine(EngineBase):
    """Presents a device of a runtime as an engine, for one compilation."""

    concurrency = 0

    def __init__(
        self,
        device: Versioned | Discovered,
        capabilities: Capabilities,
        extensions: tuple[Extension, ...],
        spec: CompileSpec,
    ) -> None:
        self.capabilities = capabilities
        self.extensions = extensions
        self._device = device
        self._priority = spec.priority

    @property
    def name(self) -> str:
        """Name of the device."""
        return self._device.name

    @property
    def version(self) -> str:
        """Version of the device."""
        return self._device.version

    @property
    def type(self) -> DeviceType:
        """Kind of hardware."""
        return self._device.type

    def supported_operations(self, model: Model) -> list[bool]:
        """Returns what the device says; not to be called on the thread of its loop."""
        device = self._device
        return list(
            device.errands.call_blocking(
                device.name, lambda: device.get_supported_operations(model)
            )
        )

    def compile(self, model: Model, preference: ExecutionPreference) -> _OutsidePlan:
        """Prepare on the device; not to be called on the thread of its loop."""
        device, priority = self._device, self._priority
        prepared = device.errands.call_blocking(
            device.name,
            lambda: device.prepare_model(
                model, PrepareModelConfig(preference=preference, priority=priority)
            ),
        )
        return _OutsidePlan(prepared, model, device.errands, device.name)


class _OutsidePlan(Plan):
    """Presents a device's prepared model as a plan, and closes it when it is dropped."""

    def __init__(self, prepared: PreparedModel, model: Model, errands: Errands, name: str) -> None:
        self.prepared = prepared
        self.model = model
        self.errands = errands
        self.name = name

    def bind(self, inputs: Sequence[Array | None], outputs: Sequence[Target]) -> _OutsideCall:
        """Returns a call with shared memory of its own."""
        return _OutsideCall(self, inputs, outputs)

    def trim(self) -> None:
        """Does nothing, since all memory belongs to calls."""

    def __del__(self) -> None:
        prepared = getattr(self, "prepared", None)
        if prepared is None:
            return

        async def closed(errand: Errand[bool]) -> bool:
            await prepared.close()
            return True

        self.errands.make(f"closing a step on {self.name}", closed).begin()


class _OutsideCall(BoundCall):
    """Copies inputs to shared memory, executes on the device, and copies outputs back."""

    def __init__(
        self, plan: _OutsidePlan, inputs: Sequence[Array | None], outputs: Sequence[Target]
    ) -> None:
        self._plan = plan
        self._inputs = tuple(inputs)
        self._outputs = tuple(outputs)
        self._bind()

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        """Execute; False where the run was aborted. A run that is to yield goes on to its end."""
        if stop.raised:
            return False
        plan, request = self._plan, self._request
        for inner, source in zip(self._inner_inputs, self._inputs, strict=True):
            if inner is not None and source is not None:
                np.copyto(inner, source)
        armed: list[bool] = []
        try:
            result = plan.errands.call_blocking(
                plan.name,
                lambda: plan.prepared.execute(
                    request,
                    ExecutionConfig(loop_timeout_ns=stop.loop_timeout_ns, priority=stop.priority),
                ),
                lambda errand: armed.append(stop.arm(errand.cancel) or _cancelled(errand)),
            )
        except OutputInsufficientSize:
            raise
        except Exception:
            if stop.raised == ABORT:
                # The device may still use the memory of this run: the next one gets its own.
                self._bind()
                return False
            raise
        finally:
            stop.disarm()
        self._deliver(result)
        return True

    def rewind(self) -> None:
        """Does nothing, since nothing is left of a run that did not end."""

    def _bind(self) -> None:
        main = self._plan.model.main
        sizes = [0 if array is None else array.nbytes for array in self._inputs]
        sizes += [_size_of(output) for output in self._outputs]
        offsets, total = layout(sizes)
        self._pool = pool = Pool.allocate(max(total, 1))
        count = len(self._inputs)
        self._inner_inputs = [
            None if array is None else pool.array(array.dtype, array.shape, offset)
            for array, offset in zip(self._inputs, offsets, strict=False)
        ]
        places = [
            DataLocation(0, offset, size) for offset, size in zip(offsets, sizes, strict=True)
        ]
        inputs = [
            RequestArgument(has_no_value=True)
            if array is None
            else RequestArgument(
                location=place,
                dimensions=_dimensions(array, main.operands[index].dimensions),
            )
            for array, place, index in zip(
                self._inputs, places[:count], main.input_indexes, strict=True
            )
        ]
        outputs = [
            RequestArgument(
                location=place,
                dimensions=output.dimensions
                if isinstance(output, OutputBuffer)
                else _dimensions(output, main.operands[index].dimensions),
            )
            for output, place, index in zip(
                self._outputs, places[count:], main.output_indexes, strict=True
            )
        ]
        self._request = Request(tuple(inputs), tuple(outputs), (pool,))

    def _deliver(self, result: ExecutionResult) -> None:
        """Copy the outputs to where they go."""
        shapes = result.output_shapes or tuple(
            OutputShape(output.shape) for output in self._outputs
        )
        if len(shapes) != len(self._outputs):
            raise GeneralFailure(
                f"{self._plan.name} gives shapes of {len(shapes)} outputs, of {len(self._outputs)}"
            )
        targets = fit(self._outputs, [shape.dimensions for shape in shapes])
        for target, argument in zip(targets, self._request.outputs, strict=True):
            found = self._pool.array(target.dtype, target.shape, argument.location.offset)
            np.copyto(target, found)


def _cancelled(errand: Errand[ExecutionResult]) -> bool:
    errand.cancel()
    return False


def _size_of(output: Target) -> int:
    return output.memory.nbytes if isinstance(output, OutputBuffer) else output.nbytes


def _dimensions(array: Array, stated: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the dimensions that a request states for an array; () where the model states them."""
    if array.shape == stated or (array.ndim == 0 and not stated):
        return ()
    if array.ndim == 0:
        raise InvalidArgument(f"a scalar was given where the model has {list(stated)}")
    return array.shape
