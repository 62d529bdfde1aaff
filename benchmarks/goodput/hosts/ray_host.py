"""Ray Serve: two replicas, the tensor as the body of a request."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import ray
from ai_edge_litert.interpreter import Interpreter
from ray import serve
from starlette.requests import Request
from starlette.responses import Response


@serve.deployment(num_replicas=2, max_ongoing_requests=4, ray_actor_options={"num_cpus": 0.5})
class Network:
    """The network, one interpreter in each replica."""

    def __init__(self, path: str) -> None:
        self.interpreter = Interpreter(path, num_threads=1)
        self.interpreter.allocate_tensors()
        self.input = self.interpreter.get_input_details()[0]
        self.output = self.interpreter.get_output_details()[0]["index"]

    async def __call__(self, request: Request) -> Any:
        """Answers one request."""
        x = np.frombuffer(await request.body(), self.input["dtype"]).reshape(self.input["shape"])
        self.interpreter.set_tensor(self.input["index"], x)
        self.interpreter.invoke()
        return Response(self.interpreter.get_tensor(self.output).tobytes())


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    serve.start(
        http_options={
            "host": "127.0.0.1",
            "port": int(sys.argv[1]),
            "request_timeout_s": 0.25,
        }
    )
    serve.run(Network.bind(sys.argv[2]), name="network", route_prefix="/")
    while True:
        time.sleep(60)
