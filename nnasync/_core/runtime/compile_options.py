"""What is rarely asked of a compilation."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, Literal, ParamSpec, TypeVar

import msgspec

from nnasync.errors import InvalidArgument

__all__ = ["CompileOptions", "checked", "spec_fields", "taking_old_keywords"]

P = ParamSpec("P")
T = TypeVar("T")


class CompileOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Rare settings of one compilation, for `rt.compile(model, options=...)`.

    wait: for what `compile` waits where nothing is known of the model yet. With "first", the
    default, the engine that is ready soonest answers, the devices are compared in the background,
    and the best takes over; `await net.optimized()` waits for that. With "best" `compile` itself
    does. pin: `report().pin` of an earlier compilation, whose choice is reproduced.
    preemption_quantum_ms: the plan is cut into segments of about this length, so that
    more urgent executions wait no longer. token: 32 bytes that name the model in the cache, by
    default its SHA-256. `compile` raises InvalidArgument for values that make no sense.
    """

    wait: Literal["first", "best"] | None = None
    pin: str | None = None
    preemption_quantum_ms: float | None = None
    token: bytes | None = None
    optimize_after: int | None = None
    """An older form of wait="first"."""

    def __post_init__(self) -> None:
        if self.optimize_after is not None:
            text = 'optimize_after is wait="first" now, which is the default'
            warnings.warn(text, DeprecationWarning, stacklevel=2)


DEFAULT_WAIT = "first"
"""For what a compilation waits that does not say so."""

_OLD = ("pin", "preemption_quantum_ms", "token")
_COUNTS = ("optimize_after", "optimise_after")


def taking_old_keywords(compile: Callable[P, T]) -> Callable[P, T]:
    """Have `compile` take the fields of CompileOptions as keywords too, with a warning."""

    @functools.wraps(compile)
    def call(*arguments: Any, **keywords: Any) -> T:
        old = {name: keywords.pop(name) for name in _OLD if name in keywords}
        if [keywords.pop(name) for name in _COUNTS if name in keywords]:
            old["wait"] = "first"
        if old:
            text = f"compile takes options=nn.CompileOptions({', '.join(old)}=...) now"
            warnings.warn(text, DeprecationWarning, stacklevel=2)
            options = checked(keywords.get("options"))
            keywords["options"] = msgspec.structs.replace(options, **old)
        return compile(*arguments, **keywords)

    return call


def checked(options: CompileOptions | None) -> CompileOptions:
    """`options=` of a compilation, or the defaults; raises InvalidArgument for anything else."""
    if options is None:
        return CompileOptions()
    given: object = options
    if not isinstance(given, CompileOptions):
        raise InvalidArgument(f"options must be nn.CompileOptions(...), got {given!r}")
    return options


def spec_fields(options: CompileOptions | None) -> dict[str, Any]:
    """`options=` of a compilation as fields of its spec; raises as `checked` does."""
    found = checked(options)
    is_older = found.wait is None and found.optimize_after is not None
    return {
        "wait": found.wait or ("first" if is_older else DEFAULT_WAIT),
        "pin": found.pin,
        "preemption_quantum_ms": found.preemption_quantum_ms,
        "token": found.token,
    }
