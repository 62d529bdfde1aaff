"""The small applications of streams do what their pages say, on recordings in place of devices."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import re
import wave
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

import nnasync as nn
from nnasync.cli import demo_data
from nnasync.errors import InvalidArgument
from nnasync.streaming import Item, synthetic

pytest.importorskip("av", reason="needs the extra media")

from apps.noise_suppression import app as noise_suppression  # It needs PyAV.
from apps.two_cameras import app as two_cameras
from apps.wake_word import app as wake_word

from nnasync.streaming import audio_file, video_file  # As they do.

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.one_loop("what they add to graphs does not depend on the loop"),
]

APPS = Path(__file__).resolve().parent.parent / "examples" / "apps"
GUARD_S = 60


def on_reference() -> nn.Runtime:
    """A runtime that compiles in no time."""
    return nn.open_runtime(devices=["nnasync-reference"])


def first(source: Any, count: int) -> Any:
    """The first items of a source."""

    async def items() -> Any:
        left = count
        async with source:
            async for item in source:
                yield item
                left -= 1
                if not left:
                    return

    return items()


def masks(factor: float) -> nn.Model:
    """A network that answers every spectrum with the same factor."""
    m = nn.ModelBuilder("masks")
    x = m.input("magnitudes", (1, 1, noise_suppression.BINS))
    zero = m.mul(x, np.zeros((1, 1, 1), np.float32))
    m.output("mask", m.add(zero, np.full((1, 1, 1), factor, np.float32)))
    return m.build()


# -- a wake word


async def test_a_wake_word_is_heard_when_it_is_said_and_no_other() -> None:
    truth = demo_data.words_truth()
    hops = 1000
    said = [spoken for spoken in truth.words if spoken.end < (hops - 100) * 160]
    word = said[0].label
    sound = audio_file(demo_data.path("words.flac"), pace="fast")
    heard: list[float] = []
    with anyio.fail_after(GUARD_S):
        account = await wake_word.listen(
            first(sound, hops),
            truth.names[word],
            lambda second, score: heard.append(second),
            budget_ns=None,
            runtime=on_reference,
        )
    ends = [spoken.end / 16_000 for spoken in said if spoken.label == word]
    assert account.submitted == hops
    assert account.pending == 0
    assert all(any(abs(end - second) < 0.7 for second in heard) for end in ends), (ends, heard)
    every = [spoken.end / 16_000 for spoken in truth.words if spoken.label == word]
    assert all(any(abs(end - second) < 0.7 for end in every) for second in heard), (every, heard)


# -- two cameras


async def test_two_cameras_tell_what_comes_and_goes(tmp_path: Path) -> None:
    cameras = {
        name: first(video_file(demo_data.path("scene.mp4"), pixels="rgb24", pace="fast"), 12)
        for name in ("door", "yard")
    }
    out = tmp_path / "seen.jsonl"
    with anyio.fail_after(GUARD_S):
        account = await two_cameras.watch(cameras, out, budget_ns=None, runtime=on_reference)
    rows = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert account.pending == 0
    assert account.stages["yard: events"].completed == 12
    shown = {str(label) for label in demo_data.scene_truth().labels}
    for name in cameras:
        came = {row["digit"] for row in rows if row["camera"] == name and row["event"] == "came"}
        assert came
        assert came <= shown


async def test_a_camera_that_breaks_ends_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def broken() -> Any:
        yield Item(0, nn._core.clock.now_ns(), np.zeros((64, 64, 3), np.uint8))
        raise OSError("unplugged")

    whole = first(video_file(demo_data.path("scene.mp4"), pixels="rgb24", pace="fast"), 3)
    cameras = {"door": broken(), "yard": whole}
    with anyio.fail_after(GUARD_S):
        account = await two_cameras.watch(
            cameras, tmp_path / "seen.jsonl", budget_ns=None, runtime=on_reference
        )
    assert account.stages["yard: events"].completed == 3
    assert "unplugged" in capsys.readouterr().err


# -- noise suppression


@pytest.mark.parametrize("factor", [1.0, 0.5])
async def test_a_mask_scales_the_sound(tmp_path: Path, factor: float) -> None:
    hop, hops = noise_suppression.HOP, 40
    times = np.arange(hop * hops) / 16_000
    sound = (0.5 * np.sin(2 * np.pi * 440 * times)).astype(np.float32)
    source = synthetic(
        lambda n: sound[n * hop : (n + 1) * hop], rate_hz=125, count=hops, pace="fast"
    )
    out = tmp_path / "clean.wav"
    with anyio.fail_after(GUARD_S):
        account = await noise_suppression.suppress(
            masks(factor), source, out, budget_ns=None, runtime=on_reference
        )
    assert account.stages["file"].completed == hops
    with wave.open(str(out)) as file:
        written = np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32767
    late = noise_suppression.WINDOW - hop
    assert len(written) == len(sound)
    np.testing.assert_allclose(written[late:], factor * sound[:-late], atol=1e-3)


async def test_a_network_of_something_else_is_refused(tmp_path: Path) -> None:
    source = synthetic(lambda n: np.zeros(128, np.float32), rate_hz=125, count=1, pace="fast")
    with pytest.raises(InvalidArgument, match="257 magnitudes"):
        await noise_suppression.suppress(
            demo_data.path("digits.nnm"), source, tmp_path / "x.wav", runtime=on_reference
        )


# -- the notebook


def test_the_notebook_runs_from_its_first_cell_to_its_last(
    capsys: pytest.CaptureFixture[str],
) -> None:
    notebook = json.loads((APPS / "experiment_notebook" / "experiment.ipynb").read_text("utf-8"))
    space: dict[str, Any] = {"__name__": "notebook"}
    with asyncio.Runner() as runner:
        for number, cell in enumerate(notebook["cells"]):
            if cell["cell_type"] == "code":
                assert cell["outputs"] == []
                flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
                code = compile("".join(cell["source"]), f"cell {number}", "exec", flags)
                value = eval(code, space)
                if inspect.iscoroutine(value):
                    runner.run(value)
    assert len(re.findall(r"^load .*%$", capsys.readouterr().out, re.MULTILINE)) == 4


@pytest.mark.parametrize("folder", sorted(path.name for path in APPS.iterdir() if path.is_dir()))
def test_each_application_says_what_it_is_and_how_it_is_started(folder: str) -> None:
    if folder == "__pycache__":
        pytest.skip("no application: what Python left there")
    page = (APPS / folder / "README.md").read_text("utf-8")
    assert page.startswith("# ")
    assert len(page.splitlines()) <= 16
    assert "pip install '../../..[" in page
