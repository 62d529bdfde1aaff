"""Official cases as samples, where they are at hand."""

from __future__ import annotations

from pathlib import Path

from nnasync.suites.fuzz.samples import FuzzSample
from tests.validation.models import one_of_each


def official_samples(shared: Path) -> list[FuzzSample]:
    """Official cases: a small one of each operation and each type."""
    found = []
    for case in one_of_each(shared, types=True):
        indexes = case.model.main.input_indexes
        pairs = zip(indexes, case.inputs, strict=True)
        feeds = {index: array for index, array in pairs if array is not None}
        found.append(FuzzSample(case.model, feeds))
    return found
