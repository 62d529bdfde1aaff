"""What two looks at metrics say of the time between."""

from __future__ import annotations

from typing import Any

import pytest

from nnasync.cli.top.reading import Samples
from nnasync.cli.top.told import as_text
from nnasync.cli.top.view import ClientRow, DeviceRow, Look, NetworkRow, Picture, picture

NET = (("network", "digits"), ("device", "cpu"), ("priority", "high"))
RUN = (("network", "digits"), ("device", "cpu"), ("lane", "worker"))
QUEUE = (("network", "digits"), ("device", "cpu"), ("priority", "high"))


def samples(
    calls: float, *, missed: float = 0, runs: tuple[float, float, float] = (0, 0, 0)
) -> Samples:
    """Metrics after so many calls; `runs` took up to 1 ms, 10 ms, or longer."""
    outcome = "nnasync_call_outcomes_total"
    found = {
        ("nnasync_calls_total", NET): calls,
        ("nnasync_calls_in_flight", NET): 2.0,
        (outcome, (*NET, ("outcome", "completed"), ("reason", ""))): calls - missed - 2,
        (outcome, (*NET, ("outcome", "missed"), ("reason", "queue"))): missed,
        ("nnasync_workers_worker_seconds_total", ()): calls / 100,
        ("nnasync_workers_running", ()): 1.0,
        ("nnasync_workers_scheduler_queued", (("priority", "low"),)): 3.0,
        ("nnasync_device_pid", (("device", "cpu"),)): 77.0,
    }
    for bound, count in zip(("0.001", "0.01", "+Inf"), runs, strict=True):
        found["nnasync_execution_seconds_bucket", (*RUN, ("le", bound))] = sum(
            runs[: runs.index(count) + 1]
        )
    return found


def test_rates_are_of_what_was_new() -> None:
    seen = picture(
        Look(10, samples(100, runs=(50, 7, 9))),
        Look(12, samples(300, missed=50, runs=(140, 17, 10))),
    )
    (row,) = seen.networks
    assert (row.network, row.device, row.priority) == ("digits", "cpu", "high")
    assert (row.calls, row.completed, row.missed, row.refused) == (100, 75, 25, 0)
    assert row.in_flight == 2
    assert seen.busy == pytest.approx(1)
    assert (seen.running, seen.queued) == (1, {"low": 3})
    assert seen.devices == (DeviceRow("cpu", 77),)


def test_quantiles_are_bounds_of_buckets() -> None:
    before, after = samples(0), samples(100, runs=(90, 6, 4))
    (row,) = picture(Look(0, before), Look(1, after)).networks
    assert row.run_median_s == 0.001
    assert row.run_p99_s == 0.01
    assert row.queue_p99_s is None


def test_a_process_that_began_anew_counts_from_zero() -> None:
    (row,) = picture(Look(0, samples(500)), Look(1, samples(30))).networks
    assert row.calls == 30


def test_the_text_has_what_matters() -> None:
    seen = picture(Look(0, samples(2)), Look(1, samples(102, missed=10, runs=(90, 6, 4))))
    told = as_text("process 5", seen)
    for part in ("process 5", "digits", "90.0%", "1 ms", "3 low", "77"):
        assert part in told


def row(**others: Any) -> NetworkRow:
    """A network that was not called, but for what is given."""
    known: dict[str, Any] = dict.fromkeys(NetworkRow.__struct_fields__, 0.0)
    known |= {"network": "digits", "device": "cpu", "priority": "high"}
    return NetworkRow(**(known | others))


def told(*rows: NetworkRow, devices: tuple[DeviceRow, ...] = ()) -> list[str]:
    seen = Picture(rows, devices, queued={}, running=0, busy=0, preemptions=0, pool_bytes=0)
    return as_text("a process", seen).splitlines()


def test_networks_are_below_their_device_and_its_process() -> None:
    rows = (row(calls=1), row(device="far", calls=2), row(network="words", calls=3))
    lines = told(*rows, devices=(DeviceRow("far", 77), DeviceRow("gone", 0)))
    assert [line.split()[0] for line in lines[5:]] == [
        *("cpu", "digits", "words"),
        *("far,", "digits"),
        "gone,",
    ]
    assert lines[8].strip() == "far, process 77"
    assert lines[10].strip() == "gone, no process now"


def test_a_priority_without_calls_is_left_out_beside_another() -> None:
    lines = told(row(calls=1), row(priority="low"), row(network="idle"), row(network="idle"))
    assert [line.split()[:2] for line in lines[6:]] == [["digits", "high"], ["idle", "high"]]


def test_what_was_lost_has_its_reason() -> None:
    lines = told(row(calls=9, missed=1.5, failed=200))
    assert lines[-1].endswith("1.5 missed, 200 failed")


def test_names_of_others_are_no_orders_to_the_terminal() -> None:
    lines = told(row(network="\x1b[2J\nnet", device="a\nb", priority="\x07", calls=1))
    assert lines[5].split() == ["a?b"]
    assert lines[6].split()[:2] == ["?[2J?net", "?"]


def test_the_text_fits_into_a_terminal() -> None:
    busy: dict[str, Any] = dict.fromkeys(
        ("calls", "in_flight", "completed", "run_median_s", "run_p99_s", "queue_p99_s"), 0.0123456
    )
    lines = told(row(network="a network with a very long name indeed", missed=123.4, **busy))
    assert max(map(len, lines)) <= 100
    assert "a network with a ..." in lines[-1]


def test_metrics_of_something_else_make_an_empty_picture() -> None:
    seen = picture(Look(0, {}), Look(0, {("up", ()): 1.0}))
    assert not seen.networks
    assert not seen.devices
    assert "waiting: none" in as_text("other", seen)


def test_connections_of_a_client_are_one_row() -> None:
    def look(at_s: float, used: dict[tuple[str, str], float]) -> Look:
        found: dict[Any, float] = {}
        for (client, connection), seconds in used.items():
            labels = (("client", client), ("connection", connection))
            found["nnasync_client_used_seconds_total", labels] = seconds
            found["nnasync_client_runs_total", labels] = 100 * seconds
            found["nnasync_client_queued", labels] = 3
        return Look(at_s, found)

    before = look(0, {("process 7", "1"): 50, ("process 7", "2"): 10, ("gone", "3"): 9})
    after = look(2, {("process 7", "1"): 51, ("process 7", "4"): 0.5, ("process \x1b", "5"): 0})
    seen = picture(before, after)
    other, mine = seen.clients
    assert (mine.client, mine.connections, mine.busy) == ("process 7", 2, 0.75)
    assert (mine.runs, mine.queued, mine.missed, mine.refused) == (75, 6, 0, 0)
    assert other.runs == 0
    lines = as_text("it", seen).splitlines()
    assert [line.split()[:3] for line in lines[-2:]] == [
        ["process", "7", "0.75"],
        ["process", "?", "0.00"],
    ]


def test_clients_fit_into_a_terminal() -> None:
    busy = ClientRow("process " + "1" * 90, 64, 0.123, 12345.6, 256, 1234.5, 1234.5)
    seen = Picture((), (), {}, 0, 0, 0, 0, clients=(busy,))
    assert max(map(len, as_text("it", seen).splitlines())) <= 100
