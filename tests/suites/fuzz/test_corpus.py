"""What was found once stays mended: each finding of the corpus, on its own device."""

from __future__ import annotations

from nnasync import run
from nnasync.devices import installed
from nnasync.suites.fuzz import Setting, Tried, repeat
from nnasync.suites.fuzz.inputs import made
from nnasync.suites.fuzz.seeds import FuzzSeeds
from scripts.fuzz_corpus import corpus


def test_the_corpus_is_of_this_version() -> None:
    """Else: python -m scripts.fuzz_corpus."""
    seeds = FuzzSeeds()
    assert corpus()
    for finding in corpus():
        assert finding.recipe.content is None
        if not finding.recipe.kind.suffix:
            assert made(finding.recipe, seeds).digest == finding.digest


def test_no_finding_of_the_past_is_back() -> None:
    there = {each.name for each in installed() if not each.absence}

    async def main() -> list[tuple[str, Tried]]:
        tried: list[tuple[str, Tried]] = []
        for device in sorted(there & {each.device for each in corpus()}):
            findings = [each for each in corpus() if each.device == device]
            again = await repeat(findings, Setting(device), 60.0)
            tried += [
                (f"{each.device} {each.text}", one)
                for each, one in zip(findings, again, strict=True)
            ]
        return tried

    assert {name: one.result for name, one in run(main) if one.result.broken} == {}
