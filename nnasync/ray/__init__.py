"""An application of networks on many machines: as a deployment of Ray Serve.

`app` mounts an application of `nnasync.asgi` with a runtime in each replica, and has requests go to
replicas that can answer by their deadlines. It needs Ray: pip install 'nnasync[ray]'.
"""

from __future__ import annotations

from nnasync.ray.deployment import app as app

__all__ = ["app"]
