"""The numbers under which the scheduler knows the clients of a workload."""

from __future__ import annotations

from collections.abc import Iterable

from nnasync.experiments.workload import Stream


def client_numbers(streams: Iterable[Stream]) -> dict[str, int]:
    """Clients by name: the application, "", is 0, the others count from 1 as they appear."""
    numbers = {"": 0}
    for stream in streams:
        numbers.setdefault(stream.client, len(numbers))
    return numbers
