"""A live stream: the newest frame wins, each is due one frame period after it came."""

from __future__ import annotations

from collections import Counter

import nnasync as nn
from nnasync.cli import demo_data
from nnasync.hal import Array
from nnasync.streaming import Policy, Stage, video_file

FRAMES = 60
BUDGET_NS = 33_000_000


def prepared(frame: Array) -> Array:
    image: Array = (frame.reshape(1, 64, 64, 1) / 255).astype("float32")
    return image


async def main() -> None:
    async with nn.open_runtime() as runtime:
        net = await runtime.compile(demo_data.path("digits.nnm"))
        seen: Counter[int] = Counter()
        async with net.burst() as burst:
            stage = Stage(burst, policy=Policy.NEWEST, budget_ns=BUDGET_NS, prepare=prepared)
            async with stage:
                stage.feed(video_file(demo_data.path("digits.mp4"), size=(64, 64)))
                async for result in stage:
                    if result.value is not None:
                        seen[int(result.value.argmax())] += 1
                    if stage.account.submitted >= FRAMES:
                        break

    statistics = stage.statistics()
    print(f"seen (10 is nothing): {dict(sorted(seen.items()))}")
    print(statistics.account)
    print(f"median {statistics.latency.p50_ns / 1e6:.1f} ms, {statistics.hit_rate:.0%} in time")


if __name__ == "__main__":
    nn.run(main)
