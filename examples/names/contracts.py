"""The contracts of devices, engines, bursts and kernels, as who calls or writes them meets them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

import nnasync as nn
from nnasync import burst, device, engine, kernels
from nnasync.burst import (
    Awaited,
    Begin,
    BurstArguments,
    BurstCallback,
    BurstCancel,
    BurstContext,
    BurstController,
    BurstLine,
    BurstRequest,
    BurstResult,
    BurstServer,
    Channel,
    LocalChannel,
    Outcome,
    PromptBurstContext,
    PromptLine,
    ResultDecoder,
    RunNow,
)
from nnasync.device import (
    Buffer,
    Device,
    DistantBuffer,
    ExecutionInfo,
    FencedExecution,
    InlinePreparedModel,
    InlineRun,
    LoweringDevice,
    PreparedModel,
    PrepareModelConfig,
    QuickPreparedModel,
    RepeatingPreparedModel,
    SharingDevice,
)
from nnasync.hal import Array, DataLocation, Request, RequestArgument
from nnasync.kernels import Arguments, ArraySpec, Kernel, NotConstant, Packing, Step
from nnasync.memory import Pool

LINES: tuple[type, ...] = (Awaited, BurstLine, PromptLine, InlineRun, Buffer, DistantBuffer)
"""What the framework asks of devices, which drivers seldom write themselves."""


def doubler() -> nn.Model:
    """Output y = 2 x."""
    builder = nn.ModelBuilder("doubler")
    x = builder.input("x", (1, 4))
    builder.output("y", builder.add(x, x))
    return builder.build()


def what_it_can(found: Device, prepared: PreparedModel) -> None:
    """What a device offers beyond the HAL."""
    print("several lowerings", isinstance(found, LoweringDevice))
    print("shares plans", isinstance(found, SharingDevice))
    print("runs on the caller's thread", isinstance(prepared, InlinePreparedModel))
    print("again at the least cost", isinstance(prepared, QuickPreparedModel))
    print("has another one behind it", isinstance(prepared, RepeatingPreparedModel))


async def fenced(prepared: PreparedModel) -> None:
    """A request over memory of ours: 16 bytes in, 16 bytes out."""
    with Pool.allocate(128) as pool:
        pool.array(np.float32, (1, 4))[...] = 1
        places = [RequestArgument(location=DataLocation(0, at, 16)) for at in (0, 64)]
        request = Request((places[0],), (places[1],), (pool,))
        launched: FencedExecution = await prepared.execute_fenced(
            request, [], device.DEFAULT_CONFIG
        )
        await launched.fence
        info: ExecutionInfo = await launched.get_execution_info()
        print(info.status.name, pool.array(np.float32, (1, 4), offset=64))


async def to_a_device() -> None:
    async with nn.open_runtime(devices=["nnasync-reference"]) as runtime:
        found: Device = runtime.device("nnasync-reference")
        config = PrepareModelConfig(priority=nn.Priority.HIGH)
        prepared = await found.prepare_model(doubler(), config)
        print(config != device.DEFAULT_PREPARE)
        what_it_can(found, prepared)
        await fenced(prepared)


def half_of_a_burst(begin: Begin, callback: BurstCallback, run_now: RunNow) -> BurstServer:
    """The half at the device: what comes through its channel goes to `begin`, or runs at once."""
    channel: Channel = LocalChannel()
    server = BurstServer(begin, callback, channel, run_now=run_now)
    server.receive(msgspec.msgpack.encode(BurstCancel(serial=1)))
    return server


async def half_of_a_client(requests: Channel, results: Channel, request: Request) -> Outcome:
    """The half at the client: what it sends is a request with places in memory that has a slot."""
    places = BurstArguments(request.inputs, request.outputs, slots=(0,))
    packet = BurstRequest(serial=1, arguments=msgspec.msgpack.encode(places))
    controller = BurstController(requests, results)
    print(controller, packet.serial)
    return nn.Cancelled("nothing is at the other end")


def is_near(context: BurstContext) -> bool:
    """Whether requests of a burst may be answered while its client polls."""
    return isinstance(context, PromptBurstContext)


def answers_of_a_burst(packet: bytes) -> BurstResult:
    """What came back, by the number of its request."""
    _, result = ResultDecoder().decode(packet)
    return result


def kernel() -> Kernel:
    """A kernel that doubles, bound to memory of whoever runs it."""

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], _: Sequence[Array]) -> Step:
        return functools.partial(np.multiply, inputs[0], 2, out=outputs[0])

    return Kernel(bind, scratch=[ArraySpec((4,))])


def why_not(each: engine.Argument) -> str:
    """What an engine says of an operation that it does not take."""
    return "" if each.value is not None else f"operand {each.number} is not constant"


def name_of(model: nn.Model) -> str:
    """The same for models that are the same, under which engines keep what they made of one."""
    return engine.fingerprint(model).hex()


def of_engines(found: object) -> None:
    print(engine.problems(found))
    print(isinstance(found, engine.CachingEngine), isinstance(found, engine.LoweringEngine))


def main() -> None:
    nn.run(to_a_device)
    late = burst.result_of(7, nn.MissedDeadlineTransient("too late"))
    print(late.serial, late.message)
    of_engines(kernel())
    print(kernels.MEMORY_BYTES.get(), kernels.PACKING.get(), Packing().is_complete)
    print(kernels.quantized_range(nn.OperandType.TENSOR_QUANT8_ASYMM))
    print(Arguments.__name__, issubclass(NotConstant, Exception), len(LINES))


if __name__ == "__main__":
    main()
