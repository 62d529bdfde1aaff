"""One camera and one microphone, or what stands for them, on their way through the networks.

A session is a graph of two chains. The account of a chain is that of its stages together:

    video   link -> see -> show          audio   link -> hear -> say

An error of a source, such as that of a recording without sound, ends its own chain alone.

Pictures for the page are encoded outside of the graph, always the newest one: to be looked at is
not what the deadline of a frame is about.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Protocol

import anyio
import anyio.to_thread

from nnasync import now_ns
from nnasync.cli.live.link import Link, StreamSettings
from nnasync.cli.live.messages import (
    Heard,
    LinkState,
    Notice,
    Seen,
    StreamName,
    TickStream,
    encode,
    encode_picture,
)
from nnasync.cli.live.networks import Networks
from nnasync.cli.live.recognizers import Ears, Eyes, Sight
from nnasync.cli.live.sources import Sources
from nnasync.streaming import Graph, Item, ItemSource, JpegWriter, Policy

_LATENCIES = 512
_RATE_TICKS = 20


class Audience(Protocol):
    """Who watches a session."""

    def tell(self, message: str | bytes, *, key: str = "") -> None:
        """Send a message; in the place of an older one of the same key that still waits."""


class Chain:
    """One stream of a session: its link, its stages in the graph, and its latencies."""

    def __init__(self, name: StreamName, link: Link) -> None:
        self.name = name
        self.link = link
        self.stages: Sequence[str] = ()
        self._latencies: deque[tuple[float, float, int]] = deque(maxlen=_LATENCIES)
        self._counted: deque[tuple[int, int]] = deque([(now_ns(), 0)], maxlen=_RATE_TICKS)

    def answered(self, item: Item, answered_ns: int) -> float:
        """Note when an item had its answer; returns the time since its capture in milliseconds."""
        latency_ms = round((answered_ns - item.captured_ns) / 1e6, 2)
        in_time = item.deadline_ns is None or answered_ns <= item.deadline_ns
        self._latencies.append((round(item.captured_ns / 1e6, 1), latency_ms, int(in_time)))
        return latency_ms

    def tick(self, graph: Graph) -> TickStream:
        """Returns the account of the stream, with the latencies since the last call."""
        account = graph.statistics(*self.stages).account
        submitted, (before_ns, before) = account.submitted, self._counted[0]
        self._counted.append((now_ns(), submitted))
        elapsed_s = max(now_ns() - before_ns, 1) / 1e9
        latencies = tuple(self._latencies)
        self._latencies.clear()
        return TickStream(
            submitted=submitted,
            completed=account.completed,
            missed=account.missed,
            dropped=account.dropped,
            failed=account.failed,
            cancelled=account.cancelled,
            pending=account.pending,
            lost=self.link.lost,
            rate_hz=(submitted - before) / elapsed_s,
            latencies=latencies,
        )


class Session:
    """Runs a graph over `sources` and tells `audience` what comes of it.

    With `shows_pictures` the pictures are sent, too: the page has no camera of its own to show.
    """

    def __init__(
        self,
        sources: Sources,
        networks: Networks,
        names: Sequence[str],
        settings: dict[StreamName, StreamSettings],
        audience: Audience,
        *,
        shows_pictures: bool,
    ) -> None:
        self._networks = networks
        self._names = names
        self._settings = settings
        self._audience = audience
        self._sources = sources
        self._shows_pictures = shows_pictures
        self._graph = Graph()
        self._newest: tuple[Seen, Sight] | None = None
        self._came = anyio.Event()
        self._link_state: LinkState = "normal"
        self.chains: list[Chain] = []

    async def run(self) -> None:
        """Play to the end of the sources; raises what one raises if no other came to its end."""
        async with AsyncExitStack() as stack:
            if self._sources.video is not None:
                self._build_video(self._sources.video)
            if self._sources.audio is not None:
                burst = await stack.enter_async_context(self._networks.words.burst())
                self._build_audio(self._sources.audio, Ears(burst))
            async with anyio.create_task_group() as tasks:
                for chain in self.chains:
                    tasks.start_soon(self._pump, chain)
                if self._shows_pictures:
                    tasks.start_soon(self._send_pictures)
                await self._graph.run()
                tasks.cancel_scope.cancel()
            self._raise_if_all_failed()

    def set_link(self, state: LinkState) -> None:
        """Sets what happens to items from now on before they enter the graph."""
        self._link_state = state
        for chain in self.chains:
            chain.link.state = state

    def tick(self) -> dict[StreamName, TickStream]:
        """Returns the accounts of the streams."""
        return {chain.name: chain.tick(self._graph) for chain in self.chains}

    def _build_video(self, source: ItemSource) -> None:
        chain = self._chain("video", source)
        frames = self._graph.source(
            chain.link, name="camera", policy=Policy.NEWEST, on_error="stream"
        )
        seen = frames.map(Eyes(self._networks.detector), name="see")
        seen.sink(lambda item: self._show(chain, item), name="show")
        chain.stages = ("camera", "see", "show")

    def _build_audio(self, source: ItemSource, ears: Ears) -> None:
        chain = self._chain("audio", source)
        hops = self._graph.source(
            chain.link, name="microphone", policy=Policy.OLDEST, on_error="stream"
        )
        heard = hops.map(ears, name="hear", capacity=4)
        heard.sink(lambda item: self._say(chain, item), name="say")
        chain.stages = ("microphone", "hear", "say")

    def _chain(self, name: StreamName, source: ItemSource) -> Chain:
        link = Link(
            source,
            self._settings[name],
            on_gap=lambda lost, gap_ns: self._gap(name, lost, gap_ns),
        )
        link.state = self._link_state
        chain = Chain(name, link)
        self.chains.append(chain)
        return chain

    async def _pump(self, chain: Chain) -> None:
        error = await chain.link.pump()
        if error is not None and not all(each.link.has_ended for each in self.chains):
            text = f"{chain.name} is over, the rest goes on: {error}"
            self._audience.tell(encode(Notice(text, kind="error")))

    def _raise_if_all_failed(self) -> None:
        errors = self._graph.errors()
        failed = [errors[chain.stages[0]] for chain in self.chains if chain.stages[0] in errors]
        if failed and len(failed) == len(self.chains):
            raise failed[0]

    def _gap(self, name: StreamName, lost: int, gap_ns: int) -> None:
        text = f"{name} is back: nothing came for {gap_ns / 1e9:.1f} s, {lost} items were lost"
        self._audience.tell(encode(Notice(text)))

    def _show(self, chain: Chain, item: Item) -> None:
        sight: Sight = item.data
        latency_ms = chain.answered(item, sight.answered_ns)
        if self._networks.killed_ns is not None:
            down_s = (sight.answered_ns - self._networks.killed_ns) / 1e9
            self._networks.killed_ns = None
            text = f"pictures are recognized again, {down_s:.1f} s after the driver was killed"
            self._audience.tell(encode(Notice(text)))
        seen = Seen(item.index, sight.boxes, latency_ms)
        if self._shows_pictures:
            self._newest = seen, sight
            self._came.set()
        else:
            self._audience.tell(encode(seen))

    def _say(self, chain: Chain, item: Item) -> None:
        latency_ms = chain.answered(item, now_ns())
        if item.data is not None:
            word = self._names[item.data.label]
            self._audience.tell(encode(Heard(word, round(item.data.score, 3), latency_ms)))

    async def _send_pictures(self) -> None:
        writer = JpegWriter()
        while True:
            await self._came.wait()
            self._came = anyio.Event()
            if self._newest is not None:
                seen, sight = self._newest
                jpeg = await anyio.to_thread.run_sync(writer.encode, sight.picture)
                self._audience.tell(encode_picture(seen, jpeg), key="picture")
