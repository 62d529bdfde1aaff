"""Group "models": a device refuses every mutant of a legal model, whether it supports it or not."""

from __future__ import annotations

from collections.abc import Iterator

from nnasync.conformance.hal_suite.check import Check, refused
from nnasync.conformance.hal_suite.fixture import Bench
from nnasync.conformance.hal_suite.mutations import KINDS, Mutant, mutants
from nnasync.device import Device, PrepareModelConfig
from nnasync.errors import InvalidArgument
from nnasync.hal import ExecutionPreference, Priority

GROUP = "models"
_OF_PREPARING = ("preference", "priority")


def models(bench: Bench) -> Iterator[Check]:
    """The checks of the group: one for each mutant, of which `bench.every` may leave some out."""
    number = 0
    for kind in KINDS:
        for model in bench.models:
            for mutant in mutants(model, kind):
                number += 1
                if number % bench.every == 0:
                    name = f"{kind}/{model.name}: {mutant.what}"
                    yield _check(bench.device, name, kind, mutant)


def _check(device: Device, name: str, kind: str, mutant: Mutant) -> Check:
    async def run() -> None:
        if kind not in _OF_PREPARING:
            await refused(device.get_supported_operations(mutant.model), InvalidArgument)
        # Numbers that are no preference or priority are what some mutants are about.
        preference: ExecutionPreference = mutant.preference  # type: ignore[assignment]
        priority: Priority = mutant.priority  # type: ignore[assignment]
        await refused(
            device.prepare_model(
                mutant.model, PrepareModelConfig(preference=preference, priority=priority)
            ),
            InvalidArgument,
        )

    return Check(GROUP, name, run)
