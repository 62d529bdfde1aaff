"""What a device of an older HAL version has; each version adds to the one before.

    device            1.0   name, feature_level, get_status(), get_supported_operations(model),
                            get_capabilities() in the form of its version, prepare_model(model)
                      1.1   prepare_model(model, preference)
                      1.2   prepare_model(model, preference, *, model_cache, data_cache, token),
                            prepare_model_from_cache(model_cache, data_cache, token),
                            version, type, get_supported_extensions(),
                            get_number_of_cache_files_needed()
    prepared model    1.0   execute(request), which answers nothing
                      1.2   execute(request, *, measure) and execute_synchronously(request, *,
                            measure), which answer an ExecutionResult

Like a device of HAL 1.3 it answers with coroutines and raises a class of `errors` where the HAL
returns a status. It is not asked to serve bursts: those are made of executions. Before HAL 1.2 the
shapes of all outputs are known before a run. A `close` of a device or of its prepared models is
called if it is there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from nnasync.hal import (
    Capabilities10,
    Capabilities11,
    Capabilities12,
    DeviceStatus,
    HalVersion,
    Model,
)


class OlderDevice(Protocol):
    """A device of HAL 1.0, 1.1 or 1.2; the table of this module says what it has besides."""

    @property
    def name(self) -> str:
        """Unique name."""

    @property
    def feature_level(self) -> HalVersion:
        """Version of the HAL that the device implements."""

    async def get_status(self) -> DeviceStatus:
        """Returns whether the device takes work now."""

    async def get_capabilities(self) -> Capabilities10 | Capabilities11 | Capabilities12:
        """Performance figures, as its version has them."""

    async def get_supported_operations(self, model: Model) -> Sequence[bool]:
        """Returns for each operation of the main subgraph whether the device can run it."""

    @property
    def prepare_model(self) -> Callable[..., Awaitable[Any]]:
        """Compile a model, with what the version hands over."""
