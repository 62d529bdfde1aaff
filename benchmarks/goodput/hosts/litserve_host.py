"""LitServe: two workers, JSON with the tensor in base64."""

from __future__ import annotations

import base64
import sys
from typing import Any

import litserve
import numpy as np
from ai_edge_litert.interpreter import Interpreter


class Api(litserve.LitAPI):
    """The network, one interpreter in each worker."""

    def setup(self, device: str) -> None:
        """Loads the network."""
        self.interpreter = Interpreter(sys.argv[2], num_threads=1)
        self.interpreter.allocate_tensors()
        self.input = self.interpreter.get_input_details()[0]
        self.output = self.interpreter.get_output_details()[0]["index"]

    def decode_request(self, request: dict[str, str]) -> Any:
        """Returns the tensor of a request."""
        raw = base64.b64decode(request["x"])
        return np.frombuffer(raw, self.input["dtype"]).reshape(self.input["shape"])

    def predict(self, x: Any) -> Any:
        """Runs the network."""
        self.interpreter.set_tensor(self.input["index"], x)
        self.interpreter.invoke()
        return self.interpreter.get_tensor(self.output)

    def encode_response(self, output: Any) -> dict[str, str]:
        """Returns the answer as JSON has it."""
        return {"y": base64.b64encode(output.tobytes()).decode()}


if __name__ == "__main__":
    server = litserve.LitServer(Api(), accelerator="cpu", workers_per_device=2, timeout=0.25)
    server.run(
        host="127.0.0.1", port=int(sys.argv[1]), log_level="error", generate_client_file=False
    )
