"""`nnasync run MODEL`: inputs from files, results, timing, interruption."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import wave
from pathlib import Path
from typing import Any

import av
import msgspec
import numpy as np
import pytest

import nnasync as nn
from nnasync._core.clock import now_ns
from nnasync._core.drivers import default_devices
from nnasync.cli import main
from nnasync.cli import run as run_command
from nnasync.hal import Array


@pytest.fixture
def doubling(tmp_path: Path) -> Path:
    """A network with two inputs that are added, and their sum doubled."""
    builder = nn.ModelBuilder("doubling")
    left = builder.input("left", (1, 4))
    right = builder.input("right", (1, 4))
    total = builder.add(left, right)
    builder.output("sum", total)
    builder.output("twice", builder.add(total, total))
    path = tmp_path / "doubling.nnm"
    nn.save(builder.build(), path)
    return path


def echo(path: Path, shape: tuple[int, ...], type: nn.OperandType | None = None) -> Path:
    """A network that gives its input back, times 1 and plus 0."""
    builder = nn.ModelBuilder("echo")
    x = builder.input("x", shape)
    builder.output("y", builder.add(x, np.zeros([n or 1 for n in shape], np.float32)))
    nn.save(builder.build(), path)
    return path


def saved(folder: Path, name: str) -> Array:
    array: Array = np.load(folder / f"{name}.npy")
    return array


def run_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    assert main(["run", *map(str, arguments), "--json"]) == 0
    return msgspec.json.decode(capsys.readouterr().out)


def test_arrays_in_results_and_timing_out(
    doubling: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "left.npy", np.array([[1, 2, 3, 4]], np.float32))
    (tmp_path / "right.bin").write_bytes(np.array([10, 20, 30, 40], np.float32).tobytes())
    told = run_json(
        capsys,
        doubling,
        f"--input=right={tmp_path / 'right.bin'}",
        f"--input={tmp_path / 'left.npy'}",
        "--repeat=20",
        f"--output={tmp_path / 'out'}",
    )
    np.testing.assert_array_equal(saved(tmp_path / "out", "sum"), [[11, 22, 33, 44]])
    np.testing.assert_array_equal(saved(tmp_path / "out", "twice"), [[22, 44, 66, 88]])
    assert set(told["devices"]) <= set(default_devices())
    assert (told["runs"], told["missed"]) == (21, 0)
    assert told["outputs"][0]["top"][0] == {"index": 3, "value": 44.0}
    assert 0 < told["median_ms"] <= told["p90_ms"] <= told["p99_ms"]


def test_what_was_compiled_is_kept(
    doubling: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [doubling, "--cache-dir", tmp_path / "cache", "--device", "nnasync-reference"]
    assert not run_json(capsys, *command)["cache_hit"]
    assert run_json(capsys, *command)["cache_reason"] == "hit"
    assert main(["run", *map(str, command)]) == 0
    assert "doubling on nnasync-reference (cache: hit)" in capsys.readouterr().out


@pytest.mark.parametrize("value", ["zeros", "random"])
def test_made_up_values_have_one_example_and_no_shape_that_nobody_knows(
    value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of an open dimension there were no values at all: an empty run in no time."""
    for name, shape in (("batch", (0, 4)), ("open", (1, 0, 4))):
        builder = nn.ModelBuilder(name)
        x = builder.input("x", shape)
        builder.output("y", builder.add(x, x))
        nn.save(builder.build(), tmp_path / f"{name}.nnm")
    (told,) = run_json(capsys, tmp_path / "batch.nnm", "--input", value)["outputs"]
    assert told["shape"] == [1, 4]
    assert main(["run", str(tmp_path / "open.nnm"), "--input", value]) == 1
    assert "takes values of several shapes, x float32[1, ?, 4]" in capsys.readouterr().err
    np.save(tmp_path / "x.npy", np.ones((1, 3, 4), np.float32))
    (told,) = run_json(capsys, tmp_path / "open.nnm", "--input", tmp_path / "x.npy")["outputs"]
    assert told["shape"] == [1, 3, 4]


def test_text_output(doubling: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(doubling), "--input", "random", "--priority", "high"]) == 0
    told = capsys.readouterr().out
    assert re.search("doubling on (.+)-(cpu|reference)", told)
    assert "top of twice" in told
    assert "11 runs: first" in told


def test_npz_in_and_out(doubling: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", left=np.ones((4,), np.float32), right=np.ones((1, 4), np.float32))
    one = tmp_path / "in.npz"
    assert (
        main(
            [
                "run",
                str(doubling),
                f"--input=left={one}",
                f"--input=right={one}",
                f"--output={tmp_path / 'new' / 'out.npz'}",
            ]
        )
        == 0
    )
    with np.load(tmp_path / "new" / "out.npz") as outputs:
        np.testing.assert_array_equal(outputs["twice"], np.full((1, 4), 4))


def test_random_is_seeded(doubling: Path, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        main(
            [
                "run",
                str(doubling),
                "--input=random",
                f"--seed={seed}",
                "--repeat=1",
                f"--output={tmp_path / name}",
            ]
        )
    first, again, other = (saved(tmp_path / name, "sum") for name in "abc")
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def red_picture(path: Path) -> Path:
    pixels = np.zeros((8, 12, 3), np.uint8)
    pixels[:, :, 0] = 255
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("png", rate=1)
        stream.width, stream.height, stream.pix_fmt = 12, 8, "rgb24"
        container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode(None))
    return path


@pytest.mark.parametrize("shape", [(1, 4, 6, 3), (1, 3, 4, 6)], ids=["last", "first"])
def test_picture(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """With its channels where the network has them."""
    model = echo(tmp_path / "echo.nnm", shape)
    picture = red_picture(tmp_path / "red.png")
    options = [f"--input={picture}", "--range", "-1", "1", f"--output={tmp_path}"]
    assert main(["run", str(model), *options]) == 0
    result = saved(tmp_path, "y")
    assert result.shape == shape
    channels = np.moveaxis(result, shape.index(3), 0)
    np.testing.assert_allclose(channels[0], 1.0, atol=0.02)
    np.testing.assert_allclose(channels[1:], -1.0, atol=0.02)


@pytest.mark.parametrize("shape", [(1, 0, 0, 3), (1, 3, 0, 0)], ids=["last", "first"])
def test_a_picture_for_an_input_of_any_size_keeps_its_own(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    model = echo(tmp_path / "echo.nnm", shape)
    picture = red_picture(tmp_path / "red.png")
    assert main(["run", str(model), f"--input={picture}", f"--output={tmp_path}"]) == 0
    result = saved(tmp_path, "y")
    assert result.shape == ((1, 3, 8, 12) if shape[1] else (1, 8, 12, 3))
    channels = np.moveaxis(result, shape.index(3), 0)
    np.testing.assert_allclose(channels[0], 1.0, atol=0.02)


def test_a_file_that_is_no_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = echo(tmp_path / "echo.nnm", (1, 4, 6, 3))
    (tmp_path / "text.jpg").write_text("not a picture")
    assert main(["run", str(model), f"--input={tmp_path / 'text.jpg'}"]) == 1
    told = capsys.readouterr().err
    assert "input x: cannot read a picture from " in told
    assert "video" not in told


def features(path: Path, shape: tuple[int, ...]) -> Path:
    """A network of int8, as those for spectrograms have it."""
    builder = nn.ModelBuilder("features")
    signed = nn.OperandType.TENSOR_QUANT8_ASYMM_SIGNED
    x = builder.input("x", shape, type=signed, scale=0.5, zero_point=-3)
    builder.output("y", builder.relu(x))
    nn.save(builder.build(), path)
    return path


@pytest.mark.parametrize("what", ["bytes", "picture of it"])
def test_sound_for_features_is_refused_unless_told(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.nnm"
    model = features(path, (1, 40)) if what == "bytes" else echo(path, (1, 4, 10, 1))
    sound = f"--input={write_sound(tmp_path / 'sound.wav', np.full(100, 16384, np.int16))}"
    assert main(["run", str(model), sound]) == 1
    told = capsys.readouterr().err
    assert "looks like features" in told
    assert "--raw-samples" in told
    assert main(["run", str(model), sound, "--raw-samples", f"--output={tmp_path}"]) == 0
    assert "input x: hop 1 of the 3 of" in capsys.readouterr().out
    expected = round(0.5 / 0.5) - 3 if what == "bytes" else 0.5
    assert set(saved(tmp_path, "y").ravel().tolist()) == {expected}


def write_sound(path: Path, samples: Array) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(samples.tobytes())
    return path


def test_which_part_of_the_sound_is_given_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = echo(tmp_path / "echo.nnm", (1, 16))
    sound = write_sound(tmp_path / "sound.wav", np.arange(40, dtype=np.int16))
    told = run_json(capsys, model, f"--input={sound}")
    assert told["notes"] == [f"input x: hop 1 of the 3 of {sound}, with 16 samples each"]
    assert run_json(capsys, model)["notes"] == []


READS_A_PIPE = """
import pathlib, sys
from nnasync._core import endings
from nnasync.cli import main

endings._PATIENCE_S = 0.1

def tell_and_read(path, read=pathlib.Path.read_bytes):
    print("reading", flush=True)
    return read(path)

pathlib.Path.read_bytes = tell_and_read
sys.exit(main(["run", sys.argv[1], "--input=left.npy"]))
"""


def test_a_pipe_without_a_writer_does_not_keep_it_from_ending(
    doubling: Path, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "left.npy")
    command = [sys.executable, "-c", READS_A_PIPE, str(doubling)]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "reading\n"
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=60)
    assert run.returncode == 130


def test_sound_is_cut_and_filled(tmp_path: Path) -> None:
    write_sound(tmp_path / "sound.wav", np.full(20, 8192, np.int16))
    for size, expected in ((16, [0.25] * 16), (32, [0.25] * 20 + [0.0] * 12)):
        model = echo(tmp_path / "echo.nnm", (1, size))
        assert (
            main(["run", str(model), f"--input=x={tmp_path / 'sound.wav'}", f"--output={tmp_path}"])
            == 0
        )
        np.testing.assert_array_equal(saved(tmp_path, "y")[0], expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--input=middle=zeros"], "no input is called 'middle'; there are left, right"),
        (["--input=zeros"] * 3, "3 inputs are given, the network takes 2"),
        (["--input=left=words.txt"], "'words.txt' is neither random, zeros"),
        (["--input=left=none.npy"], "cannot read none.npy: No such file"),
        (["--input=left=shape.npy"], "shape.npy has shape (2, 2), the network takes (1, 4)"),
        (["--input=left=object.npy"], "cannot read object.npy"),
        (["--input=left=short.bin"], "short.bin has shape (3,)"),
        (["--input=left=two.npz"], "two.npz has only the arrays a, b"),
        (["--input=left=photo.png"], "a picture needs an input [1, height, width, 1 or 3] or [1,"),
        (["--input=left=none.wav"], "none.wav: No such file"),
        (["--input=left=none.jpg"], "input left: cannot read none.jpg: No such file"),
        (["--device=toaster"], "toaster"),
        (["--deadline-ms=-1"], "none of 11 runs met the deadline of -1 ms"),
    ],
)
def test_refusals(
    arguments: list[str],
    message: str,
    doubling: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("shape.npy", np.zeros((2, 2), np.float32))
    np.save("object.npy", np.array([{}]), allow_pickle=True)
    np.savez("two.npz", a=np.zeros(4), b=np.zeros(4))
    Path("short.bin").write_bytes(bytes(12))
    Path("photo.png").write_bytes(b"")
    assert main(["run", str(doubling), *arguments]) == 1
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1


def test_cut_off_model(doubling: Path, capsys: pytest.CaptureFixture[str]) -> None:
    doubling.write_bytes(doubling.read_bytes()[:50])
    assert main(["run", str(doubling)]) == 1
    assert "doubling.nnm" in capsys.readouterr().err


@pytest.mark.parametrize(("which", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interruption_tells_what_there_is(
    which: signal.Signals,
    code: int,
    doubling: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    calls = 0

    def interrupting() -> int:
        nonlocal calls
        calls += 1
        if calls == 25:
            signal.raise_signal(which)
        return now_ns()

    monkeypatch.setattr(run_command, "now_ns", interrupting)
    assert main(["run", str(doubling), "--repeat", "1000000000", "--json"]) == code
    assert msgspec.json.decode(capsys.readouterr().out)["runs"] >= 12
