"""What is rarely asked of a compilation."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import msgspec

from nnasync.errors import InvalidArgument

__all__ = ["CompileOptions", "checked", "taking_old_keywords"]

P = ParamSpec("P")
T = TypeVar("T")


class CompileOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Rare settings of one compilation, for `rt.compile(model, options=...)`.

    pin: `report().pin` of an earlier compilation, whose choice is reproduced. optimize_after: the
    first device that takes the model gets it at once, and the choice is made after so many
    executions. preemption_quantum_ms: the plan is cut into segments of about this length, so that
    more urgent executions wait no longer. token: 32 bytes that name the model in the cache, by
    default its SHA-256. `compile` raises InvalidArgument for values that make no sense.
    """

    pin: str | None = None
    optimize_after: int | None = None
    preemption_quantum_ms: float | None = None
    token: bytes | None = None


_OLD = {name: name for name in CompileOptions.__struct_fields__}
_OLD["optimise_after"] = "optimize_after"


def taking_old_keywords(compile: Callable[P, T]) -> Callable[P, T]:
    """Have `compile` take the fields of CompileOptions as keywords too, with a warning."""

    @functools.wraps(compile)
    def call(*arguments: Any, **keywords: Any) -> T:
        old = {name: keywords.pop(name) for name in _OLD if name in keywords}
        if old:
            fields = {_OLD[name]: value for name, value in old.items()}
            text = f"compile takes options=nn.CompileOptions({', '.join(fields)}=...) now"
            warnings.warn(text, DeprecationWarning, stacklevel=2)
            options = checked(keywords.get("options"))
            keywords["options"] = msgspec.structs.replace(options, **fields)
        return compile(*arguments, **keywords)

    return call


def checked(options: CompileOptions | None) -> CompileOptions:
    """`options=` of a compilation, or the defaults; raises InvalidArgument for anything else."""
    if options is None:
        return CompileOptions()
    given: object = options
    if not isinstance(given, CompileOptions):
        raise InvalidArgument(f"options must be nn.CompileOptions(...), got {given!r}")
    return given
