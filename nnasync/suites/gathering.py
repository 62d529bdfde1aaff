"""The rows of a suite that runs, as they come; a result can be made of them at any time."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable

from nnasync._core.packages import VERSION, version_of
from nnasync.machine import read_facts
from nnasync.suites.results import SuiteResult, SuiteRow

_PACKAGES = ("numpy", "ai-edge-litert", "openvino", "onnxruntime")


class Gathering:
    """Rows of one run of a suite, from its making on.

    `expected` is how many rows there will be, None while that is not known. Whoever shows progress
    sets `on_step`, which is called with what is being done, and after each row.
    """

    def __init__(self, suite: str, command: str) -> None:
        self.suite = suite
        self.rows: list[SuiteRow] = []
        self.expected: int | None = None
        self.on_step: Callable[[str], object] = _nobody
        self._command = command
        self._began_at = datetime.datetime.now(datetime.UTC)
        self._began_s = time.monotonic()

    def add(self, row: SuiteRow) -> None:
        """Keep a row."""
        self.rows.append(row)
        self.step(f"{row.subject} on {row.device}: {row.standing.value}")

    def step(self, text: str) -> None:
        """Tell whoever watches what is being done."""
        self.on_step(text)

    def result(self, *, is_partial: bool = False) -> SuiteResult:
        """Returns the result as far as it is there by now."""
        machine, versions = circumstances()
        return SuiteResult(
            self.suite,
            self._command,
            self._began_at.isoformat(timespec="seconds"),
            time.monotonic() - self._began_s,
            tuple(self.rows),
            machine,
            versions,
            is_partial,
        )


def circumstances() -> tuple[dict[str, str], dict[str, str]]:
    """The machine that we are on, and the versions of what has a part in results."""
    facts = read_facts()
    cores = f"{facts.cores}"
    if facts.quota_cores is not None:
        cores += f", {facts.quota_cores:g} of which the container may use"
    machine = {
        "processor": facts.processor,
        "cores": cores,
        "architecture": facts.architecture,
        "system": facts.system,
        "virtual": "yes" if facts.is_virtual else "no",
        "governor": facts.governor,
        "load": f"{facts.load:.2f}",
    }
    versions = {"nnasync": VERSION, "python": facts.python}
    versions |= {name: version for name in _PACKAGES if (version := version_of(name))}
    return {key: value for key, value in machine.items() if value}, versions


def _nobody(text: str) -> None:
    """Does nothing, where nobody watches."""
