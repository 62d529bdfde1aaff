"""Small models, and servers of them, for tests of the fronts."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import msgspec
import numpy as np

import nnasync as nn
from nnasync.serving.model_settings import ModelSettings
from nnasync.serving.serve_options import ServeOptions
from nnasync.serving.server import ModelServer


def ident() -> nn.Model:
    """y = x, of floats (n, m)."""
    builder = nn.ModelBuilder("ident")
    x = builder.input("x", (1, 3))
    builder.output("y", builder.add(x, builder.constant(np.zeros((1, 3), np.float32))))
    return builder.build()


def accumulator() -> nn.Model:
    """y is the sum of all x of a stream so far."""
    builder = nn.ModelBuilder("acc")
    x, total = builder.input("x", (1, 1)), builder.state("total", (1, 1))
    added = builder.add(x, total)
    builder.output("y", builder.add(added, builder.constant(np.zeros((1, 1), np.float32))))
    builder.update(total, added)
    return builder.build()


@contextlib.asynccontextmanager
async def served(
    *models: nn.Model, settings: ModelSettings | None = None, options: ServeOptions | None = None
) -> AsyncIterator[ModelServer]:
    """A server of these models on the reference device."""
    async with (
        nn.open_runtime(devices=["nnasync-reference"]) as rt,
        ModelServer(rt, options=options) as server,
    ):
        for model in models:
            named = msgspec.structs.replace(settings or ModelSettings(), name=model.name)
            await server.add(await rt.compile(model), named)
        yield server
