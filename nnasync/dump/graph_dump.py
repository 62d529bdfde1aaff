"""A model as a Graphviz graph, written where it is wanted: NNAPI's graphDump."""

from __future__ import annotations

import logging
from typing import TextIO

import msgspec

from nnasync.dump.model_dump import model_dot
from nnasync.hal import Model

logger = logging.getLogger("nnasync.dump")


def graph_dump(name: str, model: Model, stream: TextIO | None = None) -> None:
    """Write a legal model as a Graphviz digraph of this name to a stream.

    Without a stream each line goes to the logger `nnasync.dump`, at level INFO.
    """
    text = model_dot(msgspec.structs.replace(model, name=name))
    if stream is not None:
        stream.write(text)
        return
    for line in text.splitlines():
        logger.info("%s", line)
