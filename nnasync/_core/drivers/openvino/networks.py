"""The copies of a compiled network: the engine runs one execution of each at a time.

Requests of one network run one after the other, and those that wait burn a core meanwhile. So a
network that runs on fewer threads than there are cores gets a copy when an execution finds none
that is free, up to twice as many as the cores have room for: else executions of higher priority
would wait for those that they go ahead of. Copies are made aside, of what the network exports, so
their results are the same; until they are there executions share what is.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from nnasync._core.endings import joined_at_exit

logger = logging.getLogger(__name__)

SHARED = -1
"""Instead of a number: none is free, and the first is to be shared."""


class Networks:
    """Compiled networks that are the same, by number, and which of them are free."""

    def __init__(self, first: Any, copy: Callable[[], Any], most: int) -> None:
        """`copy` makes another one, on a thread of its own while others run; `most` in all."""
        self.all = [first]
        self._free = [0]
        self._copy = copy
        self._missing = most - 1
        self._lock = threading.Lock()
        self._copying: threading.Thread | None = None

    def take(self) -> int:
        """The number of one for the caller alone, to be given back, or SHARED."""
        try:
            return self._free.pop()
        except IndexError:
            if self._missing > 0 and self._copying is None:
                self._copy_in_background()
            return SHARED

    def give_back(self, number: int) -> None:
        """Have it be free again."""
        if number != SHARED:
            self._free.append(number)

    def _copy_in_background(self) -> None:
        with self._lock:
            if self._copying is not None or self._missing <= 0:
                return
            thread = threading.Thread(target=self._add, name="nnasync-copying", daemon=True)
            self._copying = thread
            # Without a thread executions take turns, and the next of them tries again.
            try:
                thread.start()
                joined_at_exit(thread)
            except RuntimeError:
                self._copying = None

    def _add(self) -> None:
        # What cannot be copied now never can be: the one that is there is shared for good.
        missing, self._missing = self._missing - 1, 0
        try:
            self.all.append(self._copy())
            self._free.append(len(self.all) - 1)
            self._missing = missing
        except Exception as error:
            logger.warning("executions of a network take turns: it cannot be copied: %s", error)
        self._copying = None
