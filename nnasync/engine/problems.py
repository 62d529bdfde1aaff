"""Checks that an object is an engine, a plan or a bound call; each missing member is named.

The contracts are protocols, which tell a driver author nothing when the object is made. These
checks do: where a runtime opens, after `compile`, and after `bind`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from nnasync.engine.contract import (
    BoundCall,
    CachingEngine,
    Engine,
    EngineBase,
    LoweringEngine,
    Plan,
)
from nnasync.errors import GeneralFailure, InvalidArgument

T = TypeVar("T")


_CONTRACTS = Engine, CachingEngine, LoweringEngine, Plan, BoundCall
_DATA = {
    name
    for contract in _CONTRACTS
    for name in (*dir(contract), *contract.__annotations__)
    if not callable(getattr(contract, name, None))
}
"""Members that are no methods."""


def _members(contract: type[Any], *others: str) -> tuple[str, ...]:
    return tuple(name for name in dir(contract) if not name.startswith("_") and name not in others)


_ASYNC = 0x80 | 0x200
"""Flags of the code of a coroutine function, and of an asynchronous generator."""
_NO_CLASS = "it is a class: make one of it"
_OPTIONAL = _members(EngineBase)
_REQUIRED = _members(Engine, *_OPTIONAL)
_CACHING = _members(CachingEngine, *dir(Engine))
_LOWERING = ("cores", "lowerings")
_INHERIT = " (engines inherit it from EngineBase)"
_PLAN, _CALL = _members(Plan), _members(BoundCall)


def problems(engine: object) -> tuple[str, ...]:
    """Returns what keeps an object from being an `Engine`, in words; empty if nothing does.

    One with `lowerings`, or one of the three things that caching takes, needs what belongs to them.
    """
    if isinstance(engine, type):
        return (f"{_NO_CLASS}, {engine.__name__}()",)
    found = [*_lacking(engine, _REQUIRED), *_lacking(engine, _OPTIONAL, _INHERIT)]
    found += _wrong_values(engine)
    if hasattr(engine, "lowerings"):
        found += _lacking(engine, _LOWERING, " (an engine with `lowerings` needs it)")
    if any(hasattr(engine, name) for name in _CACHING):
        found += _lacking(engine, _CACHING, f" (an engine that caches needs {_listed(_CACHING)})")
    return tuple(found)


def _wrong_values(engine: object) -> Iterator[str]:
    """Yields what is wrong with numbers that an engine states."""
    for name, (is_right, wanted) in _NUMBERS.items():
        try:
            value = getattr(engine, name)
        except Exception:
            continue  # It lacks it, which is told, or may do without.
        if not is_right(value):
            yield f"its `{name}` is {value!r:.60}: it must be {wanted}"


def _is_count(value: object) -> bool:
    return isinstance(value, int | np.integer) and bool(value >= 0)


def _is_pair(value: object) -> bool:
    return isinstance(value, Sequence) and len(value) == 2 and all(map(_is_count, value))


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value < math.inf


_NUMBERS: dict[str, tuple[Callable[[object], bool], str]] = {
    "concurrency": (_is_count, "a whole number, 0 or more"),
    "loads_in_ms": (_is_time, "a number of milliseconds"),
    "cache_files": (_is_pair, "two whole numbers, 0 or more"),
}


def seems_engine(thing: object) -> bool:
    """Returns whether an object was meant as an engine: it has a method that devices have not."""
    thing = thing if isinstance(thing, type) else type(thing)
    return hasattr(thing, "supported_operations") or hasattr(thing, "compile")


def check_engine(engine: object, place: str) -> None:
    """Raise InvalidArgument that names all that keeps an object from being an engine."""
    found = problems(engine)
    if found:
        raise InvalidArgument(f"{place}: {_called(engine)} is no Engine: {'; '.join(found)}")


def check_plan(plan: T, name: str, place: str = "compile") -> T:
    """The plan; raises GeneralFailure that names its missing members."""
    return _checked(plan, _PLAN, f"{name}: {place} gave {_called(plan)}, which is no Plan")


def check_call(call: T, plan: object) -> T:
    """The bound call; raises GeneralFailure that names its missing members."""
    methods = getattr(call, "run", None), getattr(call, "rewind", None)
    has_all = None not in methods and hasattr(call, "reads_given")
    if has_all and not isinstance(call, type) and not any(map(_is_coroutine_function, methods)):
        return call
    return _checked(
        call, _CALL, f"{_called(plan)}.bind gave {_called(call)}, which is no BoundCall"
    )


def _checked(thing: T, members: Sequence[str], fault: str) -> T:
    found = [_NO_CLASS] if isinstance(thing, type) else [*_lacking(thing, members)]
    if found:
        raise GeneralFailure(f"{fault}: {'; '.join(found)}")
    return thing


def _lacking(thing: object, members: Sequence[str], why: str = "") -> Iterator[str]:
    for name in members:
        try:
            value = getattr(thing, name)
        except AttributeError:
            yield f"it has no `{name}`{why}"
        except Exception as error:
            yield f"its `{name}` fails: {type(error).__name__}: {error}"
        else:
            if name not in _DATA and not callable(value):
                yield f"its `{name}` is no method but {type(value).__name__}"
            elif _is_coroutine_function(value):
                yield f"its `{name}` is a coroutine function: it must be a plain one"


def _is_coroutine_function(thing: object) -> bool:
    """Returns whether a function was written with `async def`; does not import `inspect`."""
    code = getattr(thing, "__code__", None)
    return code is not None and bool(code.co_flags & _ASYNC)


def _called(thing: object) -> str:
    if isinstance(thing, type):
        return f"the class {thing.__name__}"
    return "None" if thing is None else type(thing).__name__


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
