"""How a device comes into a runtime: it is examined, and made into one of HAL 1.3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nnasync.clock import Deadline
from nnasync.device import Buffer, Device, Lowering, LoweringDevice, PreparedModel
from nnasync.hal import (
    BufferDesc,
    BufferRole,
    Capabilities,
    DeviceStatus,
    DeviceType,
    ExecutionPreference,
    Extension,
    HalVersion,
    Model,
    Priority,
)
from nnasync.versions.answers import PATIENCE_S, Answers, examine
from nnasync.versions.device import Versioned
from nnasync.versions.errands import Errands

__all__ = ["Discovered", "admit"]


async def admit(device: Any, errands: Errands, *, patience_s: float = PATIENCE_S) -> Device:
    """A device of any HAL version as one of HAL 1.3 whose answers about itself do not change.

    Raises GeneralFailure that says what is wrong with what it says of itself.
    """
    if isinstance(device, Discovered | Versioned):
        return device
    answers = await examine(device, patience_s=patience_s)
    errands.open()
    if answers.feature_level < HalVersion.V1_3:
        return Versioned(device, answers, errands)
    if isinstance(device, LoweringDevice):
        return DiscoveredLowering(device, answers, errands)
    return Discovered(device, answers, errands)


class Discovered:
    """A device of HAL 1.3 that was asked once what it is."""

    def __init__(self, inner: Device, answers: Answers, errands: Errands) -> None:
        self.inner = inner
        self.errands = errands
        self._answers = answers

    @property
    def name(self) -> str:
        """Name of the device."""
        return self._answers.name

    @property
    def version(self) -> str:
        """Version of the device."""
        return self._answers.version

    @property
    def type(self) -> DeviceType:
        """Kind of hardware."""
        return self._answers.type

    @property
    def feature_level(self) -> HalVersion:
        """HAL 1.3."""
        return self._answers.feature_level

    @property
    def pid(self) -> int:
        """The process that a device of its own process lives in; others have no such attribute."""
        inner: Any = self.inner
        return int(inner.pid)

    async def get_status(self) -> DeviceStatus:
        """Whether the device takes work now: this alone is asked each time."""
        return await self.inner.get_status()

    async def get_capabilities(self) -> Capabilities:
        """Its figures."""
        return self._answers.capabilities

    async def get_supported_extensions(self) -> tuple[Extension, ...]:
        """Its extensions."""
        return self._answers.extensions

    async def get_number_of_cache_files_needed(self) -> tuple[int, int]:
        """Its numbers of cache files."""
        return self._answers.cache_files

    async def get_supported_operations(self, model: Model) -> tuple[bool, ...]:
        """What the device says."""
        return await self.inner.get_supported_operations(model)

    async def prepare_model(
        self,
        model: Model,
        preference: ExecutionPreference = ExecutionPreference.FAST_SINGLE_ANSWER,
        priority: Priority = Priority.MEDIUM,
        deadline: Deadline | None = None,
        *,
        model_cache: Sequence[int] = (),
        data_cache: Sequence[int] = (),
        token: bytes = b"",
    ) -> PreparedModel:
        """Compile on the device."""
        return await self.inner.prepare_model(
            model,
            preference,
            priority,
            deadline,
            model_cache=model_cache,
            data_cache=data_cache,
            token=token,
        )

    async def prepare_model_from_cache(
        self,
        deadline: Deadline | None,
        model_cache: Sequence[int],
        data_cache: Sequence[int],
        token: bytes,
    ) -> PreparedModel:
        """Load on the device."""
        return await self.inner.prepare_model_from_cache(deadline, model_cache, data_cache, token)

    async def allocate(
        self,
        desc: BufferDesc,
        prepared_models: Sequence[PreparedModel],
        input_roles: Sequence[BufferRole],
        output_roles: Sequence[BufferRole],
    ) -> Buffer:
        """Allocate on the device."""
        return await self.inner.allocate(desc, prepared_models, input_roles, output_roles)

    async def close(self) -> None:
        """Close the device."""
        await self.inner.close()


class DiscoveredLowering(Discovered):
    """The same for a device that knows several ways to run a model."""

    inner: LoweringDevice

    async def lowerings(
        self, model: Model, preference: ExecutionPreference
    ) -> tuple[Lowering, ...]:
        """What the device says."""
        return await self.inner.lowerings(model, preference)

    async def prepare_model(
        self,
        model: Model,
        preference: ExecutionPreference = ExecutionPreference.FAST_SINGLE_ANSWER,
        priority: Priority = Priority.MEDIUM,
        deadline: Deadline | None = None,
        *,
        model_cache: Sequence[int] = (),
        data_cache: Sequence[int] = (),
        token: bytes = b"",
        lowering: Lowering | None = None,
    ) -> PreparedModel:
        """Compile on the device."""
        return await self.inner.prepare_model(
            model,
            preference,
            priority,
            deadline,
            model_cache=model_cache,
            data_cache=data_cache,
            token=token,
            lowering=lowering,
        )
