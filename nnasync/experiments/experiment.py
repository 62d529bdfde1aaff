"""An experiment: streams on cores under a policy, and what of that is swept.

The same object is made in Python and read from a file (see `files`); `points` are its combinations,
each an experiment without a sweep.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec.structs import replace

from nnasync.errors import ExperimentError, InvalidArgument
from nnasync.experiments.checks import MOST, MOST_CORES, built_in
from nnasync.experiments.clients import client_numbers
from nnasync.experiments.costs import Network
from nnasync.experiments.hints import with_hint
from nnasync.experiments.sweeps import only, points
from nnasync.experiments.workload import Stream, Workload, at_load, offered_load
from nnasync.scheduler import AGING_NS, Policy, resolve_policy

Positive = Annotated[float, msgspec.Meta(gt=0, le=MOST)]
Whole = Annotated[int, msgspec.Meta(ge=1)]
Repeats = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
Cores = Annotated[int, msgspec.Meta(ge=1, le=MOST_CORES)]
PolicyChoice = str | dict[str, Any]
"""A name, or a table of a name and the policy's parameters."""

_PLACE = re.compile(r"^(?P<text>.*) - at `(?:key in )?\$\.?(?P<path>.*)`$", re.DOTALL)


class Experiment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is run, simulated or for real.

    load: where it is given, the rates of open arrivals are scaled until this share of the cores'
    time is asked for; those of the streams that `scaled` names, if it names any. policy: a name,
    or a table of a name and parameters. overheads: what calls cost is measured once on this
    machine, or "none". aging_ms: when work below HIGH is due for its age under the default policy.
    queue_limit: how many requests of a client may wait. device: whether costs that are no network's
    load the cores of a real run, "spin", or only take as long, "sleep". Each repeat has a seed of
    its own, from `seed` on; a real run has `real_repeats` of them, and those that others disturb
    are run again, so many times at most as `real_again` says; where those do not tell whether the
    simulation is near, there are more, up to `real_most`. sweep: keys, such as "load" or
    "streams.photos.arrivals.cv", with the values that they take; `x` is the key along the charts.
    """

    streams: tuple[Stream, ...]
    name: Annotated[str, msgspec.Meta(pattern=r"^[^/\\\0]{1,200}$")] = "experiment"
    title: str = ""
    about: str = ""
    policy: PolicyChoice = "default"
    cores: Cores = 1
    load: Positive | None = None
    scaled: tuple[str, ...] = ()
    duration_s: Positive = 10.0
    repeats: Repeats = 1
    real_repeats: Repeats = 1
    real_again: Annotated[int, msgspec.Meta(ge=0, le=100)] = 1
    real_most: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 0
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    overheads: Literal["measured", "none"] = "measured"
    aging_ms: Positive = AGING_NS / 1e6
    queue_limit: Whole = 1024
    device: Literal["sleep", "spin"] = "sleep"
    sweep: dict[str, list[Any]] = {}
    x: str = ""

    def __post_init__(self) -> None:
        Workload(self.streams)

    def points(self) -> tuple[Point, ...]:
        """Returns every combination of the sweep, checked.

        Raises:
            ExperimentError: A value is not legal, or a key of the sweep names nothing; the message
                has the key and the point.
        """
        document = built_in(self)
        axes, x = document.pop("sweep"), document.pop("x")
        if x and x not in axes:
            there = ", ".join(axes) or "nothing"
            raise ExperimentError(f"x: {x!r} is no key of the sweep; there is {there}")
        for key in ("sweep", "x"):
            if key in axes:
                raise ExperimentError(
                    f"sweep: {key!r} is what is swept, and takes no values itself"
                )
        return tuple(
            Point(index, each.values, _checked(each.values, each.document))
            for index, each in enumerate(points(document, axes))
        )

    def check_names(self) -> None:
        """Raise ExperimentError where `scaled`, or what runs `beside` a network, is no stream."""
        names = [stream.name for stream in self.streams]
        named = {"scaled": set(self.scaled)}
        for number, stream in enumerate(self.streams):
            if isinstance(stream.cost, Network):
                place = f"streams[{number}].cost"
                named[f"{place}.beside"] = set(stream.cost.beside)
                times = stream.cost.times
                for key in ("beside_ms", "joined_ms"):
                    named[f"{place}.times.{key}"] = set(getattr(times, key, ()))
        for key, wanted in named.items():
            if unknown := wanted - set(names):
                raise ExperimentError(
                    f"{key}: there is no stream {', '.join(sorted(unknown))}; there is "
                    f"{', '.join(names)}"
                )

    @property
    def networks(self) -> frozenset[str]:
        """Returns the names of the streams that run real networks."""
        return frozenset(s.name for s in self.streams if isinstance(s.cost, Network))

    @property
    def has_unmeasured(self) -> bool:
        """Returns whether a stream runs a network whose cost is not stated."""
        costs = (stream.cost for stream in self.streams)
        return any(isinstance(cost, Network) and not cost.steps_ms for cost in costs)

    def only(self, values: Mapping[str, Sequence[str]]) -> Experiment:
        """Returns the experiment with only those points that have these values of the sweep.

        Values are given as tables and charts show them: `{"load": ["0.5"], "policy": ["edf"]}`.

        Raises:
            InvalidArgument: There is no such key in the sweep, or no such value of it.
        """
        fewer = {key: only(self.sweep, key, words) for key, words in values.items()}
        return replace(self, sweep={**self.sweep, **fewer})

    def workload(self) -> Workload:
        """Returns the streams, with their rates scaled to the load.

        Raises:
            ExperimentError: There is a load, and nothing that it could scale; or what `scaled`
                names, or what runs `beside` a network, is not there.
        """
        self.check_names()
        if self.load is None:
            return Workload(self.streams)
        chosen = [s for s in self.streams if not self.scaled or s.name in self.scaled]
        others = [s for s in self.streams if s not in chosen]
        fixed = offered_load(Workload(tuple(others)), self.cores) if others else 0.0
        if self.load <= fixed:
            raise ExperimentError(
                f"load is {self.load:g}, and the streams that are not scaled ask for {fixed:g}"
            )
        scaled = at_load(Workload(tuple(chosen)), self.cores, self.load - fixed)
        by_name = {stream.name: stream for stream in (*others, *scaled.streams)}
        return Workload(tuple(by_name[stream.name] for stream in self.streams))

    def make_policy(self) -> Policy | None:
        """Returns a new policy object for one run; None stands for the default rule.

        Raises:
            ExperimentError: There is no such policy, or it does not take such parameters.
        """
        parameters = {"name": self.policy} if isinstance(self.policy, str) else dict(self.policy)
        name = parameters.pop("name", "")
        if "clients" in parameters:
            parameters["clients"] = self._by_number(parameters["clients"])
        try:
            return resolve_policy(name, **parameters)
        except (InvalidArgument, TypeError) as error:
            raise ExperimentError(f"policy: {error}") from error

    def _by_number(self, clients: Any) -> Any:
        """Returns a table with clients' names for keys with their numbers for keys instead."""
        names = client_numbers(self.streams)
        if not isinstance(clients, Mapping):
            raise ExperimentError(f"policy.clients is a table by names of clients, not {clients!r}")
        if unknown := set(clients) - set(names):
            raise ExperimentError(
                f"policy.clients: no stream has the client {', '.join(sorted(unknown))}; there are "
                f"{', '.join(map(repr, names))} ('' is that of streams that name none)"
            )
        return {str(names[name]): value for name, value in clients.items()}


class Point(msgspec.Struct, frozen=True):
    """One combination of a sweep: its values as they are shown, and the experiment at them."""

    index: int
    values: dict[str, float | str]
    experiment: Experiment


def experiment_of(document: dict[str, Any]) -> Experiment:
    """Builds an experiment from a document, such as a decoded file.

    Raises:
        ExperimentError: A key or a value is not legal; the message begins with the path of the key.
    """
    try:
        return msgspec.convert(document, Experiment)
    except msgspec.ValidationError as error:
        raise ExperimentError(_key_first(str(error), document)) from None


def at_point(error: Exception, values: Mapping[str, float | str]) -> ExperimentError:
    """Returns the error with a message that also names the values of the sweep."""
    where = ", ".join(f"{key} = {value}" for key, value in values.items())
    return ExperimentError(f"{error} (where {where})" if where else str(error))


def _key_first(message: str, document: dict[str, Any]) -> str:
    """Returns the message of msgspec with the path of the key, as in the file, put first."""
    found = _PLACE.match(message)
    path, text = (found["path"], found["text"]) if found else ("", message)
    told = with_hint(text, path, document, Experiment)
    return f"{path}: {told}" if path else told


def _checked(values: dict[str, float | str], document: dict[str, Any]) -> Experiment:
    """Builds the experiment at one point; checks that its streams and its policy can be made."""
    try:
        experiment = experiment_of(document)
        experiment.check_names()
        if not experiment.has_unmeasured:
            experiment.workload()
        experiment.make_policy()
    except InvalidArgument as error:
        raise at_point(error, values) from None
    return experiment
