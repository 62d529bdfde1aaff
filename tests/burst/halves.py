"""Both halves of a burst in one process, with a device that does what a test says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from nnasync import burst
from nnasync.burst import BurstController, BurstServer, LocalChannel, Outcome
from nnasync.errors import (
    NNError,
)
from nnasync.fences import Fence
from nnasync.hal import (
    DEFAULT_CONFIG,
    DataLocation,
    ExecutionConfig,
    ExecutionResult,
    Memory,
    Request,
    RequestArgument,
)

encode = msgspec.msgpack.encode
decode_result = msgspec.msgpack.Decoder(burst.BurstResult).decode


class Block:
    """Memory of a test."""

    name = "ashmem"
    size = 64
    fd = -1

    @property
    def view(self) -> memoryview:
        return memoryview(bytearray(64))


def request(*pools: Memory | int, offset: int = 0) -> Request:
    """One input in the first pool, one output in the last."""
    last = len(pools) - 1
    return Request(
        (RequestArgument(location=DataLocation(0, offset, 8)),),
        (RequestArgument(location=DataLocation(last, 32, 8)),),
        pools,
    )


class Begun:
    """One execution that the device was asked for."""

    def __init__(
        self, device: Device, request: Request, config: ExecutionConfig, options: dict[str, Any]
    ) -> None:
        self._device = device
        self.request = request
        self.config = config
        self.behind: Fence | None = options["behind"]
        self.reply: Callable[[Outcome], None] = options["reply"]
        self.release: Callable[[], None] = options["release"]
        self.cancelled = 0

    @property
    def may_run(self) -> bool:
        return self.behind is None or self.behind.done

    def cancel(self) -> None:
        self.cancelled += 1

    def end(self, outcome: Outcome | None = None) -> None:
        self.reply(ExecutionResult() if outcome is None else outcome)
        self.release()


class Device:
    """A device that does what the test says, and counts the questions of its server."""

    def __init__(self) -> None:
        self.begun: list[Begun] = []
        self.refusal: BaseException | None = None
        self.at_once: Outcome | None = None

    def begin(
        self, request: Request, config: ExecutionConfig, **options: Any
    ) -> Callable[[], None] | None:
        if self.refusal is not None:
            raise self.refusal
        begun = Begun(self, request, config, options)
        self.begun.append(begun)
        if self.at_once is not None:
            begun.end(self.at_once)
            return None
        return begun.cancel


class Asked:
    """A client's callback that notes which slots it was asked for."""

    def __init__(self, controller: BurstController) -> None:
        self._controller = controller
        self.slots: list[list[int]] = []

    def get_memories(self, slots: Sequence[int]) -> tuple[Memory, ...]:
        self.slots.append(list(slots))
        return self._controller.get_memories(slots)


class Rig:
    """Both halves of a burst over channels in this process."""

    def __init__(self) -> None:
        self.device = Device()
        self.requests, self.results = LocalChannel(), LocalChannel()
        self.controller = BurstController(self.requests, self.results)
        self.asked = Asked(self.controller)
        self.server = BurstServer(self.device.begin, self.asked, self.results)
        self.requests.listen(self.server.receive)
        self.controller.attach(self.server)
        self.outcomes: dict[int, list[Outcome]] = {}

    def send(self, wanted: Request, config: ExecutionConfig = DEFAULT_CONFIG) -> int:
        found: list[Outcome] = []
        serial = self.controller.send(self.controller.encode(wanted), found.append, config)
        self.outcomes[serial] = found
        return serial

    def outcome(self, serial: int) -> Outcome:
        """The only outcome of a request."""
        assert len(self.outcomes[serial]) == 1
        return self.outcomes[serial][0]

    def error(self, serial: int) -> NNError:
        found = self.outcome(serial)
        assert isinstance(found, NNError)
        return found


class Collected:
    """A channel that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.error: NNError | None = None

    def send(self, message: bytes) -> None:
        if self.error is not None:
            raise self.error
        self.sent.append(message)

    def listen(self, receive: Callable[[bytes], None]) -> None:
        raise AssertionError("nobody reads here")

    def close(self) -> None:
        pass


def alone() -> tuple[BurstServer, Collected, Device]:
    """A server whose client knows no slots."""
    device, results = Device(), Collected()
    device.at_once = ExecutionResult()
    controller = BurstController(LocalChannel(), LocalChannel())
    return BurstServer(device.begin, controller, results), results, device
