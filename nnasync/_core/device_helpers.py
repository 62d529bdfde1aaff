"""Helpers for devices and prepared models that pass on, or know, or do alike what they are asked.

The contract is in `device`; whoever implements it may take from here what others would write the
same way. A method that `passed_on` makes has the signature and the words of the contract, so that a
parameter which is added there need not be added here.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec

from nnasync.device import Device, ExecutionInfo, LoweringDevice, PreparedModel
from nnasync.errors import BadState, NNError
from nnasync.fences import Fence
from nnasync.hal import (
    DEFAULT_CONFIG,
    Capabilities,
    DeviceType,
    ErrorStatus,
    ExecutionConfig,
    ExecutionResult,
    Extension,
    HalVersion,
    Model,
    Priority,
    Request,
    Struct,
)

P = ParamSpec("P")
T = TypeVar("T")


class Answers(Struct, frozen=True):
    """What a device says of itself, in the form of HAL 1.3; `cache_files` are (model, data)."""

    name: str
    version: str
    type: DeviceType
    feature_level: HalVersion
    capabilities: Capabilities
    extensions: tuple[Extension, ...] = ()
    cache_files: tuple[int, int] = (0, 0)
    caches_late: bool = False


class KnownDevice:
    """What a device says of itself, where it was asked once and is not asked again."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers

    @property
    def name(self) -> str:
        """Unique name."""
        return self.answers.name

    @property
    def version(self) -> str:
        """Version string; UNKNOWN before HAL 1.2."""
        return self.answers.version

    @property
    def type(self) -> DeviceType:
        """Kind of hardware; OTHER before HAL 1.2."""
        return self.answers.type

    @property
    def feature_level(self) -> HalVersion:
        """Version of the HAL that the device implements by itself."""
        return self.answers.feature_level

    async def get_capabilities(self) -> Capabilities:
        """Performance figures in the form of HAL 1.3."""
        return self.answers.capabilities

    async def get_supported_extensions(self) -> tuple[Extension, ...]:
        """Vendor extensions; none before HAL 1.2."""
        return self.answers.extensions

    async def get_number_of_cache_files_needed(self) -> tuple[int, int]:
        """Numbers of model cache and data cache files; (0, 0) before HAL 1.2."""
        return self.answers.cache_files

    @property
    def caches_late(self) -> bool:
        """Returns whether it may write cache files after it prepared a model."""
        return self.answers.caches_late


def passed_on(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """A method of the contract for a class that has the attribute `inner`, which does it."""
    name = method.__name__

    @functools.wraps(method)
    async def forward(self: Any, /, *arguments: P.args, **options: P.kwargs) -> T:
        result: T = await getattr(self.inner, name)(*arguments, **options)
        return result

    return forward


class ForwardingDevice:
    """A device that has another one do whatever it is asked; subclasses say what they change."""

    def __init__(self, inner: Device) -> None:
        self.inner = inner

    @property
    def name(self) -> str:
        """Unique name."""
        return self.inner.name

    @property
    def version(self) -> str:
        """Version string, not empty."""
        return self.inner.version

    @property
    def type(self) -> DeviceType:
        """Kind of hardware."""
        return self.inner.type

    @property
    def feature_level(self) -> HalVersion:
        """Version of the HAL that the device implements."""
        return self.inner.feature_level

    @property
    def why_not(self) -> Callable[[Model], Awaitable[Sequence[str | None]]] | None:
        """Returns the device's own `why_not`; None where it has none."""
        ask: Callable[[Model], Awaitable[Sequence[str | None]]] | None
        ask = getattr(self.inner, "why_not", None)
        return ask

    @property
    def share(self) -> Callable[[PreparedModel, Priority], Awaitable[PreparedModel]] | None:
        """Returns the device's own `share`; None where it has none."""
        share: Callable[[PreparedModel, Priority], Awaitable[PreparedModel]] | None
        share = getattr(self.inner, "share", None)
        return share

    get_status = passed_on(Device.get_status)
    get_capabilities = passed_on(Device.get_capabilities)
    get_supported_extensions = passed_on(Device.get_supported_extensions)
    get_number_of_cache_files_needed = passed_on(Device.get_number_of_cache_files_needed)
    get_supported_operations = passed_on(Device.get_supported_operations)
    prepare_model = passed_on(Device.prepare_model)
    prepare_model_from_cache = passed_on(Device.prepare_model_from_cache)
    allocate = passed_on(Device.allocate)
    close = passed_on(Device.close)


class ForwardingLoweringDevice(ForwardingDevice):
    """The same for a device that knows several ways to run a model."""

    inner: LoweringDevice

    lowerings = passed_on(LoweringDevice.lowerings)


def begun_at(config: ExecutionConfig, at_ns: int) -> ExecutionConfig:
    """A config of a fenced execution whose last fence was signaled then: its duration ends too."""
    if config.duration_ns is None:
        return config
    deadline_ns = min(config.deadline_ns, at_ns + config.duration_ns)
    return msgspec.structs.replace(config, deadline_ns=deadline_ns, duration_ns=None)


def failed_info(fence: Fence) -> ExecutionInfo | None:
    """Returns the info of a fenced execution that failed; None where its fence was signaled.

    Raises BadState while the fence is pending.
    """
    if not fence.done:
        raise BadState("the execution has not finished; await its fence first")
    error = fence.error
    if error is None:
        return None
    return ExecutionInfo(
        error.status if isinstance(error, NNError) else ErrorStatus.GENERAL_FAILURE
    )


class PlainExecutions(ABC):
    """The plain executions of a prepared model, where one method does both."""

    async def execute(
        self, request: Request, config: ExecutionConfig = DEFAULT_CONFIG
    ) -> ExecutionResult:
        """Run through the device's queue."""
        return await self._execute(request, config, at_once=False)

    async def execute_synchronously(
        self, request: Request, config: ExecutionConfig = DEFAULT_CONFIG
    ) -> ExecutionResult:
        """Run with the least overhead that the device has."""
        return await self._execute(request, config, at_once=True)

    @abstractmethod
    async def _execute(
        self, request: Request, config: ExecutionConfig, *, at_once: bool
    ) -> ExecutionResult:
        """Run, `at_once` or through the queue."""
