"""One version of a model that is served: its network, what clients see of it, what it is doing."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import anyio
import anyio.abc
import msgspec

from nnasync._core.clock import Deadline
from nnasync._core.execution import Net, Port
from nnasync.batching import Batcher
from nnasync.batching.joining import can_be_tried
from nnasync.errors import BadState, InvalidArgument, ResourceExhaustedTransient, because
from nnasync.hal import Array, Priority
from nnasync.serving.datatypes import datatype_of
from nnasync.serving.model_settings import ModelSettings
from nnasync.serving.places import Places
from nnasync.serving.problems import QUEUE_FULL
from nnasync.serving.statistics import ModelStatistics
from nnasync.serving.tensors import ServedPort, Signature, plain_bytes_of
from nnasync.tracing.families import Family

logger = logging.getLogger(__name__)

PLATFORM = "nnasync"
_NOT_JOINED = (
    "requests are not joined: the inputs leave more open than the first dimension, so that it "
    'cannot be measured whether it pays; when = "always" in the settings of batching joins them'
)


class ServedModel:
    """A compiled network as it is served; closes the network once it is retired and unused."""

    def __init__(self, name: str, net: Net[Any], settings: ModelSettings) -> None:
        """Raises InvalidArgument where the settings do not fit the network."""
        self.name = name
        self.version = settings.version
        self.net = net
        self.settings = settings
        self.statistics = ModelStatistics()
        self.signature = signature_of(name, net, settings)
        self.priority = settings.level
        """Of requests that state none."""
        self.has_timeouts = bool(settings.timeout_ms or settings.longest_timeout_ms)
        self.is_stateful = bool(net.model.state)
        """Whether its requests belong to sequences: the network carries a state."""
        self.states = states_of(name, net, self.signature)
        """States that requests of sequences may bring along and ask for."""
        self._pending = dict.fromkeys(Priority, 0)
        self.runs_plainly = not (
            net.model.state or settings.batching or settings.instances or settings.max_batch_size
        )
        """Whether a request is one call of the network, which nothing else has a say in."""
        self.remark = ""
        """What is not done for it that its settings ask for, and why."""
        self._batcher: Batcher | None = None
        self._places = Places(settings.instances) if settings.instances else None
        self._users = 0
        self._unused = anyio.Event()
        self._is_retired = False

    def signature_for(self, *, brings_states: bool, exports_state: bool) -> Signature:
        """Returns the inputs and outputs of a request that brings states, asks for them or both."""
        signature = self.signature
        return msgspec.structs.replace(
            signature,
            inputs=signature.inputs + (self.states if brings_states else ()),
            outputs=signature.outputs + (self.states if exports_state else ()),
        )

    def enter(self) -> None:
        """Counts a user of the model in: a request, or a sequence for as long as it is open."""
        if self._unused.is_set():
            raise BadState(f"version {self.version} of model {self.name!r} is closed")
        self._users += 1

    def leave(self) -> None:
        """Counts a user of the model out."""
        self._users -= 1
        self._look()

    async def retire(self) -> None:
        """Closes the network once nobody uses it any more."""
        self._is_retired = True
        self._look()
        await self._unused.wait()
        await self.net.aclose()

    def _look(self) -> None:
        if self._is_retired and self._users == 0:
            self._unused.set()

    @property
    def pending(self) -> int:
        """Returns how many requests are in flight."""
        return sum(self._pending.values())

    def admit(self, priority: Priority) -> None:
        """Counts a request in.

        Raises ResourceExhausted where too many of its priority and above are in flight already.
        """
        ahead = sum(count for level, count in self._pending.items() if level >= priority)
        if ahead >= self.settings.max_queue_size:
            raise because("queue_full", ResourceExhaustedTransient(QUEUE_FULL))
        self._pending[priority] += 1

    def dismiss(self, priority: Priority) -> None:
        """Counts a request out."""
        self._pending[priority] -= 1

    def drain_s(self, cores: int) -> float:
        """Returns about how many seconds the requests in flight will take on so many cores."""
        at_once = min(cores, self.settings.instances or cores)
        return self.pending * self.statistics.usual_ns / at_once * 1e-9

    def batch_size_of(self, arrays: Sequence[Array]) -> int:
        """Returns how many inferences a request with these arrays is."""
        return arrays[0].shape[0] if self.settings.max_batch_size and arrays else 1

    async def run(
        self,
        arrays: Sequence[Array],
        deadline: Deadline | None,
        priority: Priority,
        out: Array | None = None,
    ) -> tuple[Sequence[Array], int | None]:
        """Runs once; returns the outputs, and the device's time in nanoseconds where it is known.

        A model that runs plainly and has one output writes it to `out`, if that is given.
        """
        if self._batcher is not None:
            value = await self._batcher(*arrays, deadline=deadline, priority=priority)
            return self.listed(value), None
        if self._places is None:
            return await self._measured(arrays, deadline, priority, out)
        async with self._places.one(priority, deadline):
            return await self._measured(arrays, deadline, priority)

    async def _measured(
        self,
        arrays: Sequence[Array],
        deadline: Deadline | None,
        priority: Priority,
        out: Array | None = None,
    ) -> tuple[Sequence[Array], int | None]:
        found = await self.net.measured(*arrays, deadline=deadline, out=out, priority=priority)
        on_device = found.timing.time_on_device_ns
        return self.listed(found.value), on_device if 0 <= on_device < 2**62 else None

    async def join_requests(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Batches requests as the settings say, until the model is retired and unused.

        Reports itself started once it can batch; raises InvalidArgument where it cannot. Where it
        cannot be measured whether batching pays, requests are not batched, and `remark` says so.
        """
        batching = self.settings.batching
        if batching is None:
            raise BadState(f"model {self.name!r} joins no requests")
        if batching.when == "pays" and not can_be_tried(self.net):
            self.remark = _NOT_JOINED
            logger.warning("model %s, version %s: %s", self.name, self.version, _NOT_JOINED)
            task_status.started()
            return
        async with Batcher(
            self.net,
            max_rows=batching.max_size,
            window_us=batching.window_us,
            when=batching.when,
            concurrency=self.settings.instances or None,
            max_waiting=self.settings.max_queue_size,
            name=self.name,
        ) as self._batcher:
            task_status.started()
            await self._unused.wait()

    def joined(self) -> Iterable[Family]:
        """Returns the metrics of the batcher; none where requests are not batched."""
        return () if self._batcher is None else self._batcher.collect()

    @property
    def executions(self) -> int:
        """Returns how often the network ran; fewer than requests where these are batched."""
        if self._batcher is None:
            return self.statistics.executions
        runs = (each for each in self.joined() if each.name.endswith("_runs_total"))
        return int(next(runs).samples[0].value)

    def listed(self, value: Any) -> Sequence[Array]:
        """Returns the result of a call of the network as a sequence with one array per output."""
        return value if len(self.signature.outputs) > 1 else (value,)


def signature_of(name: str, net: Net[Any], settings: ModelSettings) -> Signature:
    """Returns a network's inputs and outputs as clients see them.

    Raises InvalidArgument where the settings do not fit the network.
    """
    known = {port.name for port in (*net.inputs, *net.outputs)}
    for what, named in (("labels", set(settings.labels)), ("datatypes", set(settings.datatypes))):
        if unknown := named - known:
            raise InvalidArgument(
                f"model {name!r}: {what} are given for {', '.join(sorted(unknown))}, which the "
                f"network does not have: it has {', '.join(sorted(known))}"
            )
    for field in ("inputs", "outputs"):
        names = [port.name for port in getattr(net, field)]
        if len(set(names)) != len(names):
            raise InvalidArgument(f"model {name!r} has two {field} of one name: {names}")
    if settings.max_batch_size:
        check_batches(name, net)
    labels = {net.outputs[0].name: net.labels, **settings.labels} if net.outputs else {}
    return Signature(
        name,
        tuple(_served(name, port, settings, ()) for port in net.inputs),
        tuple(_served(name, port, settings, labels.get(port.name, ())) for port in net.outputs),
        settings.max_batch_size,
    )


def states_of(name: str, net: Net[Any], signature: Signature) -> tuple[ServedPort, ...]:
    """Returns a network's states as inputs and outputs.

    There are none where their names would be ambiguous.
    """
    states = net.states
    taken = {port.name for port in (*signature.inputs, *signature.outputs)}
    if taken.intersection(port.name for port in states):
        return ()
    return tuple(_served(name, port, ModelSettings(), ()) for port in states)


def check_batches(name: str, net: Net[Any]) -> None:
    """Raises InvalidArgument unless the first dimensions of all ports are open.

    Outputs may have a rank that is not known before a run.
    """
    closed = [port.name for port in net.inputs if not port.shape or port.shape[0]]
    closed += [port.name for port in net.outputs if port.is_settled or any(port.shape[:1])]
    if closed:
        raise InvalidArgument(
            f"model {name!r} has a max_batch_size, and the first dimension of "
            f"{', '.join(closed)} is not open"
        )


def _served(name: str, port: Port, settings: ModelSettings, labels: Sequence[str]) -> ServedPort:
    datatype = datatype_of(port.dtype)
    if datatype is None:
        raise InvalidArgument(f"model {name!r}: {port.name!r} has a type that no client knows")
    wanted = settings.datatypes.get(port.name, datatype)
    if wanted != datatype and (datatype, wanted) not in (("FP32", "BF16"), ("FP32", "FP16")):
        raise InvalidArgument(f"model {name!r}: {port.name!r} is {datatype}, not {wanted}")
    shape = _shape(port)
    return ServedPort(port, wanted, shape, tuple(labels), plain_bytes_of(port, wanted, shape))


def _shape(port: Port) -> tuple[int, ...]:
    """Returns the dimensions as clients see them, with -1 for an open one."""
    if not port.shape and not port.is_settled:
        return (-1,)
    return tuple(size or -1 for size in port.shape)
