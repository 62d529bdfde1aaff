"""BentoML: two workers, JSON with the tensor in base64."""

from __future__ import annotations

import base64
import os
import subprocess
import sys

import bentoml
import numpy as np
from ai_edge_litert.interpreter import Interpreter


@bentoml.service(workers=2, traffic={"timeout": 1, "max_concurrency": 16})
class Network:
    """The network, one interpreter in each worker."""

    def __init__(self) -> None:
        self.interpreter = Interpreter(os.environ["GOODPUT_MODEL"], num_threads=1)
        self.interpreter.allocate_tensors()
        self.input = self.interpreter.get_input_details()[0]
        self.output = self.interpreter.get_output_details()[0]["index"]

    @bentoml.api
    def predict(self, x: str) -> str:
        """Answers one request."""
        raw = base64.b64decode(x)
        array = np.frombuffer(raw, self.input["dtype"]).reshape(self.input["shape"])
        self.interpreter.set_tensor(self.input["index"], array)
        self.interpreter.invoke()
        return base64.b64encode(self.interpreter.get_tensor(self.output).tobytes()).decode()


if __name__ == "__main__":
    folder, file = os.path.split(os.path.abspath(__file__))
    subprocess.run(
        [
            *(sys.executable, "-m", "bentoml", "serve", f"{file.removesuffix('.py')}:Network"),
            *("--working-dir", folder, "--host", "127.0.0.1", "--port", sys.argv[1]),
        ],
        env={**os.environ, "GOODPUT_MODEL": sys.argv[2], "BENTOML_DO_NOT_TRACK": "True"},
        check=True,
    )
