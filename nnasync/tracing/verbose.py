"""VLOG: NNAPI's verbose log by tags, chosen by the environment variable NNASYNC_VLOG.

The variable (NNAPI's property is `debug.nn.vlog`) holds tags separated by space, comma or colon;
`all` and `1` mean all of them, empty means none, and an unknown one is warned of once. A line is

    vlog.compilation("%s: %d partitions", name, count)

and goes to the logger `nnasync.vlog.compilation` at level INFO. Where its tag is off, the method is
one that does nothing. What is costly to find out is asked for first: `if vlog.is_on("driver"):`.
Lines go to stderr unless the program has set logging up.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable

TAGS = ("model", "compilation", "execution", "cpuexe", "manager", "driver", "memory")
VARIABLE = "NNASYNC_VLOG"

logger = logging.getLogger("nnasync.vlog")


class Vlog:
    """One method a tag; those of the tags that are off do nothing."""

    __slots__ = ("_on", "_unknown", *TAGS)

    model: Callable[..., None]
    compilation: Callable[..., None]
    execution: Callable[..., None]
    cpuexe: Callable[..., None]
    manager: Callable[..., None]
    driver: Callable[..., None]
    memory: Callable[..., None]

    def __init__(self, text: str = "") -> None:
        self._on: frozenset[str] = frozenset()
        self._unknown: set[str] = set()
        self.select(text)

    def select(self, text: str) -> None:
        """Switch the tags named in `text` on, and all others off."""
        words = [word for word in re.split(r"[\s,:]+", text) if word]
        everything = "all" in words or "1" in words
        self._on = frozenset(TAGS) if everything else frozenset(TAGS).intersection(words)
        for tag in TAGS:
            setattr(self, tag, _line(tag) if tag in self._on else _nothing)
        if not everything:
            self._warn(word for word in words if word not in TAGS)
        if self._on:
            _make_visible()

    def is_on(self, tag: str) -> bool:
        """Returns whether lines of this tag are written."""
        return tag in self._on

    def _warn(self, words: Iterable[str]) -> None:
        for word in words:
            if word not in self._unknown:
                self._unknown.add(word)
                known = ", ".join(TAGS)
                logger.warning("%s: no tag %r; there are all, %s", VARIABLE, word, known)


def _nothing(*_: object) -> None:
    pass


def _line(tag: str) -> Callable[..., None]:
    return logger.getChild(tag).info


def _unheard(_: logging.LogRecord) -> bool:
    """Returns whether the program has given the root logger no handler."""
    return not logging.getLogger().handlers


def _make_visible() -> None:
    logger.setLevel(logging.INFO)
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(relativeCreated)10.3f %(name)s: %(message)s"))
        handler.addFilter(_unheard)
        logger.addHandler(handler)


vlog = Vlog(os.environ.get(VARIABLE, ""))
"""The verbose log of this process, switched on by the environment."""
