"""What a device of an older HAL version has; each version adds to the one before.

Like a device of HAL 1.3 it answers with coroutines and raises a class of `errors` where the HAL
returns a status. A `close` of a device or of its prepared models is called if it is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from nnasync.burst import BurstCallback, BurstContext, Channel
from nnasync.hal import (
    Capabilities10,
    Capabilities11,
    Capabilities12,
    DeviceStatus,
    DeviceType,
    ExecutionPreference,
    ExecutionResult,
    Extension,
    HalVersion,
    Model,
    Request,
)

__all__ = [
    "BurstPreparedModel12",
    "Device10",
    "Device11",
    "Device12",
    "OlderDevice",
    "OlderPreparedModel",
    "PreparedModel10",
    "PreparedModel12",
]


class PreparedModel10(Protocol):
    """A compiled model on a device of HAL 1.0 or 1.1."""

    async def execute(self, request: Request) -> object:
        """Run; the outputs are written when it returns, and all their shapes were known before."""


class PreparedModel12(Protocol):
    """A compiled model on a device of HAL 1.2."""

    async def execute(self, request: Request, *, measure: bool = False) -> ExecutionResult:
        """Run through the device's queue."""

    async def execute_synchronously(
        self, request: Request, *, measure: bool = False
    ) -> ExecutionResult:
        """Run with the least overhead."""


@runtime_checkable
class BurstPreparedModel12(PreparedModel12, Protocol):
    """One that serves bursts of its own; requests that come over them have no deadlines."""

    async def configure_execution_burst(
        self, callback: BurstCallback, request_channel: Channel, result_channel: Channel
    ) -> BurstContext:
        """Serve execution requests that come over a channel until the context is closed."""


class _Named(Protocol):
    """What devices of all versions have."""

    @property
    def name(self) -> str:
        """Unique name."""

    @property
    def feature_level(self) -> HalVersion:
        """Version of the HAL that the device implements."""

    async def get_status(self) -> DeviceStatus:
        """Whether the device takes work now."""

    async def get_supported_operations(self, model: Model) -> Sequence[bool]:
        """For each operation of the main subgraph, whether the device can run it."""


class Device10(_Named, Protocol):
    """A device of HAL 1.0."""

    async def get_capabilities(self) -> Capabilities10:
        """Two performance figures."""

    async def prepare_model(self, model: Model) -> PreparedModel10:
        """Compile a model."""


class Device11(_Named, Protocol):
    """A device of HAL 1.1."""

    async def get_capabilities(self) -> Capabilities11:
        """Three performance figures."""

    async def prepare_model(self, model: Model, preference: ExecutionPreference) -> PreparedModel10:
        """Compile a model."""


class Device12(_Named, Protocol):
    """A device of HAL 1.2."""

    @property
    def version(self) -> str:
        """Version string, not empty."""

    @property
    def type(self) -> DeviceType:
        """Kind of hardware."""

    async def get_capabilities(self) -> Capabilities12:
        """A performance figure for each type of operand."""

    async def get_supported_extensions(self) -> tuple[Extension, ...]:
        """Vendor extensions that are supported in full."""

    async def get_number_of_cache_files_needed(self) -> tuple[int, int]:
        """Numbers of model cache and data cache files; (0, 0) means no caching."""

    async def prepare_model(
        self,
        model: Model,
        preference: ExecutionPreference,
        *,
        model_cache: Sequence[int] = (),
        data_cache: Sequence[int] = (),
        token: bytes = b"",
    ) -> PreparedModel12:
        """Compile a model and write it to the cache files, if there are any."""

    async def prepare_model_from_cache(
        self, model_cache: Sequence[int], data_cache: Sequence[int], token: bytes
    ) -> PreparedModel12:
        """Load a compiled model."""


OlderDevice = Device10 | Device11 | Device12
OlderPreparedModel = PreparedModel10 | PreparedModel12
