"""Sound of any rate and layout as hops, without clicks between packets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nnasync.errors import InvalidArgument
from nnasync.streaming.sources.hops import Hops

av: Any = pytest.importorskip("av", reason="the extra media is not installed")

RATE = 16000
HOP = 160
MS = 1_000_000


def tone(rate: int, layout: str, first: int, count: int, *, amplitude: float = 0.5) -> Any:
    """Samples of a tone of 200 Hz, the same on all channels."""
    channels = av.AudioLayout(layout).nb_channels
    wave = amplitude * np.sin(2 * np.pi * 200 / rate * np.arange(first, first + count))
    samples = np.tile(wave.astype(np.float32), (channels, 1))
    frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout=layout)
    frame.sample_rate = rate
    return frame


@pytest.mark.parametrize("layout", ["mono", "stereo", "5.1"])
@pytest.mark.parametrize("rate", [8000, 16000, 44100, 48000])
def test_packets_of_any_size_make_one_tone(rate: int, layout: str) -> None:
    hops, first, found = Hops(RATE, HOP), 0, []
    for count in (441, 1024, 100, 2000, 960, 333, 4000) * 2:
        found += hops.add(tone(rate, layout, first, count))
        first += count
    found += hops.finish()
    sound = np.concatenate(found)
    assert all(hop.shape == (HOP,) and hop.dtype == np.float32 for hop in found)
    assert abs(sound.size - first * RATE / rate) <= HOP
    body = sound[400 : int(first * RATE / rate) - 400]
    expected = 0.5 * np.sin(2 * np.pi * 200 / RATE * np.arange(400, 400 + body.size))
    assert np.abs(body - expected).max() < 0.01


def test_loud_channels_stay_in_range() -> None:
    hops = Hops(RATE, HOP)
    assert np.abs(hops.add(tone(RATE, "stereo", 0, 1600, amplitude=1.0))).max() <= 1.0


def test_rate_and_layout_may_change_in_the_middle() -> None:
    hops = Hops(RATE, HOP)
    found = hops.add(tone(48000, "stereo", 0, 4800))
    found += hops.add(tone(8000, "mono", 800, 800))
    found += hops.finish()
    assert len(found) == pytest.approx(20, abs=1)
    assert np.abs(np.diff(np.concatenate(found)[200:3000])).max() < 0.1


def test_times_are_those_of_the_last_samples() -> None:
    hops = Hops(RATE, HOP)
    assert hops.cut(tone(RATE, "mono", 0, 100), 100_000_000) == []
    found = hops.cut(tone(RATE, "mono", 100, 300), 100_000_000 + 300 * 62_500)
    start = 100_000_000 - 100 * 62_500
    assert [at for at, _ in found] == [start + HOP * 62_500, start + 2 * HOP * 62_500]
    assert hops.gaps == 0


def test_a_hole_begins_a_new_hop() -> None:
    hops = Hops(RATE, HOP)
    hops.cut(tone(RATE, "mono", 0, 100), 10 * MS)
    (found,) = hops.cut(tone(RATE, "mono", 0, HOP), 1000 * MS)
    assert found[0] == 1000 * MS
    assert np.abs(found[1] - hops.add(tone(RATE, "mono", 0, HOP))[0]).max() == 0
    assert hops.gaps == 1


@pytest.mark.parametrize("rate", [8000, 16000, 32000, 48000])
def test_live_hops_end_where_packets_end(rate: int) -> None:
    hops, packet, found = Hops(RATE, HOP), rate // 50, []
    for number in range(1, 6):
        cut = hops.cut(tone(rate, "mono", packet * (number - 1), packet), number * 20 * MS)
        assert [at for at, _ in cut] == [number * 20 * MS - 10 * MS, number * 20 * MS]
        found += [hop for _, hop in cut]
    sound = np.concatenate(found)
    start = int(np.flatnonzero(np.abs(sound) > 0.25)[0])
    assert start < 0.002 * RATE + RATE / 200 / 4


@pytest.mark.parametrize(("rate_hz", "hop"), [(0, 1), (1, 0), (-1, 160)])
def test_numbers_that_make_no_hops(rate_hz: int, hop: int) -> None:
    with pytest.raises(InvalidArgument, match="must be a whole number from 1"):
        Hops(rate_hz, hop)


def test_times_rise_over_a_new_beginning() -> None:
    """Senders begin with what they kept: sound of before the end of the last connection."""
    hops = Hops(RATE, HOP)
    before = [at_ns for at_ns, _ in hops.cut(tone(RATE, "mono", 0, 800), 50 * MS)]
    hops.begin_anew()
    after = [at_ns for at_ns, _ in hops.cut(tone(RATE, "mono", 0, 800), 60 * MS)]
    assert before == [10 * MS, 20 * MS, 30 * MS, 40 * MS, 50 * MS]
    assert after == [50 * MS + 1, 50 * MS + 2, 50 * MS + 3, 50 * MS + 4, 60 * MS]
