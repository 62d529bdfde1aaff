"""Deadlines and priorities: an answer in time beside a load, or MissedDeadline at the deadline."""

from __future__ import annotations

import anyio
import numpy as np

import nnasync as nn
from nnasync.cli import demo_data

IMAGE = np.zeros((1, 64, 64, 1), np.float32)


async def load(net: nn.Net) -> None:
    while True:
        await net(IMAGE)


async def main() -> None:
    async with nn.open_runtime() as runtime:
        small, large = demo_data.path("digits.nnm"), demo_data.path("digits_large.nnm")
        urgent = await runtime.compile(small, priority=nn.Priority.HIGH)
        background = await runtime.compile(large, priority=nn.Priority.LOW)

        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(load, background)
            met = 0
            for _ in range(50):
                try:
                    await urgent(IMAGE, deadline=nn.within(ms=50))
                    met += 1
                except nn.MissedDeadline as error:
                    print(f"missed: {error}")
            print(f"{met} of 50 answers within 50 ms, beside two clients of a larger network")

            try:
                await background(IMAGE, deadline=nn.within(us=10))
            except nn.MissedDeadline as error:
                print(f"10 microseconds are too few: {type(error).__name__}: {error}")
            tasks.cancel_scope.cancel()


if __name__ == "__main__":
    nn.run(main)
