"""Findings of a fuzzer as files: an input by its recipe, on which device, and what is broken."""

from __future__ import annotations

import os
import re
import secrets
import shlex
from pathlib import Path

import msgspec

from nnasync.errors import InvalidArgument
from nnasync.suites.fuzz.inputs import Recipe
from nnasync.suites.fuzz.verdicts import Broken, InputResult

FORMAT = 1


class FuzzFinding(msgspec.Struct, frozen=True):
    """One input for which a device breaks a promise, as small as it could be made.

    `digest` tells the input that the recipe made when it was found: another version of the fuzzer
    may make another one of it. `count` is how many inputs ended alike.
    """

    device: str
    broken: Broken
    text: str
    recipe: Recipe
    digest: str
    isolate: bool = False
    count: int = 1
    format: int = FORMAT

    @property
    def label(self) -> str:
        """Returns a text that is equal for findings of one cause, as far as words tell."""
        words = re.sub(r"\d+", "#", self.text)
        return f"{self.device} {self.recipe.kind.value} {self.broken.value}: {words}"

    def is_like(self, result: InputResult) -> bool:
        """Returns whether an input ended as this one did."""
        if result.broken is not self.broken:
            return False
        return _outline(result.text) == _outline(self.text)


def _outline(text: str) -> str:
    """The beginning of a text, without its numbers."""
    return re.sub(r"\d+", "#", text.partition(";")[0])[:80]


def write_finding(folder: Path, finding: FuzzFinding) -> Path:
    """Write a finding into a folder; the file is whole or not there. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    words = (finding.device, finding.recipe.kind.value, finding.broken.value, finding.digest)
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", "-".join(words))
    path = folder / f"{name}.json"
    temporary = folder / f".{name}.{secrets.token_hex(8)}"
    try:
        temporary.write_bytes(msgspec.json.encode(finding) + b"\n")
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path


def read_finding(path: Path) -> FuzzFinding:
    """Read what `write_finding` wrote.

    Raises InvalidArgument for anything else, OSError where it cannot be read.
    """
    try:
        finding = msgspec.json.decode(path.read_bytes(), type=FuzzFinding)
    except msgspec.DecodeError as error:
        raise InvalidArgument(f"{path} is no finding of nnasync fuzz: {error}") from error
    if finding.format != FORMAT:
        raise InvalidArgument(
            f"{path} has format {finding.format} of a finding; this version reads {FORMAT}"
        )
    return finding


def command_of(path: Path) -> str:
    """The command that tries a finding again."""
    return f"nnasync fuzz --repeat {shlex.quote(str(path))}"
