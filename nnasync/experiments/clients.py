"""The numbers under which the scheduler knows the clients of a workload."""

from __future__ import annotations

from collections.abc import Iterable

from nnasync.experiments.workload import Stream


def client_numbers(streams: Iterable[Stream]) -> dict[str, int]:
    """Returns a number for each client's name.

    The application, "", is 0; the others count from 1 in the order of their first stream.
    """
    numbers = {"": 0}
    for stream in streams:
        numbers.setdefault(stream.client, len(numbers))
    return numbers
