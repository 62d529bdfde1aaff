"""Parameters that got another name: the old one still works, with a warning."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

__all__ = ["renamed"]

P = ParamSpec("P")
T = TypeVar("T")


def renamed(
    **names: str,
) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]:
    """Let a coroutine function take keywords by their old names too: `old="new"`."""

    def decorated(
        function: Callable[P, Coroutine[Any, Any, T]],
    ) -> Callable[P, Coroutine[Any, Any, T]]:
        @functools.wraps(function)
        async def call(*arguments: Any, **keywords: Any) -> T:
            for old, new in names.items():
                if old in keywords:
                    text = f"{old} is called {new} now"
                    warnings.warn(text, DeprecationWarning, stacklevel=2)
                    keywords.setdefault(new, keywords.pop(old))
            return await function(*arguments, **keywords)

        return call

    return decorated
