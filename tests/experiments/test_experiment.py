"""Experiments as objects: loads, policies and clients."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from nnasync.errors import ExperimentError
from nnasync.experiments import (
    ClosedLoop,
    Constant,
    Network,
    Poisson,
    Stream,
    Workload,
    offered_load,
)
from nnasync.experiments.clients import client_numbers
from nnasync.experiments.experiment import Experiment, experiment_of

WORD = Stream(name="word", arrivals=Poisson(100), cost=Constant(2.0), client="phone")
PHOTOS = Stream(name="photos", arrivals=Poisson(10), cost=Constant(30.0))
EXPERIMENT = Experiment(streams=(WORD, PHOTOS), cores=1)


def load_of(workload: Workload, name: str) -> float:
    (stream,) = (each for each in workload.streams if each.name == name)
    return offered_load(Workload((stream,)), 1)


def test_a_load_scales_all_streams_alike() -> None:
    scaled = replace(EXPERIMENT, load=0.8).workload()
    assert offered_load(scaled, 1) == pytest.approx(0.8)
    assert load_of(scaled, "word") / load_of(scaled, "photos") == pytest.approx(0.2 / 0.3)
    assert EXPERIMENT.workload().streams == (WORD, PHOTOS)


def test_a_load_scales_the_streams_that_are_named() -> None:
    scaled = replace(EXPERIMENT, load=0.8, scaled=("photos",)).workload()
    assert [stream.name for stream in scaled.streams] == ["word", "photos"]
    assert load_of(scaled, "word") == pytest.approx(0.2)
    assert load_of(scaled, "photos") == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"load": 0.1, "scaled": ("photos",)}, "not scaled ask for 0.2"),
        ({"sweep": {"scaled": [["pictures"]]}}, "no stream pictures; there is word, photos"),
        ({"sweep": {"x": ["load"]}}, "'x' is what is swept"),
        ({"sweep": {"sweep": [1]}}, "'sweep' is what is swept"),
        ({"cores": 0}, "cores: Expected"),
        ({"policy": "nothing"}, "no policy 'nothing'"),
        ({"policy": {"name": "edf", "speed": 1}}, "'edf' cannot be made"),
        ({"policy": {"preempts": True}}, "no policy ''"),
        (
            {"policy": {"name": "reservations", "clients": {"tablet": {}}}},
            "no stream has the client tablet; there are '', 'phone'",
        ),
        ({"sweep": {"cores": [1, -1]}}, "(where cores = -1)"),
        ({"sweep": {"cors": [1]}}, "unknown field `cors`; did you mean cores? (where cors = 1)"),
    ],
)
def test_what_is_not_legal_is_told(changes: dict[str, object], told: str) -> None:
    with pytest.raises(ExperimentError) as raised:
        replace(EXPERIMENT, **changes).points()
    assert told in str(raised.value)


def test_what_a_network_runs_beside_is_a_stream() -> None:
    word, _ = EXPERIMENT.streams
    network = Network("photos.nnm", (20.0,), beside={"word": 1.2, "photo": 1.1})
    photos = Stream(name="photos", arrivals=Poisson(rate_hz=10), cost=network)
    with pytest.raises(
        ExperimentError, match=r"streams\[1\]\.cost\.beside: there is no stream photo"
    ):
        replace(EXPERIMENT, streams=(word, photos)).points()


def test_a_load_needs_open_arrivals() -> None:
    closed = Stream(name="closed", arrivals=ClosedLoop(2, 5.0), cost=Constant(1.0))
    with pytest.raises(ExperimentError):
        Experiment(streams=(closed,), load=0.5).points()


def test_clients_of_reservations_are_named() -> None:
    assert client_numbers((PHOTOS, WORD)) == {"": 0, "phone": 1}
    table = {"name": "reservations", "clients": {"phone": {"budget_ms": 2, "period_ms": 10}}}
    policy = replace(EXPERIMENT, policy=table).make_policy()
    assert policy is not None
    assert policy.name == "reservations"


def test_each_run_has_a_policy_of_its_own() -> None:
    experiment = replace(EXPERIMENT, policy="edf")
    assert experiment.make_policy() is not experiment.make_policy()
    assert EXPERIMENT.make_policy() is None


def test_an_experiment_without_a_sweep_is_one_point() -> None:
    (point,) = EXPERIMENT.points()
    assert (point.index, point.values, point.experiment) == (0, {}, EXPERIMENT)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"scaled": ["pictures"]}, "scaled: there is no stream pictures; there is word"),
        ({"x": "nonsense", "sweep": {"load": [1.0]}}, "x: 'nonsense' is no key of the sweep"),
        ({"x": "load"}, "x: 'load' is no key of the sweep; there is nothing"),
    ],
)
def test_a_file_that_names_what_is_not_there_is_refused(
    changes: dict[str, object], told: str
) -> None:
    document = {"streams": [msgspec.to_builtins(WORD)], **changes}
    with pytest.raises(ExperimentError) as raised:
        experiment_of(document).points()
    assert told in str(raised.value)


def test_points_of_a_sweep_have_none_of_their_own() -> None:
    swept = replace(EXPERIMENT, sweep={"load": [0.5, 0.9]}, x="load")
    for point in swept.points():
        assert point.experiment.points()[0].experiment == point.experiment
