"""A watcher of two cameras: one network, two priorities, a line for each thing that comes or goes.

python app.py 0 rtsp://192.168.0.7/stream --out seen.jsonl
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import nnasync as nn
from nnasync import vision
from nnasync.cli import demo_data
from nnasync.streaming import (
    FileSink,
    Graph,
    GraphAccount,
    Item,
    Policy,
    open_video,
    results_file,
)

BUDGET_NS = 200_000_000
IMPORTANT, OTHER = nn.Priority.HIGH, nn.Priority.MEDIUM

Event = dict[str, Any]


class Watch:
    """What is to be seen in one camera: follows things, and tells when they come and go."""

    def __init__(self, camera: str) -> None:
        self._camera = camera
        self._tracker = vision.Tracker()
        self._present: dict[int, str] = {}

    def __call__(self, item: Item) -> list[Event]:
        """The events of a picture, whose boxes come in order."""
        boxes = self._tracker.update(item.data, item.captured_ns)
        things = {box.identity: box.name for box in boxes if box.identity is not None}
        came = things.keys() - self._present.keys()
        left = self._present.keys() - things.keys()
        events = [self._event(item, "came", n, things[n]) for n in sorted(came)]
        events += [self._event(item, "left", n, self._present[n]) for n in sorted(left)]
        self._present = things
        return events

    def _event(self, item: Item, what: str, identity: int, name: str) -> Event:
        second = round(item.media_ns / 1e9, 2)
        return {
            "camera": self._camera,
            "second": second,
            "event": what,
            "thing": identity,
            "digit": name,
        }


async def watch(
    cameras: Mapping[str, Any],
    out: Path,
    *,
    budget_ns: int | None = BUDGET_NS,
    runtime: Callable[[], Any] = nn.open_runtime,
) -> GraphAccount:
    """Watch cameras, sources by name, until they end; the first is more important than others."""
    async with runtime() as rt, contextlib.aclosing(_rows(out)) as rows:
        net = await rt.compile(demo_data.path("detector.nnm"))
        detect = demo_data.digit_detector(net)
        graph = Graph()
        for place, (name, source) in enumerate(cameras.items()):
            frames = graph.source(
                source,
                name=name,
                budget_ns=budget_ns,
                priority=OTHER if place else IMPORTANT,
                policy=Policy.NEWEST if budget_ns else Policy.BLOCK,
                on_error="stream",
            )
            boxes = frames.map(detect, name=f"{name}: digits")
            boxes.sink(_telling(Watch(name), rows), name=f"{name}: events", policy=Policy.BLOCK)
        await graph.run()
        for name, error in graph.errors().items():
            print(f"{name} ended: {error}", file=sys.stderr)
    return graph.account()


def _rows(out: Path) -> FileSink:
    return results_file(out, row=lambda item: item.data)


def _telling(watch: Watch, rows: FileSink) -> Callable[[Item], Awaitable[None]]:
    async def tell(item: Item) -> None:
        for event in watch(item):
            await rows(item.having(event))

    return tell


def main() -> None:
    """Read the command line, and watch."""
    parser = argparse.ArgumentParser(description="Write what comes and goes before two cameras.")
    parser.add_argument("cameras", nargs=2, metavar="CAMERA", help="a number, file or address")
    parser.add_argument("--out", type=Path, default=Path("seen.jsonl"))
    arguments = parser.parse_args()
    cameras = {
        name: open_video(int(where) if where.isdecimal() else where, pixels="rgb24")
        for name, where in zip(("first", "second"), arguments.cameras, strict=True)
    }
    with contextlib.suppress(KeyboardInterrupt):
        print(nn.run(lambda: watch(cameras, arguments.out)))


if __name__ == "__main__":
    main()
