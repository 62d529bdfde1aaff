"""`nnasync demo`, from its options to its files, on toy clips and networks."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from nnasync.cli import main
from nnasync.cli.demo.play import DemoStatus
from nnasync.cli.demo.view import PlainView, RichView
from nnasync.cli.recognition import NONE, Word
from nnasync.errors import DeviceUnavailable
from nnasync.machine import Busy
from nnasync.streaming import Account, Latency, StreamStatistics, synthetic

BUCKETS = ("completed", "missed", "dropped", "cancelled", "failed", "pending")


def balanced(account: dict[str, int]) -> bool:
    return account["submitted"] == sum(account[bucket] for bucket in BUCKETS)


def play(toy_data: Path, out: Path, *more: str) -> int:
    options = ["--data", str(toy_data), "--out", str(out), "--alone-seconds", "0.1", *more]
    return main(["demo", *options])


def summary_of(out: Path) -> Any:
    return msgspec.json.decode((out / "summary.json").read_bytes())


def test_demo_plays_and_accounts_for_everything(
    toy_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert play(toy_data, tmp_path, "--seconds", "1.2", "--plain") == 0
    summary = summary_of(tmp_path)
    audio, video = summary["audio"]["account"], summary["video"]["account"]
    assert (audio["submitted"], video["submitted"]) == (120, 37)
    for account in (audio, video):
        assert balanced(account)
        assert account["pending"] == 0
    assert 0 <= summary["digits_right"] <= 1
    assert summary["low_alone_hz"] > 0
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")
    assert "const DATA = {" in (tmp_path / "timeline.html").read_text()
    told = capsys.readouterr().out
    assert "hears" in told
    assert "audio HIGH" in told
    assert "audio HIGH, alone" in told
    assert summary["audio_alone"]["account"]["submitted"] == 10
    assert 0 <= summary["audio_alone_hits"] <= 1


def test_demo_without_load_as_json(
    toy_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert play(toy_data, tmp_path, "--seconds", "0.3", "--no-low", "--json") == 0
    summary = msgspec.json.decode(capsys.readouterr().out)
    assert (summary["low_kept"], summary["audio_alone_hits"]) == (None, None)
    assert summary["audio"]["account"]["submitted"] == 30


def test_missing_data_and_devices(
    toy_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert play(tmp_path, tmp_path / "out", "--plain") == 1
    assert "has no file words.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [("--camera", "97", "/dev/video97"), ("--microphone", "97", "hw:97")],
)
def test_a_device_that_is_not_there_is_told_before_anything_plays(
    option: str,
    value: str,
    named: str,
    toy_data: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert play(toy_data, tmp_path / "out", option, value, "--plain") == 1
    told = capfd.readouterr()
    assert told.out == ""
    errors = [line for line in told.err.splitlines() if not line.startswith("ALSA lib")]
    assert len(errors) == 1
    assert errors[0].startswith("nnasync: error: ")
    assert named in errors[0]
    assert not (tmp_path / "out").exists()


def test_a_source_that_dies_in_the_middle_leaves_a_summary(
    toy_data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unplugged(folder: Path | None, device: int | None) -> Any:
        return synthetic(frame, rate_hz=30)

    def frame(index: int) -> Any:
        if index == 10:
            raise DeviceUnavailable("nothing came from /dev/video0 for 5 s")
        return np.zeros((64, 64), np.uint8)

    monkeypatch.setattr(sys.modules["nnasync.cli.demo.play"], "video_source", unplugged)
    assert play(toy_data, tmp_path, "--no-low", "--seconds", "60", "--plain") == 1
    told = capsys.readouterr()
    assert "audio HIGH" in told.out
    assert "nnasync: error: nothing came from /dev/video0 for 5 s" in told.err.splitlines()
    summary = summary_of(tmp_path)
    assert summary["video"]["account"]["submitted"] == 10
    for stream in ("audio", "video"):
        assert balanced(summary[stream]["account"])
    assert (tmp_path / "timeline.html").exists()


def test_a_signal_ends_it_with_a_summary(toy_data: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "nnasync", "demo", "--plain", "--data", str(toy_data)]
    command += ["--out", str(tmp_path), "--alone-seconds", "0.1"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        for line in run.stdout:
            if "hears" in line:
                break
        run.send_signal(signal.SIGINT)
        rest, errors = run.communicate()
    assert run.returncode == 128 + signal.SIGINT, errors
    assert "audio HIGH" in rest
    assert "Traceback" not in errors
    for stream in ("audio", "video"):
        account = summary_of(tmp_path)[stream]["account"]
        assert account["pending"] == 0
        assert balanced(account)


def status(**changes: Any) -> DemoStatus:
    statistics = StreamStatistics(
        Account(submitted=10, completed=8, missed=2),
        Latency(8, 10**6, 10**6, 2 * 10**6, 3 * 10**6),
        10,
        8,
    )
    base = DemoStatus(
        elapsed_s=3.0,
        seconds=60.0,
        words=(Word(1, 5, 0.9), Word(2, 50, 0.8)),
        digit=7,
        score=0.93,
        frame=np.zeros((64, 64), np.uint8),
        audio=statistics,
        video=statistics,
        busy=Busy(0.97, 0.9, 2),
        low_hz=60.0,
        low_alone_hz=100.0,
    )
    return msgspec.structs.replace(base, **changes)


def test_plain_view() -> None:
    out = io.StringIO()
    with PlainView(("zero", "one", "two"), out) as view:
        view.note("hello")
        view.show(status())
        view.show(status(words=(), digit=NONE))
    first, second, third = out.getvalue().splitlines()
    assert first == "hello"
    assert "hears two" in second
    assert "sees 7" in second
    assert "8/10 2 missed" in second
    assert "sees -" in third


def test_rich_view() -> None:
    pytest.importorskip("rich")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    with RichView(("zero", "one", "two"), out) as view:
        view.note("hello")
        view.show(status())
        view.show(status(words=(), digit=NONE, frame=None, low_alone_hz=0.0))
    told = out.getvalue()
    for part in ("hello", "two", "sees", "deadlines met", "80.00%", "97.0%"):
        assert part in told


def test_a_missing_package_is_told_before_anything_is_played(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    assert main(["demo"]) == 1
    assert "pip install 'nnasync[demo]'" in capsys.readouterr().err
