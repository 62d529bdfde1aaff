"""`nnasync verdicts`: what is remembered is listed, and forgotten on demand; no file is trusted."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

import nnasync as nn
from nnasync._core.compilation.choice import Choice, Part
from nnasync._core.compilation.report import Candidate, Fate
from nnasync._core.compilation.verdicts import Circumstances, Verdicts
from nnasync._core.runtime.compile_request import ModelSource
from nnasync.cli import main
from nnasync.devices import forget_verdicts, verdicts
from nnasync.engine import fingerprint
from nnasync.errors import InvalidArgument
from tests.compilation.rig import question
from tests.importers.test_files_beside import product, weigh
from tests.rigs import doubler

B = Choice((Part("b", "1"),))
LINES = (
    Candidate("a", "float32", 30.0, "equal", "slower", fate=Fate.SLOWER),
    Candidate("b", "int8", 20.0, "equal", "chosen", fate=Fate.CHOSEN),
    Candidate("c", "odd", 1.0, "wrong", "disagrees", fate=Fate.DISAGREES),
)
DIGESTS = ("0123456789abcdef", "fedcba9876543210")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the verdicts."""
    monkeypatch.setenv("NNASYNC_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state" / "verdicts"


def keep(folder: Path, model: str = DIGESTS[0], name: str = "net", **changes: Any) -> None:
    held = changes.pop("held", Circumstances(1_700_000_000))
    Verdicts(folder).keep(question(model, **changes), B, LINES, held, name=name)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    assert main(["verdicts", *arguments]) == code
    found = capsys.readouterr()
    return found.out, found.err


def test_nothing_is_known_at_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys) == (
        "no verdicts: no model was compared on several devices yet\n",
        "",
    )
    assert verdicts() == ((), ())


def test_who_won_by_how_much_and_when(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(folder)
    ((known,), unreadable) = verdicts()
    assert not unreadable
    assert (known.model, known.name, known.device, known.lowering) == (
        DIGESTS[0],
        "net",
        "b",
        "int8",
    )
    assert (known.median_us, known.runner_up, known.runner_up_us) == (20.0, "a, float32", 30.0)
    assert known.lead == 1.5
    assert known.is_of_this_machine
    out, _ = printed(capsys)
    assert all(
        word in out
        for word in (DIGESTS[0], "net", "b, int8", "20.0 us", "1.50 times: a, float32", "2023-11-1")
    )


def test_circumstances_are_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(folder, held=Circumstances(1_700_000_000, 1.4, 1), precision="exact", preference=0)
    out, _ = printed(capsys)
    assert "low_power, exact, 2 cores, not final" in out


def test_those_of_another_machine_are_told_apart(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(folder)
    (path,) = folder.glob("*.json")
    path.write_bytes(msgspec.json.encode(msgspec.json.decode(path.read_bytes()) | {"machine": "x"}))
    assert not verdicts()[0][0].is_of_this_machine
    assert "of another machine" in printed(capsys)[0]


def test_the_latest_come_first(folder: Path) -> None:
    for number, held_at_s in enumerate((5, 7, 6)):
        keep(folder, f"{number}" * 16, f"n{number}", held=Circumstances(held_at_s))
    assert [each.name for each in verdicts()[0]] == ["n1", "n2", "n0"]


# -- forgetting


@pytest.mark.parametrize("which", ["net", DIGESTS[0], DIGESTS[0][:6]])
def test_one_model_is_forgotten(
    folder: Path, which: str, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(folder)
    keep(folder, cores=3)
    keep(folder, DIGESTS[1], "other")
    assert printed(capsys, "--forget", which) == ("forgot 2 verdicts\n", "")
    assert [each.name for each in verdicts()[0]] == ["other"]
    known = Verdicts(folder)
    assert known.forgot(DIGESTS[0], 1_700_000_000)
    assert not known.forgot(DIGESTS[1], 1_700_000_000)
    assert not known.forgot(DIGESTS[0], 1 << 40)


def test_all_are_forgotten(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(folder)
    keep(folder, DIGESTS[1], "other")
    assert printed(capsys, "--forget", "all") == ("forgot 2 verdicts\n", "")
    assert verdicts() == ((), ())
    assert Verdicts(folder).forgot("any", 1_700_000_000)
    assert not Verdicts(folder).forgot("any", 0)


@pytest.mark.parametrize("which", ["other", "0123", "0123456789abcdee", "../net", "ALL", "n" * 999])
def test_what_nothing_is_about_is_said(
    folder: Path, which: str, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(folder)
    out, err = printed(capsys, "--forget", which, code=1)
    assert (out, "no verdict is about" in err) == ("", True)
    assert len(verdicts()[0]) == 1


def test_an_empty_name_is_refused(folder: Path) -> None:
    with pytest.raises(InvalidArgument, match="the name of a model"):
        forget_verdicts("")


def test_a_file_stands_for_itself_and_for_the_model_in_it(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "doubler.nnm"
    nn.save(doubler(), path)
    keep(folder, hashlib.sha256(path.read_bytes()).hexdigest()[:16], "as a file")
    keep(folder, fingerprint(nn.load(path)).hex()[:16], "as a model")
    keep(folder, DIGESTS[1], "other")
    printed(capsys, "--forget", str(path))
    assert [each.name for each in verdicts()[0]] == ["other"]


def test_weights_beside_a_file_count_for_it(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = product(tmp_path)
    weigh(path, 1)
    for io in (None, "float"):
        keep(folder, ModelSource.of(str(path), io).digest().hex()[:16], "with weights")
    weigh(path, 2)
    keep(folder, ModelSource.of(str(path)).digest().hex()[:16], "with others")
    weigh(path, 1)
    printed(capsys, "--forget", str(path))
    assert [each.name for each in verdicts()[0]] == ["with others"]


def test_a_name_may_be_that_of_a_file_that_is_no_model(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net").write_text("notes")
    keep(folder)
    assert printed(capsys, "--forget", "net") == ("forgot 1 verdict\n", "")


# -- what is not trusted


def spoilt(folder: Path) -> None:
    """A verdict, and files that are none beside it."""
    keep(folder)
    (path,) = folder.glob("*.json")
    whole = msgspec.json.decode(path.read_bytes())
    for name, data in {
        "empty": b"",
        "garbage": b"\0\xff" * 100,
        "deep": b"[" * 100_000,
        "large": b" " * (1 << 19),
        "old": msgspec.json.encode(whole | {"format": 1}),
        "typed": msgspec.json.encode(whole | {"machine": 7}),
        "stranger": msgspec.json.encode(whole),
    }.items():
        (folder / f"{name}.json").write_bytes(data)
    os.mkfifo(folder / "pipe.json")
    (folder / "folder.json").mkdir()
    (folder / "link.json").symlink_to(path)
    (folder / "bad\x1b[31m\n.json").write_bytes(b"")
    (folder / "note.txt").write_bytes(b"")


def test_what_is_no_verdict_is_skipped_with_a_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoilt(folder)
    out, err = printed(capsys)
    assert out.count("\n") == 3
    lines = err.splitlines()
    assert len(lines) == 11
    assert all(line.startswith("skipped: ") for line in lines)
    assert "\x1b" not in err
    reasons = {line.split(": ", 2)[1]: line.split(": ", 2)[2] for line in lines}
    assert reasons["old.json"] == "it is a verdict of another version of nnasync"
    assert reasons["stranger.json"] == "it is about another model than its name says"
    assert "no regular file" in reasons["pipe.json"]


def test_forgetting_leaves_what_is_no_verdict(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoilt(folder)
    before = len(list(folder.iterdir()))
    assert printed(capsys, "--forget", "all")[0] == "forgot 1 verdict\n"
    assert len(list(folder.iterdir())) == before  # one less, and the mark


def test_texts_of_files_move_no_cursor(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(folder, name="evil\x1b[2J\r\n" + "n" * 500)
    out, _ = printed(capsys)
    assert "\x1b" not in out
    assert "evil?[2J??" in out
    assert max(map(len, out.splitlines())) < 400


@pytest.mark.parametrize("data", [b"", b"never", b"9" * 500, b"-5", b"1.5"])
def test_a_mark_that_is_damaged_forgets_nothing(folder: Path, data: bytes) -> None:
    keep(folder)
    for name in ("all", DIGESTS[0]):
        (folder / f"{name}.forgotten").write_bytes(data)
    assert not Verdicts(folder).forgot(DIGESTS[0], 1_700_000_000)


def test_marks_are_bounded(folder: Path) -> None:
    known = Verdicts(folder, max_entries=3)
    for number in range(6):
        known.mark_forgotten(f"{number}" * 16, 1)
    assert len(list(folder.glob("*.forgotten"))) == 3
