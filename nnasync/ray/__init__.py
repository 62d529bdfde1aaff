"""Networks on many machines: an application as a deployment of Ray Serve, and devices on nodes.

`app` mounts an application of `nnasync.asgi` with a runtime in each replica, and has requests go to
replicas that can answer by their deadlines. `device` is a device on a node, for a runtime anywhere
in the cluster. Both need Ray: pip install 'nnasync[ray]'.
"""

from __future__ import annotations

from nnasync.ray.deployment import app as app
from nnasync.ray.devices import device as device

__all__ = ["app", "device"]
