"""A driver of HAL 1.0, which knows ADD, MUL and FULLY_CONNECTED in float32 and caches by itself.

It has neither preference, priority, deadline, fences nor compilation caching: the runtime makes up
for all but the last. For that it keeps its own cache with the nnCache engine: what it prepared of a
constant (a packed weight) is found again by its digest when the program is started anew. Whoever
can write a blob file decides what is loaded from it, so this one is signed; its key is in the same
folder, which must be one that only the user can write to.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import sys
import tempfile
from pathlib import Path

import anyio
import anyio.to_thread
import numpy as np
from nncache import BlobCache, BlobLimits, load_blobs, save_blobs

import nnasync as nn
from nnasync.devices import ReferenceEngine
from nnasync.engine import operand_value
from nnasync.hal import (
    Array,
    Capabilities10,
    DeviceStatus,
    HalVersion,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
    PerformanceInfo,
    Request,
    RequestArgument,
    dtype_of,
)

KNOWN = (OperationType.ADD, OperationType.MUL, OperationType.FULLY_CONNECTED)
LIMITS = BlobLimits(max_key=64, max_value=1 << 20, max_total=1 << 22)


class PackedWeights:
    """Weights transposed for the matrix product, kept from run to run."""

    def __init__(self, folder: Path) -> None:
        self.hits = self.misses = 0
        self._path = folder / "hal_1_0_driver.blobs"
        self._key = signing_key(folder / "hal_1_0_driver.key")
        self._blobs = BlobCache(LIMITS, build_id=f"hal-1.0-example {np.__version__}")
        self.reason = load_blobs(self._blobs, self._path, key=self._key)

    def packed(self, weights: Array) -> Array:
        """A weight of [units, inputs] as [inputs, units], from the cache if it is there."""
        shape = (weights.shape[1], weights.shape[0])
        content = repr(weights.shape).encode() + weights.tobytes()
        key = hashlib.sha256(content).digest()
        blob = self._blobs.get(key)
        if blob is not None and len(blob) == weights.nbytes:
            self.hits += 1
            return np.frombuffer(blob, np.float32).reshape(shape)
        self.misses += 1
        made = np.ascontiguousarray(weights.T)
        self._blobs.set(key, made.tobytes())
        return made

    def save(self) -> str:
        """Write what is new; why that failed, empty if it did not."""
        return save_blobs(self._blobs, self._path, key=self._key) if self.misses else ""


def signing_key(path: Path) -> bytes:
    """The key of this installation; only its user can read it."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        key = secrets.token_bytes(32)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(key)
        return key


class Driver:
    """The device: the methods of a device of HAL 1.0."""

    name = "hal-1.0-example"
    feature_level = HalVersion.V1_0

    def __init__(self, folder: Path) -> None:
        self.weights = PackedWeights(folder)

    async def get_status(self) -> DeviceStatus:
        """Always there."""
        return DeviceStatus.AVAILABLE

    async def get_capabilities(self) -> Capabilities10:
        """Faster than the reference with floats, by its own account."""
        return Capabilities10(PerformanceInfo(0.8, 0.8), PerformanceInfo(10.0, 10.0))

    async def get_supported_operations(self, model: Model) -> list[bool]:
        """What it has arithmetic for."""
        return [supports(model, operation) for operation in model.main.operations]

    async def prepare_model(self, model: Model) -> Prepared:
        """Pack the constants, on a thread, and remember them."""
        return await anyio.to_thread.run_sync(self._prepared, model)

    async def close(self) -> None:
        """HAL 1.0 has no such call; the runtime makes it where it is there."""
        await anyio.to_thread.run_sync(self.weights.save)

    def _prepared(self, model: Model) -> Prepared:
        for operation in model.main.operations:
            if not supports(model, operation):
                raise nn.InvalidArgument(f"{self.name} has no operation {operation.type}")
        return Prepared(model, self.weights)


def supports(model: Model, operation: Operation) -> bool:
    """Whether the driver has this operation: all float32, dense layers with constant weights."""
    operands = model.main.operands
    inputs = [operands[index] for index in operation.inputs]
    if operation.type not in KNOWN or inputs[0].type != OperandType.TENSOR_FLOAT32:
        return False
    constants = inputs[-1:] if operation.type != OperationType.FULLY_CONNECTED else inputs[1:]
    shapes = [operands[index].dimensions for index in (*operation.inputs[:2], *operation.outputs)]
    return all(map(is_constant, constants)) and all(0 not in shape for shape in shapes)


def is_constant(operand: Operand) -> bool:
    """Whether an operand has its value in the model."""
    kinds = (OperandLifeTime.CONSTANT_COPY, OperandLifeTime.CONSTANT_REFERENCE)
    return operand.lifetime in kinds


class Prepared:
    """A model with its constants packed."""

    def __init__(self, model: Model, weights: PackedWeights) -> None:
        self._main = main = model.main
        self._constants: dict[int, Array] = {}
        for index, operand in enumerate(main.operands):
            value = operand_value(model, operand)
            if value is not None:
                self._constants[index] = value
        for operation in main.operations:
            if operation.type == OperationType.FULLY_CONNECTED:
                index = operation.inputs[1]
                self._constants[index] = weights.packed(self._constants[index])

    async def execute(self, request: Request) -> None:
        """Run on a thread: the loop goes on meanwhile."""
        await anyio.to_thread.run_sync(self._run, request)

    def _run(self, request: Request) -> None:
        main = self._main
        values = dict(self._constants)
        for index, argument in zip(main.input_indexes, request.inputs, strict=True):
            values[index] = self._array(request, argument, main.operands[index])
        for operation in main.operations:
            values[operation.outputs[0]] = self._computed(operation, values)
        for index, argument in zip(main.output_indexes, request.outputs, strict=True):
            self._array(request, argument, main.operands[index])[...] = values[index]

    def _array(self, request: Request, argument: RequestArgument, operand: Operand) -> Array:
        pool = request.pools[argument.location.pool_index]
        if isinstance(pool, int):
            raise nn.InvalidArgument("HAL 1.0 has no memory tokens")
        shape = argument.dimensions or operand.dimensions
        count = int(np.prod(shape, dtype=np.int64))
        start, dtype = argument.location.offset, dtype_of(operand.type)
        return np.frombuffer(pool.view, dtype, count, start).reshape(shape)

    def _computed(self, operation: Operation, values: dict[int, Array]) -> Array:
        a, b = values[operation.inputs[0]], values[operation.inputs[1]]
        if operation.type == OperationType.ADD:
            result = a + b
        elif operation.type == OperationType.MUL:
            result = a * b
        else:
            result = a.reshape(-1, b.shape[0]) @ b + values[operation.inputs[2]]
        return activated(result, int(values[operation.inputs[-1]]))


def activated(values: Array, activation: int) -> Array:
    """The fused activation: none, RELU, RELU1, RELU6."""
    low, high = {0: (-np.inf, np.inf), 1: (0, np.inf), 2: (-1, 1), 3: (0, 6)}[activation]
    return np.clip(values, low, high)


def network() -> nn.Model:
    """A dense layer and a scale, which the driver has, around a softmax, which it has not."""
    numbers = np.random.default_rng(1)
    builder = nn.ModelBuilder("small network")
    x = builder.input("x", (1, 64))
    weights = numbers.standard_normal((10, 64)).astype(np.float32)
    hidden = builder.fully_connected(x, weights, np.zeros(10, np.float32), activation="relu")
    shares = builder.softmax(hidden)
    builder.output("percent", builder.mul(shares, 100.0))
    return builder.build()


class Rest(ReferenceEngine):
    """The reference, for what the driver has not; it could do all, and then they would compete."""

    name = "reference-rest"

    def supported_operations(self, model: Model) -> list[bool]:
        """Only what the driver does not know."""
        answers = super().supported_operations(model)
        types = [operation.type for operation in model.main.operations]
        return [able and type not in KNOWN for able, type in zip(answers, types, strict=True)]


async def run_once(folder: Path) -> None:
    """One start of an application."""
    driver = Driver(folder)
    async with nn.open_runtime(devices=[driver, Rest()]) as runtime:
        device = runtime.devices[0]
        print(f"{device.name}: feature level {int(device.feature_level)}, {device.version}")
        net = await runtime.compile(network())
        for part in net.report().partitions:
            print(f"  operations {list(part.operations)} on {part.device}")
        percent = await net(np.ones((1, 64), np.float32))
        weights = driver.weights
        print(f"  sum {percent.sum():.1f} %; packed: {weights.misses}, from cache: {weights.hits}")


async def main(folder: Path) -> None:
    """Two starts with one folder."""
    for start in ("first", "second"):
        print(f"{start} start")
        await run_once(folder)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        nn.run(main, Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            nn.run(main, Path(temporary))
