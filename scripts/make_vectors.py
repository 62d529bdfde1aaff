"""Make small cases of every operation and type, and outputs of two networks.

The cases are drawn at random, and their expected outputs are those of the reference device, which
has to give the same bytes with and without a plan. Each is then put to every engine that is
installed: one that takes the case and computes something else forbids it, and another case is
drawn. With `--official` the reference device has to pass all official cases as well. What agreed
is written to `verdicts.json`. The outputs of the networks are computed in float64 by plain
formulas (`scripts/vectors/networks.py`), without any kernel of the project.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.metadata
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import nnasync as nn
from nnasync.conformance import OWN_CASES, Runner
from nnasync.conformance.cases import Case, case_files, parse_case, read_cases
from nnasync.conformance.results import CaseOutcome
from nnasync.devices import REFERENCE, installed
from scripts.vectors.drawing import CaseLine, control_flow_lines, drawn_lines, wanted
from scripts.vectors.networks import digits, words

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "vectors"
OURS = [each.name for each in installed() if each.source == "nnasync" and not each.absence]
ENGINES = [name for name in OURS if name != REFERENCE]
PACKAGES = {
    "litert-cpu": "ai-edge-litert",
    "onnxruntime-cpu": "onnxruntime",
    "openvino-cpu": "openvino",
}


class Judge:
    """Puts cases to the reference device and to all engines."""

    def __init__(self, runtime: nn.Runtime) -> None:
        self._runners = {
            name: Runner(runtime, runtime.device(name)) for name in (REFERENCE, *ENGINES)
        }

    async def reference(self, case: Case) -> bool:
        """Whether the reference device passes."""
        return await self._outcome(REFERENCE, case) is CaseOutcome.PASSED

    async def engines(self, case: Case) -> list[str] | None:
        """The engines that agree; None if there is one that does not."""
        outcomes = {name: await self._outcome(name, case) for name in ENGINES}
        if CaseOutcome.FAILED in outcomes.values():
            return None
        return [name for name, outcome in outcomes.items() if outcome is CaseOutcome.PASSED]

    async def _outcome(self, name: str, case: Case) -> CaseOutcome:
        return (await self._runners[name].run(case)).outcome


async def make_cases(judge: Judge) -> Iterator[tuple[bytes, list[str]]]:
    """The lines of the cases, and who agrees with each."""
    found: list[tuple[bytes, list[str]]] = []
    groups = [*(drawn_lines(*each) for each in wanted()), *map(iter, control_flow_lines())]
    for number, group in enumerate(groups):
        found.append(await first_agreed(judge, group))
        print(f"\r{number + 1} of {len(groups)} cases", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return iter(found)


async def first_agreed(judge: Judge, lines: Iterator[CaseLine]) -> tuple[bytes, list[str]]:
    """The first of the lines whose case nobody fails."""
    refused = ""
    for line in lines:
        text = encoded(line)
        case = parse_case(text)
        agreed = await judge.engines(case) if await judge.reference(case) else None
        if agreed is not None:
            return text, agreed
        refused = case.name
    raise SystemExit(f"no case that all agree on: the last one tried was {refused}")


def encoded(line: CaseLine) -> bytes:
    """A line of a case file, without what has its default."""

    def shortened(part: Any) -> Any:
        if isinstance(part, list):
            return [shortened(each) for each in part]
        if not isinstance(part, msgspec.Struct):
            return part
        return {
            field.encode_name: shortened(value)
            for field in msgspec.structs.fields(part)
            if (value := getattr(part, field.name)) != field.default
        }

    return msgspec.json.encode(shortened(line))


async def official_counts(judge: Judge, folder: Path) -> dict[str, int]:
    """How many official cases of each operation the reference device passes: all of them."""
    counts: Counter[str] = Counter()
    for path in case_files(folder):
        for case in read_cases(path):
            if not await judge.reference(case):
                raise SystemExit(f"the reference device does not pass {path.name}: {case.name}")
            counts.update(case.operations)
    return dict(sorted(counts.items()))


def write_lines(lines: Sequence[bytes]) -> None:
    """The case file; the same lines make the same bytes."""
    text = b"".join(line + b"\n" for line in lines)
    OWN_CASES.write_bytes(gzip.compress(text, 9, mtime=0))


def write_networks() -> None:
    """Inputs and outputs of the networks."""
    for name, (inputs, outputs) in {"digits": digits(), "words": words()}.items():
        np.savez_compressed(FOLDER / f"{name}.npz", inputs=inputs, outputs=outputs)


def main() -> None:
    """Make everything again."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--official", type=Path, help="folder of the official cases, if there")
    options = parser.parse_args()

    async def make() -> None:
        names = [REFERENCE, *ENGINES]
        async with nn.open_runtime(devices=names, options=nn.Options(cores=1)) as runtime:
            judge = Judge(runtime)
            cases = list(await make_cases(judge))
            official = await official_counts(judge, options.official) if options.official else {}
        write_lines([line for line, _ in cases])
        verdicts = {
            "engines": {name: importlib.metadata.version(PACKAGES[name]) for name in ENGINES},
            "official cases that the reference device passed": official,
            "agreed": {msgspec.json.decode(line)["name"]: agreed for line, agreed in cases},
        }
        text = msgspec.json.format(msgspec.json.encode(verdicts), indent=1)
        (FOLDER / "verdicts.json").write_bytes(text + b"\n")

    nn.run(make)
    write_networks()


if __name__ == "__main__":
    main()
