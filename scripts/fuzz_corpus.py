"""Findings of the past for the test suite: python -m scripts.fuzz_corpus FINDING.json ...

Adds what `nnasync fuzz` wrote to tests/suites/fuzz/corpus.jsonl, one finding a line: seeds of the
project's own and decisions, no content of anybody's files. Without a finding, the digests of all
are written anew, as they have to be where the changes of the fuzzer are others than before.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from nnasync.errors import NNError
from nnasync.suites.fuzz import FuzzFinding, read_finding
from nnasync.suites.fuzz.inputs import made
from nnasync.suites.fuzz.seeds import FuzzSeeds

CORPUS = Path(__file__).resolve().parent.parent / "tests" / "suites" / "fuzz" / "corpus.jsonl"


def corpus() -> list[FuzzFinding]:
    """The findings of the corpus."""
    lines = CORPUS.read_bytes().splitlines() if CORPUS.exists() else []
    return [msgspec.json.decode(line, type=FuzzFinding) for line in lines]


def refreshed(finding: FuzzFinding, seeds: FuzzSeeds) -> FuzzFinding:
    """The finding with the digest of the input that this version makes of it."""
    digest = made(finding.recipe, seeds).digest
    return msgspec.structs.replace(finding, digest=digest, count=1)


def main() -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="fuzz_corpus", description=__doc__.split("\n")[0])
    parser.add_argument("findings", nargs="*", type=Path)
    options = parser.parse_args()
    seeds, found = FuzzSeeds(), corpus()
    try:
        for path in options.findings:
            finding = read_finding(path)
            if finding.recipe.content is not None:
                print(f"{path} holds a file of somebody's, which is not for the repository")
                return 1
            found.append(finding)
        lines = {msgspec.json.encode(refreshed(each, seeds)) for each in found}
    except (NNError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    CORPUS.write_bytes(b"".join(line + b"\n" for line in sorted(lines)))
    print(f"{len(lines)} findings in {CORPUS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
