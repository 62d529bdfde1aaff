"""Devices on the nodes of a Ray cluster: placed and started again by Ray, called over TCP.

Each device is an actor whose process serves it. Ray decides on which node, by the resources that
it needs, and starts it again after it died, there or on another node; calls go over the device
protocol and not through Ray, so that deadlines, priorities and cancellation are those of any
device. The key of the service is made for each device, and goes to the actor through Ray.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Mapping
from typing import Any

from nnasync._core.arguments import check_kind, check_number, check_whole
from nnasync._core.drivers.service import NetworkAddress, NetworkDevice
from nnasync._core.drivers.service.heartbeat import HANG_AFTER_S
from nnasync._core.drivers.service.network_source import NetworkPeer
from nnasync._core.workers.anyio_threads import in_helper_thread
from nnasync.errors import DeviceUnavailable
from nnasync.ray.device_host import DeviceHost

logger = logging.getLogger(__name__)

_START_S = 60.0
"""How long Ray may take to place and start an actor."""


class RayNodes:
    """Where the service of one device is: wherever Ray has its actor now."""

    restarts = True

    def __init__(self, name: str, options: Mapping[str, Any], cores: int) -> None:
        self._name = name
        self._options = options
        self._cores = cores
        self._key = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._actor: Any = None

    def open(self) -> NetworkPeer:
        """Connect to the service, whose actor is made if there is none.

        Raises DeviceUnavailable where Ray does not place it in time, or it does not serve.
        """
        import ray

        try:
            address = ray.get(self._living().address.remote(), timeout=_START_S)
        except Exception as error:  # Ray hands on whatever the actor raised.
            raise DeviceUnavailable(f"{self}: {type(error).__name__}: {error}") from error
        return NetworkAddress(address, key=self._key).open()

    def close(self) -> None:
        """End the actor, and what it serves."""
        import ray

        with self._lock:
            actor, self._actor = self._actor, None
        if actor is not None:
            try:
                ray.kill(actor)
            except Exception as error:  # The cluster may be gone.
                logger.info("the actor of %s was not ended: %s", self._name, error)

    def __str__(self) -> str:
        return f"{self._name} on a node of Ray"

    def _living(self) -> Any:
        """The actor; Ray starts it again by itself, and calls of it wait for that."""
        import ray

        with self._lock:
            if self._actor is None:
                kind = ray.remote(DeviceHost).options(**self._options)
                self._actor = kind.remote(self._name, self._key, self._cores, "")
            return self._actor


class RayDevice(NetworkDevice):
    """A device on a node of Ray, which is started again after it or its node has died."""

    async def close(self) -> None:
        """End the connection and the actor."""
        try:
            await super().close()
        finally:
            if isinstance(self.source, RayNodes):
                await in_helper_thread(self.source.close)


class PlacedDevice:
    """What `device` returns: `open_runtime` takes it in its list of devices, and opens it."""

    def __init__(self, name: str, called: str, source: RayNodes, hang_after_s: float) -> None:
        self.name = called or name
        self._called = called
        self._source = source
        self._hang_after_s = hang_after_s

    async def open_device(self) -> RayDevice:
        """Have it placed and connect to it; raises DeviceUnavailable."""
        try:
            return await RayDevice.open(
                self._source, self.name, called=self._called, hang_after_s=self._hang_after_s
            )
        except BaseException:
            self._source.close()
            raise


def look_for_ray() -> None:
    """Raise ImportError, with the line that installs it, where Ray is missing."""
    try:
        import ray  # noqa: F401 - it is looked for, and used by what is opened
    except ImportError as error:
        raise ImportError(
            "nnasync.ray needs ray, which is not installed: pip install 'nnasync[ray]'"
        ) from error


def device(
    name: str,
    *,
    called: str = "",
    cores: int = 1,
    resources: Mapping[str, float] | None = None,
    hang_after_s: float = HANG_AFTER_S,
    **options: Any,
) -> PlacedDevice:
    """A device on a node of Ray, for `open_runtime(devices=[...])`.

    A runtime knows it by its `name`, or as it is `called`, so that there can be several of a kind.
    Ray places it on a node with so many `cores` and these `resources`, and starts it again, perhaps
    elsewhere, after its process or node has died; `options` are further ones of Ray's actors. One
    that is silent for `hang_after_s` while something is awaited of it counts as dead. Raises
    InvalidArgument for fewer cores than 1, ImportError without Ray.
    """
    check_kind("name", name, str, "a str")
    check_whole("cores", cores, 1)
    check_number("hang_after_s", hang_after_s, 0)
    look_for_ray()
    chosen = {
        "num_cpus": cores,
        "resources": dict(resources or {}),
        "max_restarts": -1,
        "max_task_retries": -1,
        **options,
    }
    return PlacedDevice(name, called, RayNodes(name, chosen, cores), hang_after_s)
