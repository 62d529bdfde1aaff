"""Triton by way of PyTriton: two instances, priorities, and time-outs of requests."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, QueuePolicy, Tensor, TimeoutAction
from pytriton.triton import Triton, TritonConfig


def tensor(name: str, details: Any) -> Tensor:
    """Returns how Triton declares an input or output, without its first dimension."""
    shape = tuple(int(size) for size in details["shape"][1:])
    return Tensor(name=name, dtype=np.dtype(details["dtype"]).type, shape=shape)


def instance(path: str) -> tuple[Callable[..., Any], Any, Any]:
    """Returns a function that runs the network, and the details of its input and output."""
    interpreter = Interpreter(path, num_threads=1)
    interpreter.allocate_tensors()
    taken, given = interpreter.get_input_details()[0], interpreter.get_output_details()[0]

    @batch
    def infer(x: Any) -> list[Any]:
        interpreter.set_tensor(taken["index"], x)
        interpreter.invoke()
        return [interpreter.get_tensor(given["index"])]

    return infer, taken, given


if __name__ == "__main__":
    port, path = int(sys.argv[1]), sys.argv[2]
    first, taken, given = instance(path)
    config = ModelConfig(
        max_batch_size=1,
        batcher=DynamicBatcher(
            priority_levels=3,
            default_priority_level=2,
            default_queue_policy=QueuePolicy(
                timeout_action=TimeoutAction.REJECT,
                default_timeout_microseconds=250_000,
                allow_timeout_override=True,
            ),
        ),
    )
    places = TritonConfig(
        http_address="127.0.0.1", http_port=port, grpc_port=port + 1, metrics_port=port + 2
    )
    with Triton(config=places) as triton:
        triton.bind(
            model_name="network",
            infer_func=[first, instance(path)[0]],
            inputs=[tensor("x", taken)],
            outputs=[tensor("y", given)],
            config=config,
        )
        triton.serve()
