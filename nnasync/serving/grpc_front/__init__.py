"""The gRPC front of a server: the Open Inference Protocol with Triton's extensions, on `grpc.aio`.

It needs the extra `serve`, and asyncio or uvloop.
"""

from __future__ import annotations

from nnasync.serving.grpc_front.listening import GrpcFront as GrpcFront
from nnasync.serving.grpc_front.listening import open_grpc_front as open_grpc_front
