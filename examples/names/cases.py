"""Conformance cases one by one, a gated engine, and the scheduler without a runtime."""

from __future__ import annotations

import itertools

import numpy as np

import nnasync as nn
from nnasync import conformance, kernels, scheduler
from nnasync.conformance import Case, CaseOutcome, CaseResult, Runner
from nnasync.devices import NullEngine, OnnxRuntimeEngine
from nnasync.engine import Engine, OutputBuffer
from nnasync.hal import ExecutionConfig
from nnasync.kernels import Operation, Parameter, Signature
from nnasync.scheduler import AGING_NS, Estimate, Job, Scheduler

CONFIG = ExecutionConfig(measure=True)
"""How a request is executed: here its time is taken."""


def some_cases(count: int) -> list[Case]:
    (path,) = conformance.case_files(conformance.OWN_CASES)
    return list(itertools.islice(conformance.read_cases(path), count))


async def judged() -> None:
    async with nn.open_runtime(devices=["nnasync-reference"]) as runtime:
        runner = Runner(runtime, runtime.devices[0])
        for case in some_cases(2):
            result: CaseResult = await runner.run(case)
            print(result.name, result.outcome is CaseOutcome.PASSED)


async def with_engines() -> None:
    """An engine that takes a millisecond and computes nothing, and a provider of ONNX Runtime."""
    builder = nn.ModelBuilder("doubler")
    x = builder.input("x", (1, 4))
    builder.output("y", builder.add(x, x))
    slow: Engine = NullEngine("slow", latency_ns=1_000_000)
    async with nn.open_runtime(devices=[slow]) as runtime:
        net = await runtime.compile(builder.build())
        print((await net(np.ones((1, 4), np.float32))).shape)
        try:
            raise nn.DeviceDied("as an example")
        except nn.DeviceError as error:
            print(error)


def on_cuda() -> OnnxRuntimeEngine:
    """For `open_runtime(devices=[...])` where ONNX Runtime has CUDA."""
    return OnnxRuntimeEngine("onnxruntime-cuda")


def operations() -> None:
    """What each operation takes, in which version of the HAL."""
    add: Operation = kernels.OPERATIONS[nn.OperationType.ADD]
    signature: Signature = add.signatures[0]
    first: Parameter = signature.inputs[0]
    print(first.name, signature.since.name, len(kernels.EXTENSION_OPERATIONS) > 0)


def given_back(output: OutputBuffer) -> int:
    """An engine writes an output whose shape is open where there is room."""
    return output.memory.nbytes


def who_is_next() -> None:
    """The scheduler has no clock and no thread: it is told what time it is."""
    queue, now_ns = Scheduler(servers=1, queue_limit=16, aging_ns=AGING_NS), 0
    for priority in (nn.Priority.LOW, nn.Priority.HIGH):
        queue.submit(Job(priority, Estimate()), now_ns)
    job = queue.next(now_ns, tuple(nn.Priority))
    print(job is not None and job.priority.name, now_ns < scheduler.NEVER_NS)


async def main() -> None:
    await judged()
    await with_engines()
    operations()
    who_is_next()


if __name__ == "__main__":
    nn.run(main)
