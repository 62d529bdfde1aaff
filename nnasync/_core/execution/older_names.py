"""What was called otherwise before: it still works, with a warning."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def older_name(name: str, method: Callable[P, T]) -> Callable[P, T]:
    """Returns a method under its older name, which warns when it is called."""

    @functools.wraps(method)
    def call(*arguments: P.args, **keywords: P.kwargs) -> T:
        text = f"{name} is called {method.__name__} now"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return method(*arguments, **keywords)

    return call


def by_old_names(
    old: Mapping[str, float], duration_s: float | None, loop_timeout_s: float | None
) -> tuple[float | None, float | None]:
    """Returns the limits of a launch, taking those given by their older names, with a warning."""
    unknown = sorted({*old} - {"duration", "loop_timeout"})
    if unknown:
        raise TypeError(f"launch() got an unexpected keyword argument {unknown[0]!r}")
    names = " and ".join(f"{name} is called {name}_s" for name in old)
    warnings.warn(f"{names} now", DeprecationWarning, stacklevel=3)
    return old.get("duration", duration_s), old.get("loop_timeout", loop_timeout_s)
