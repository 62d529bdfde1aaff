"""The policies that come with nnasync, those of third parties, and how one is named.

`BUILT_IN` has what makes each of them; the default rule has a name too, `DEFAULT`, and no object:
it is the scheduler's own. Third parties offer theirs as entry points of the group
`nnasync.policies`: the name leads to a callable that makes a `Policy`.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from nnasync._core.packages import EntryPoint, entry_points
from nnasync.errors import InvalidArgument
from nnasync.scheduler.policies.orders import (
    DeadlineMonotonic,
    EarliestDeadlineFirst,
    FirstComeFirstServed,
    FixedPriority,
    LeastLaxity,
    ShortestJobFirst,
)
from nnasync.scheduler.policies.predicted_finish import PredictedFinish
from nnasync.scheduler.policies.reservations import Reservation, Reservations
from nnasync.scheduler.policy import DEFAULT as DEFAULT
from nnasync.scheduler.policy import Ordered, Policy

__all__ = [
    "BUILT_IN",
    "DEFAULT",
    "GROUP",
    "DeadlineMonotonic",
    "EarliestDeadlineFirst",
    "FirstComeFirstServed",
    "FixedPriority",
    "LeastLaxity",
    "PredictedFinish",
    "Reservation",
    "Reservations",
    "ShortestJobFirst",
    "policy_names",
    "resolve_policy",
]

GROUP = "nnasync.policies"
"""The group of entry points."""


def _reservations(clients: dict[Any, dict[str, float]], *, is_hard: bool = False) -> Reservations:
    """Makes reservations from a table of `budget_ms` and `period_ms` by the client's number."""
    return Reservations(
        {int(client): _reservation(client, each) for client, each in clients.items()},
        is_hard=is_hard,
    )


def _reservation(client: Any, told: dict[str, float]) -> Reservation:
    if set(told) != {"budget_ms", "period_ms"}:
        raise InvalidArgument(
            f"the reservation of client {client} has budget_ms and period_ms, not "
            f"{', '.join(sorted(told)) or 'nothing'}"
        )
    return Reservation(int(told["budget_ms"] * 1e6), int(told["period_ms"] * 1e6))


def _predicted_finish(order: str = "edf") -> PredictedFinish:
    """Returns admission by predicted finish over the order of this name."""
    made = resolve_policy(order)
    if not isinstance(made, Ordered):
        raise InvalidArgument(f"predicted-finish goes over an order, which {order!r} is not")
    return PredictedFinish(made)


BUILT_IN: dict[str, Callable[..., Policy]] = {
    "fifo": FirstComeFirstServed,
    "fixed-priority": FixedPriority,
    "fixed-priority-preemptive": functools.partial(FixedPriority, preempts=True),
    "deadline-monotonic": DeadlineMonotonic,
    "edf": EarliestDeadlineFirst,
    "edf-non-preemptive": functools.partial(EarliestDeadlineFirst, preempts=False),
    "least-laxity": LeastLaxity,
    "shortest-job": ShortestJobFirst,
    "shortest-job-preemptive": functools.partial(ShortestJobFirst, preempts=True),
    "reservations": _reservations,
    "predicted-finish": _predicted_finish,
}
"""What makes each policy, by name; parameters are keywords, the same in files and here."""


def policy_names() -> tuple[str, ...]:
    """Returns the names that `resolve_policy` knows: the default first, third parties' last."""
    foreign = sorted(point.name for point in entry_points(GROUP) if point.name not in BUILT_IN)
    return (DEFAULT, *BUILT_IN, *foreign)


def resolve_policy(policy: str | Policy | None, **parameters: Any) -> Policy | None:
    """Returns the policy of a name, made with these parameters, or the given object.

    None stands for the default rule. Raises InvalidArgument for an unknown name, for parameters
    that the policy does not have, and for an object that is no policy.
    """
    if policy is None or policy == DEFAULT:
        if parameters:
            raise InvalidArgument(f"the default policy has no parameters: {', '.join(parameters)}")
        return None
    if not isinstance(policy, str):
        if parameters:
            raise InvalidArgument("parameters go with the name of a policy, not with an object")
        return check_policy(policy)
    make = BUILT_IN.get(policy) or _foreign(policy)
    _check_parameters(policy, make, parameters)
    try:
        made = make(**parameters)
    except InvalidArgument:
        raise
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        raise InvalidArgument(f"the policy {policy!r} cannot be made: {told}") from error
    return check_policy(made)


def _check_parameters(policy: str, make: Callable[..., Any], given: dict[str, Any]) -> None:
    """Raise InvalidArgument for parameters that a policy has not, or needs and does not get."""
    try:
        signature = inspect.signature(make)
    except (TypeError, ValueError):
        return  # It does not tell; what is wrong shows when it is made.
    try:
        signature.bind(**given)
    except TypeError as error:
        takes = ", ".join(signature.parameters) or "no parameters"
        raise InvalidArgument(
            f"the policy {policy!r} cannot be made: {error}; it takes {takes}"
        ) from error


def check_policy(policy: Any) -> Policy:
    """Returns the object if it has all members of a policy; raises InvalidArgument otherwise."""
    calls = ("reset", "needed_ns", "push", "next", "remove", "ran", "preempted", "due_ns")
    missing = [name for name in calls if not callable(getattr(policy, name, None))]
    if not isinstance(getattr(policy, "name", None), str) or not policy.name:
        missing.append("name (a text)")
    if not isinstance(getattr(policy, "is_work_conserving", None), bool):
        missing.append("is_work_conserving (a bool)")
    if missing or isinstance(policy, type):
        kind = policy.__name__ if isinstance(policy, type) else type(policy).__name__
        what = f"it lacks {', '.join(missing)}" if missing else "it is a class, not an object"
        raise InvalidArgument(f"{kind} is not a policy: {what}")
    made: Policy = policy
    return made


def _foreign(name: str) -> Callable[..., Policy]:
    for point in entry_points(GROUP):
        if point.name == name:
            return _loaded(point)
    raise InvalidArgument(f"there is no policy {name!r}; there are {', '.join(policy_names())}")


def _loaded(point: EntryPoint) -> Callable[..., Policy]:
    module, _, attribute = point.target.partition(":")
    try:
        made: Any = importlib.import_module(module)
        for name in attribute.split("."):
            made = getattr(made, name)
    except Exception as error:
        raise InvalidArgument(
            f"the policy {point.name!r} of {point.distribution} cannot be loaded from "
            f"{point.target}: {type(error).__name__}: {error}"
        ) from error
    factory: Callable[..., Policy] = made
    return factory
