"""Sources: what they deliver, when, and how they refuse."""

from __future__ import annotations

import os
import wave
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import av
import numpy as np
import pytest

from nnasync.errors import DeviceUnavailable, InvalidArgument
from nnasync.hal import Array
from nnasync.streaming import (
    Policy,
    Stage,
    audio_file,
    camera,
    microphone,
    synthetic,
    video_file,
)
from nnasync.streaming.blocking_reader import Reading
from nnasync.streaming.sources import alsa, audio

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks", "stall_guard")]


def write_wav(path: Path, samples: Array, rate_hz: int = 16000, sample_bytes: int = 2) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(samples.shape[1] if samples.ndim == 2 else 1)
        file.setsampwidth(sample_bytes)
        file.setframerate(rate_hz)
        file.writeframes(samples.tobytes())
    return path


def reading(name: str) -> Reading:
    return Reading(name, open_timeout_s=5.0, read_timeout_s=5.0)


async def write_video(path: Path, levels: list[int]) -> Path:
    return await anyio.to_thread.run_sync(encode_video, path, levels)


def encode_video(path: Path, levels: list[int], rate_hz: int = 30, size: int = 64) -> Path:
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("mpeg4", rate=rate_hz)
        stream.width = stream.height = size
        stream.pix_fmt = "yuv420p"
        for level in levels:
            pixels = np.full((size, size), level, np.uint8)
            frame = av.VideoFrame.from_ndarray(pixels, format="gray")
            container.mux(stream.encode(frame.reformat(format="yuv420p")))
        container.mux(stream.encode(None))
    return path


async def test_wav_hops_and_their_times(tmp_path: Path) -> None:
    samples = np.arange(-400, 400, dtype=np.int16)
    path = write_wav(tmp_path / "ramp.wav", samples)
    async with audio_file(path, hop=160, pace="fast") as source:
        items = [item async for item in source]
    assert [item.index for item in items] == [0, 1, 2, 3, 4]
    assert [item.media_ns for item in items] == [10_000_000 * k for k in range(1, 6)]
    assert all(item.data.dtype == np.float32 and item.data.shape == (160,) for item in items)
    np.testing.assert_array_equal(np.concatenate([i.data for i in items]), samples / 32768)


async def test_real_time_hops_are_captured_at_their_last_sample(tmp_path: Path) -> None:
    path = write_wav(tmp_path / "short.wav", np.zeros(480, np.int16))
    source = audio_file(path, hop=160, pace="real-time", start_ns=1_000)
    assert [item.captured_ns async for item in source] == [10_001_000, 20_001_000, 30_001_000]


async def test_last_hop_is_filled_and_channels_are_mixed(tmp_path: Path) -> None:
    stereo = np.stack([np.full(200, 16384), np.full(200, -8192)], axis=1).astype(np.int16)
    path = write_wav(tmp_path / "stereo.wav", stereo)
    items = [item async for item in audio_file(path, hop=160, pace="fast")]
    np.testing.assert_array_equal(items[0].data, np.full(160, 0.125, np.float32))
    np.testing.assert_array_equal(items[1].data, [0.125] * 40 + [0.0] * 120)


@pytest.mark.parametrize("sample_bytes", [1, 2, 3, 4])
async def test_sample_widths(sample_bytes: int) -> None:
    bits = 8 * sample_bytes
    values = [-(2 ** (bits - 1)), 0, 2 ** (bits - 2)]
    offset = 128 if sample_bytes == 1 else 0
    data = b"".join(
        (value + offset).to_bytes(sample_bytes, "little", signed=sample_bytes > 1)
        for value in values
    )
    decoded = audio.pcm_to_float(data + b"\1" * (sample_bytes - 1), sample_bytes, 1)
    np.testing.assert_array_equal(decoded, np.array([-1.0, 0.0, 0.5], np.float32))


async def test_other_audio_is_resampled(tmp_path: Path) -> None:
    path = tmp_path / "tone.flac"
    tone = (8000 * np.sin(np.arange(48000) * 2 * np.pi * 440 / 48000)).astype(np.int16)
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("flac", rate=48000, layout="mono")
        frame = av.AudioFrame.from_ndarray(tone[None], format="s16", layout="mono")
        frame.sample_rate = 48000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    items = [item async for item in audio_file(path, pace="fast")]
    assert 100 <= len(items) <= 101
    samples = np.concatenate([item.data for item in items])[:16000]
    spectrum = np.abs(await anyio.to_thread.run_sync(np.fft.rfft, samples))
    assert int(spectrum.argmax()) == 440
    assert items[9].media_ns == 100_000_000


@pytest.mark.parametrize("kind", ["f32", "s16"])
async def test_wav_of_another_rate_or_kind_is_resampled(tmp_path: Path, kind: str) -> None:
    tone = np.sin(np.arange(44100) * 2 * np.pi * 440 / 44100).astype(np.float32) / 2
    path = tmp_path / "tone.wav"
    if kind == "s16":
        write_wav(path, (tone * 32767).astype(np.int16), rate_hz=44100)
    else:
        with av.open(str(path), "w") as container:
            stream: Any = container.add_stream("pcm_f32le", rate=44100, layout="mono")
            frame = av.AudioFrame.from_ndarray(tone[None], format="flt", layout="mono")
            frame.sample_rate = 44100
            container.mux(stream.encode(frame))
    items = [item async for item in audio_file(path, pace="fast")]
    assert 100 <= len(items) <= 101
    samples = np.concatenate([item.data for item in items])[:16000]
    spectrum = np.abs(await anyio.to_thread.run_sync(np.fft.rfft, samples))
    assert int(spectrum.argmax()) == 440
    assert float(np.abs(samples[1000:15000]).max()) == pytest.approx(0.5, abs=0.02)


async def test_video_frames_and_their_times(tmp_path: Path) -> None:
    levels = [0, 60, 120, 180, 240] * 4
    path = await write_video(tmp_path / "levels.mp4", levels)
    async with video_file(path, pace="fast") as source:
        items = [item async for item in source]
    assert [item.data.shape for item in items] == [(64, 64)] * len(levels)
    means = [float(item.data.mean()) for item in items]
    np.testing.assert_allclose(means, levels, atol=12)
    expected = [round(k * 1e9 / 30) for k in range(len(levels))]
    np.testing.assert_allclose([item.media_ns for item in items], expected, atol=1_000)


async def test_video_is_scaled_and_colored(tmp_path: Path) -> None:
    path = await write_video(tmp_path / "gray.mp4", [128] * 3)
    items = [i async for i in video_file(path, size=(32, 16), pixels="rgb24", pace="fast")]
    assert [item.data.shape for item in items] == [(32, 16, 3)] * 3


async def test_leaving_a_file_early_gives_everything_back(tmp_path: Path) -> None:
    path = await write_video(tmp_path / "long.mp4", [100] * 60)
    async with video_file(path, pace="fast") as source:
        await anext(source)
        await anext(source)


async def test_files_that_are_no_media(tmp_path: Path) -> None:
    broken = tmp_path / "broken.wav"
    broken.write_bytes(b"RIFF\x10")
    other = tmp_path / "other.wav"
    other.write_bytes(b"no sound at all" * 10)
    no_video = write_wav(tmp_path / "sound.wav", np.zeros(100, np.int16))
    text = tmp_path / "text.mp4"
    text.write_text("not a video")
    for source, message in (
        (audio_file(tmp_path / "none.wav"), "No such file"),
        (audio_file(tmp_path / "none.flac"), "No such file"),
        (audio_file(broken), "broken.wav"),
        (audio_file(other), "other.wav"),
        (video_file(tmp_path / "none.mp4"), "No such file"),
        (video_file(no_video), "no video stream"),
        (video_file(text), "text.mp4"),
    ):
        async with source:
            with pytest.raises(InvalidArgument, match=message):
                await anext(source)


async def test_truncated_video_gives_frames_or_a_typed_error(tmp_path: Path) -> None:
    written = await write_video(tmp_path / "whole.mkv", list(range(0, 240, 4)))
    whole = written.read_bytes()
    for length in range(0, len(whole), max(len(whole) // 12, 1)):
        path = tmp_path / "cut.mkv"
        path.write_bytes(whole[:length])
        async with video_file(path, pace="fast") as source:
            try:
                outcome = str(len([item async for item in source]))
            except InvalidArgument as error:
                outcome = str(error)
        assert "cut.mkv" in outcome or int(outcome) <= 60


async def test_missing_devices() -> None:
    async with camera(97) as source:
        with pytest.raises(DeviceUnavailable, match="/dev/video97"):
            await anext(source)
    async with microphone("hw:97") as mic:
        with pytest.raises(DeviceUnavailable, match="hw:97"):
            await anext(mic)


FOUND = {"ALSA_CONFIG_DIR": alsa.FOLDER, "ALSA_CONFIG_PATH": f"{alsa.FOLDER}/alsa.conf"}


@pytest.mark.parametrize(
    ("given", "there", "expected"),
    [
        ({}, True, FOUND),
        ({}, False, {}),
        ({"ALSA_CONFIG_PATH": "/mine"}, True, FOUND | {"ALSA_CONFIG_PATH": "/mine"}),
        ({"ALSA_CONFIG_DIR": ""}, True, FOUND | {"ALSA_CONFIG_DIR": ""}),
    ],
)
async def test_alsa_is_told_where_its_configuration_is(
    given: dict[str, str], there: bool, expected: dict[str, str]
) -> None:
    environment = dict(given)
    alsa.find_configuration(environment, lambda path: there and path == "/usr/share/alsa/alsa.conf")
    assert environment == expected


@pytest.mark.skipif(
    not os.path.isfile(FOUND["ALSA_CONFIG_PATH"]),
    reason="this machine has no configuration of ALSA",
)
async def test_a_microphone_of_alsa_opens_without_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in FOUND:
        monkeypatch.setenv(name, "is restored at the end")
        monkeypatch.delenv(name)
    async with microphone("null") as source:
        item = await anext(source)
    assert item.data.shape == (160,)
    assert {name: os.environ[name] for name in FOUND} == FOUND


async def test_the_log_level_of_the_application_stays(tmp_path: Path) -> None:
    path = await write_video(tmp_path / "levels.mp4", [0, 60])
    before = av.logging.get_level()
    av.logging.set_level(av.logging.FATAL)
    try:
        assert len([item async for item in video_file(path, pace="fast")]) == 2
        assert av.logging.get_level() == av.logging.FATAL
    finally:
        av.logging.set_level(before)


async def test_synthetic_takes_functions_and_coroutine_functions() -> None:
    async def later(index: int) -> int:
        await anyio.lowlevel.checkpoint()
        return index * index

    plain = synthetic(lambda index: index, rate_hz=100, count=3, pace="fast")
    assert [item.data async for item in plain] == [0, 1, 2]
    source = synthetic(later, rate_hz=30, count=4, start_ns=0)
    items = [item async for item in source]
    assert [item.data for item in items] == [0, 1, 4, 9]
    assert [item.captured_ns for item in items] == [0, 33333333, 66666667, 100000000]
    assert [item async for item in source] == []


@pytest.mark.parametrize("rate_hz", [0.0, -1.0, float("nan"), float("inf")])
async def test_wrong_rates(rate_hz: float) -> None:
    with pytest.raises(InvalidArgument, match="rate_hz"):
        synthetic(lambda index: index, rate_hz=rate_hz)


async def test_other_wrong_arguments() -> None:
    with pytest.raises(InvalidArgument, match="count"):
        synthetic(lambda index: index, rate_hz=1, count=-1)
    with pytest.raises(InvalidArgument, match="hop"):
        audio_file("x.wav", hop=0)
    with pytest.raises(InvalidArgument, match="gray"):
        video_file("x.mp4", pixels="cmyk")  # type: ignore[arg-type]


async def test_a_file_through_a_stage(tmp_path: Path) -> None:
    async def mean(data: Array, *, deadline: object = None) -> float:
        await anyio.lowlevel.checkpoint()
        return float(data.mean())

    path = await write_video(tmp_path / "levels.mp4", [200] * 25)
    async with Stage(mean, policy=Policy.BLOCK) as stage:
        stage.feed(video_file(path, pace="fast"))
        means = [result.value async for result in stage]
    assert len(means) == 25
    assert stage.account.completed == 25


async def test_a_recording_that_is_ready_starts_when_it_is_told(tmp_path: Path) -> None:
    path = write_wav(tmp_path / "short.wav", np.zeros(320, np.int16))
    async with audio_file(path) as source:
        await source.ready()
        await source.ready()
        source.start(5_000)
        items = [item async for item in source]
    assert [(item.index, item.captured_ns) for item in items] == [(0, 10_005_000), (1, 20_005_000)]


async def test_ready_tells_what_cannot_be_read_and_bears_an_empty_file(tmp_path: Path) -> None:
    async with audio_file(tmp_path / "none.wav") as missing:
        with pytest.raises(InvalidArgument, match="No such file"):
            await missing.ready()
    path = write_wav(tmp_path / "empty.wav", np.zeros(0, np.int16))
    async with audio_file(path) as empty:
        await empty.ready()
        assert [item async for item in empty] == []
