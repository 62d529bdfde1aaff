"""The one rule for callbacks that raise: of fences, instruments, stages, posts and deadlines.

An Exception is logged with its traceback, and disturbs nothing else: what else is to be called is
called, and what was under way goes on.

Anything else, such as KeyboardInterrupt and SystemExit, is meant for those who run the thread. It
is raised when everything is in order again and the other callbacks were called: by `Fence.signal`
to its caller, by what was posted to a loop to that loop, which ends. On a thread of nnasync there
is nobody to raise it to: there it is logged like the rest, and the thread goes on.
"""

from __future__ import annotations

import logging
import threading

_OURS = "nnasync"
"""What the names of our threads begin with."""


def after_raise(error: BaseException, logger: logging.Logger, who: str) -> BaseException | None:
    """Log what a callback raised, or return what is to be raised once everything is in order."""
    is_fatal = not isinstance(error, Exception)
    if is_fatal and not threading.current_thread().name.startswith(_OURS):
        return error
    logger.error("%s raised", who, exc_info=error)
    return None
