"""The actor of a device on a node of Ray: its process serves the device until it ends.

The service runs on a thread with a loop of its own, since the loop of an actor is Ray's. When it
fails, the process ends, and Ray starts it again where it has room.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from concurrent.futures import Future

import anyio

from nnasync._core.runtime import Options, open_runtime
from nnasync._core.service import for_service, serve_at

logger = logging.getLogger(__name__)


class DeviceHost:
    """Serves one device to who has the key, at an address of its node."""

    def __init__(self, device: str, key: bytes, cores: int, node: str) -> None:
        """`node` is the address at which other nodes reach this one; empty asks Ray for it."""
        self._address: Future[str] = Future()
        self._device = device
        self._key = key
        self._options = for_service(Options(cores=cores))
        self._node = node or _own_node()
        threading.Thread(target=self._run, name="nnasync-device-host", daemon=True).start()

    def address(self) -> str:
        """Returns the address of the service; raises why there is none."""
        return self._address.result()

    def pid(self) -> int:
        """The process that serves it."""
        return os.getpid()

    def node(self) -> str:
        """The number of the node that it is on."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def _run(self) -> None:
        try:
            anyio.run(self._serve)
        except BaseException as error:
            if not self._address.done():
                self._address.set_exception(error)
                return
            logger.exception("the service of %s failed", self._device)
            os._exit(1)

    async def _serve(self) -> None:
        async with (
            open_runtime(devices=[self._device], options=self._options) as runtime,
            anyio.create_task_group() as tasks,
        ):
            host = f"[{self._node}]" if ":" in self._node else self._node
            serving = functools.partial(serve_at, key=self._key)
            address = await tasks.start(serving, runtime.devices[0], f"tcp://{host}:0")
            self._address.set_result(address)


def _own_node() -> str:
    from ray.util import get_node_ip_address

    return str(get_node_ip_address())
