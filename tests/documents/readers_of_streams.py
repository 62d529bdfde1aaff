"""The reader of the page about streams: two cameras, of which one is in the network, and a peer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from nnasync import streaming
from nnasync.streaming import Item, synthetic
from tests.documents.pages import Page
from tests.streaming.network.servers import Server, transport_stream
from tests.streaming.webrtc.test_peer import Browser, Frames, Tone

RGB = np.zeros((48, 64, 3), np.uint8)
HOP = np.zeros(160, np.float32)


def with_cameras(page: Page) -> Iterator[None]:
    shown: list[Item] = []
    page.space.update(net=same, words=same, prepared=lambda x: x, is_interesting=lambda x: True)
    page.space.update(show=shown.append, as_text=str, with_boxes=lambda item: item.data)
    page.patch.setattr(streaming, "camera", recording_of(streaming.camera, RGB))
    page.patch.setattr(streaming, "microphone", recording_of(streaming.microphone, HOP))
    yield
    assert page.space["graph"].account().pending == 0
    shown.clear()
    with Server("tcp", lambda line: line.send(transport_stream(sound=True, count=10))) as server:
        page.patch.setattr(streaming, "network", at(server.url))
        yield
    assert {item.data.shape for item in shown} == {(224, 224, 3), (160,)}
    shown.clear()
    yield
    assert {item.data.shape for item in shown} == {RGB.shape, HOP.shape}
    peer = Peer()
    page.patch.setattr("aioice.ice.get_host_addresses", lambda **_: ["127.0.0.1"])
    page.space.update(offer=page.wait(peer.offer()), reply=peer.take)
    yield
    assert peer.browser.heard
    page.wait(peer.browser.connection.close())
    to_record(page)
    yield
    page.run("await graph.run()")
    sizes = {path.name: path.stat().st_size for path in page.folder.iterdir()}
    assert min(sizes[name] for name in ("seen.mp4", "heard.wav", "results.jsonl")) > 0


def recording_of(device: Callable[..., Any], data: Any) -> Callable[..., Any]:
    """In place of a camera or a microphone: what it takes, and three items that are all alike."""

    def opened(*names: Any, **options: Any) -> Any:
        device(*names, **options)
        return synthetic(lambda _: data, rate_hz=100, count=3, pace="fast")

    return opened


async def same(data: Any) -> Any:
    return data


def at(url: str) -> Any:
    """`network`, but of another address, and without a second connection."""
    real = streaming.network

    def network(address: str, *, retry: streaming.Backoff, **options: Any) -> Any:
        real(address, retry=retry, **options)
        return real(url, retry=None, **options)

    return network


class Peer:
    """A browser that goes when it has heard an answer."""

    async def offer(self) -> str:
        self.browser = Browser()
        for track in (Frames(), Tone()):
            self.browser.connection.addTrack(track)
        channel = self.browser.channel
        channel.on("message", lambda _: channel.transport.transport.stop())
        return await self.browser.offer()

    async def take(self, answer: str) -> None:
        await self.browser.take(answer)


def to_record(page: Page) -> None:
    """A graph of pictures, sound and results."""
    graph = page.space["graph"] = streaming.Graph()
    made = {
        "frames": lambda _: RGB,
        "hops": lambda _: HOP,
        "results": lambda n: {"n": n},
    }
    for name, make in made.items():
        source = synthetic(make, rate_hz=100, count=3, pace="fast")
        page.space[name] = graph.source(source, policy=streaming.Policy.BLOCK)
