"""Models served over the network, with the protocol that clients of Triton and KServe speak.

    async with nn.open_runtime() as rt, ModelServer(rt, ["model.tflite"]) as server:
        app = serving.http_app(server)

`ModelServer` knows no network: `http_app` makes an ASGI application of it, which the command
`nnasync serve` runs (extra `serve`). The protocol is the Open Inference Protocol (V2) with the
extensions of Triton; every promise of times and priorities is that of the runtime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnasync._core.deferred import names
from nnasync.serving.limits import Limits
from nnasync.serving.model_settings import ModelSettings
from nnasync.serving.problems import ServingError
from nnasync.serving.serve_options import ServeOptions
from nnasync.serving.server import ModelServer

if TYPE_CHECKING:
    from nnasync.serving.http import http_app as http_app

__all__ = ["Limits", "ModelServer", "ModelSettings", "ServeOptions", "ServingError", "http_app"]

__getattr__ = names(__name__, {"http_app": "http"}, {"starlette": "serve"})
