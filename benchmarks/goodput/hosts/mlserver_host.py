"""MLServer: two workers, JSON of the Open Inference Protocol with the tensor in base64."""

from __future__ import annotations

import asyncio
import base64
import sys

import numpy as np
from ai_edge_litert.interpreter import Interpreter
from mlserver import MLModel, MLServer
from mlserver.settings import ModelParameters, ModelSettings, Settings
from mlserver.types import InferenceRequest, InferenceResponse, ResponseOutput


class Network(MLModel):
    """The network, one interpreter in each worker."""

    async def load(self) -> bool:
        """Loads the network."""
        self.interpreter = Interpreter(self.settings.parameters.uri, num_threads=1)
        self.interpreter.allocate_tensors()
        self.input = self.interpreter.get_input_details()[0]
        self.output = self.interpreter.get_output_details()[0]["index"]
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Answers one request."""
        raw = base64.b64decode(payload.inputs[0].data[0])
        x = np.frombuffer(raw, self.input["dtype"]).reshape(self.input["shape"])
        self.interpreter.set_tensor(self.input["index"], x)
        self.interpreter.invoke()
        y = base64.b64encode(self.interpreter.get_tensor(self.output).tobytes()).decode()
        answer = ResponseOutput(name="y", shape=[1], datatype="BYTES", data=[y])
        return InferenceResponse(model_name=self.name, outputs=[answer])


async def main() -> None:
    """Serve until the process is ended."""
    port = int(sys.argv[1])
    settings = Settings(
        host="127.0.0.1",
        http_port=port,
        grpc_port=port + 1,
        metrics_port=port + 2,
        parallel_workers=2,
        debug=False,
    )
    server = MLServer(settings)
    model = ModelSettings(
        name="network", implementation=Network, parameters=ModelParameters(uri=sys.argv[2])
    )
    await server.start([model])


if __name__ == "__main__":
    asyncio.run(main())
