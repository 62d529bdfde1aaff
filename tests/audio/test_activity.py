"""Voice activity: by energy, by Silero's network, and speech with a beginning and an end."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nnasync as nn
from nnasync.audio import EnergyActivity, SileroActivity, SpeechEvent, SpeechSegments
from nnasync.errors import InvalidArgument, MissedDeadline
from nnasync.hal import Array
from tests import rigs

HOP_NS = 10_000_000


def noise(level: float, seed: int = 0, hops: int = 200) -> Array:
    return np.random.default_rng(seed).normal(0, level, (hops, 160)).astype(np.float32)


def test_what_is_above_the_noise_is_speech_and_noise_is_not() -> None:
    activity = EnergyActivity()
    quiet = [activity.feed(hop) for hop in noise(0.01)]
    assert max(quiet) < 0.2
    assert activity.noise_db == pytest.approx(-40, abs=2)
    assert min(activity.feed(hop) for hop in noise(0.2, hops=20)) > 0.95
    assert max(activity.feed(hop) for hop in noise(0.01, hops=20)) < 0.2


def test_noise_that_stays_is_noise_in_the_end() -> None:
    activity = EnergyActivity()
    for hop in noise(0.001):
        activity.feed(hop)
    loud = [activity.feed(hop) for hop in noise(0.05, hops=900)]
    assert loud[0] > 0.95
    assert loud[-1] < 0.2
    activity.reset()
    assert activity.noise_db == -90


def test_samples_of_16_bits_are_as_loud_as_floats() -> None:
    hop = np.rint(noise(0.1, hops=1)[0] * 32_768).astype(np.int16)
    one, other = EnergyActivity(), EnergyActivity()
    assert one.feed(hop) == pytest.approx(other.feed(hop / 32_768))
    assert one.noise_db == pytest.approx(other.noise_db)
    with pytest.raises(InvalidArgument, match="at least one sample"):
        one.feed([])


def events(segments: SpeechSegments, probabilities: list[float]) -> list[SpeechEvent]:
    found = [segments.feed(p, number * HOP_NS) for number, p in enumerate(probabilities)]
    return [event for event in found if event is not None]


def test_speech_begins_and_ends_with_patience() -> None:
    segments = SpeechSegments(least_speech_ns=3 * HOP_NS, least_silence_ns=5 * HOP_NS)
    click, pause = [1.0] * 2 + [0.0] * 5, [0.0] * 3
    found = events(segments, [*click, *[1.0] * 10, *pause, *[0.4] * 4, *[0.9] * 5, *[0.1] * 9])
    assert found == [SpeechEvent("begin", 7 * HOP_NS), SpeechEvent("end", 29 * HOP_NS)]
    assert not segments.is_speech


def test_a_probability_below_the_threshold_begins_the_patience_anew() -> None:
    segments = SpeechSegments(least_speech_ns=3 * HOP_NS)
    assert events(segments, [0.6, 0.4, 0.4, 0.4, 0.6, 0.6, 0.6]) == []
    assert segments.feed(0.6, 7 * HOP_NS) == SpeechEvent("begin", 4 * HOP_NS)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1e200])
def test_a_sample_that_is_no_number_is_refused_and_forgotten(wrong: float) -> None:
    activity = EnergyActivity()
    good = noise(0.01, hops=1)[0]
    before = activity.feed(good)
    bad = good.astype(np.float64)
    bad[7] = wrong
    with pytest.raises(InvalidArgument, match="finite"):
        activity.feed(bad)
    assert activity.feed(good) == before


@given(st.lists(st.floats(0, 1), max_size=200))
def test_beginnings_and_ends_take_turns_in_time(probabilities: list[float]) -> None:
    found = events(SpeechSegments(least_speech_ns=2 * HOP_NS), probabilities)
    assert [event.kind for event in found] == (["begin", "end"] * len(found))[: len(found)]
    times = [event.at_ns for event in found]
    assert times == sorted(set(times))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"release": 0.9}, "in this order"),
        ({"threshold": 1.5}, "threshold is 1.5, it must be a finite number from 0 to 1"),
        ({"least_speech_ns": -1}, "least_speech_ns is -1"),
    ],
)
def test_thresholds_out_of_order_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        SpeechSegments(**options)


@pytest.mark.anyio
@pytest.mark.one_loop("the numbers are the same on each")
async def test_silero_hears_speech_and_nothing_in_noise(shared: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the network is run whole, by ONNX Runtime")
    async with rigs.runtime("onnxruntime-cpu") as runtime:
        net = await runtime.compile(shared / "user_models" / "silero_vad_16k_op15.onnx")
        activity = SileroActivity(net)
        loudest = {}
        for name in ("yes", "no", "noise", "silence"):
            with wave.open(str(shared / "models" / "audio" / f"{name}_1000ms.wav")) as file:
                samples = np.frombuffer(file.readframes(file.getnframes()), np.int16)
            activity.reset()
            hops = samples[: len(samples) // 512 * 512].reshape(-1, 512)
            loudest[name] = max([await activity(hop) for hop in hops])
        with pytest.raises(InvalidArgument, match="512 samples, not 160"):
            await activity(np.zeros(160, np.float32))
    assert min(loudest["yes"], loudest["no"]) > 0.9
    assert max(loudest["noise"], loudest["silence"]) < 0.3


def counting() -> nn.Model:
    """With Silero's inputs: the mean of the input and the state; the next state is one more."""
    builder = nn.ModelBuilder("counting")
    samples, state = builder.input("input", (1, 576)), builder.input("state", (2, 1, 128))
    mean = builder.mean(samples, [1], keep_dims=True)
    count = builder.reshape(builder.mean(state, [0, 1, 2], keep_dims=True), (1, 1))
    builder.output("output", builder.add(mean, count))
    builder.output("stateN", builder.add(state, np.ones((1, 1, 1), np.float32)))
    return builder.build()


@pytest.mark.anyio
async def test_state_and_context_go_on_and_a_failed_call_changes_nothing() -> None:
    async with rigs.runtime() as runtime:
        net = await runtime.compile(counting())
        activity = SileroActivity(net)
        ones, zeros = np.ones(512, np.float32), np.zeros(512, np.float32)
        assert await activity(ones) == pytest.approx(512 / 576)
        with pytest.raises(MissedDeadline):
            await activity(ones, deadline=nn.Deadline(1))
        assert await activity(zeros) == pytest.approx(64 / 576 + 1)
        activity.reset()
        assert await activity(zeros) == 0


@pytest.mark.anyio
@pytest.mark.one_loop("it is refused before anything runs")
async def test_other_networks_and_rates_are_refused() -> None:
    async with rigs.runtime() as runtime:
        net = await runtime.compile(rigs.doubler())
        with pytest.raises(InvalidArgument, match="has the inputs input, state and sr"):
            SileroActivity(net)
        with pytest.raises(InvalidArgument, match="8000 and 16000"):
            SileroActivity(net, rate_hz=44_100)  # type: ignore[arg-type]  # on purpose
