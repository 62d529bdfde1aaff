"""Is somebody speaking: by energy, by a network, and where speech begins and ends.

`EnergyActivity` compares how loud a hop is with the noise, which it follows: quickly down, slowly
up. It needs no network and knows no speech: every sound that is loud for a while counts.
`SileroActivity` asks the network of Silero (silero-vad, as .onnx), which does. Both give a
probability a hop; `SpeechSegments` makes beginnings and ends of them, with different thresholds for
the two and patience in between.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from nnasync._core.arguments import check_number, check_positive, check_share, check_whole
from nnasync._core.clock import Deadline
from nnasync._core.execution.network import Network, check_network
from nnasync.audio.frames import samples_of
from nnasync.errors import InvalidArgument
from nnasync.hal import Priority, Struct

_QUIETEST_DB = -90.0


class EnergyActivity:
    """Estimates the probability of speech in each hop from its energy above the noise."""

    def __init__(
        self, *, margin_db: float = 9.0, slope_db: float = 2.0, rise_db: float = 0.05
    ) -> None:
        """Makes the probability one half at `margin_db` above the noise, 73 % `slope_db` higher.

        The noise is taken to rise by `rise_db` a hop at most. Raises InvalidArgument for what is
        no finite number, and for a slope or a rise that is not above 0.
        """
        check_number("margin_db", margin_db)
        check_positive("slope_db", slope_db)
        check_positive("rise_db", rise_db)
        self._margin_db = margin_db
        self._slope_db = slope_db
        self._rise_db = rise_db
        self._noise_db: float | None = None

    @property
    def noise_db(self) -> float:
        """Returns the level of the noise in dB of full scale; -90 before the first hop."""
        return _QUIETEST_DB if self._noise_db is None else self._noise_db

    def reset(self) -> None:
        """Forget the noise."""
        self._noise_db = None

    def feed(self, hop: Any) -> float:
        """Returns the probability of speech in a hop of samples, float from -1 to 1 or int16.

        Raises InvalidArgument for what is no row of samples, or an empty one.
        """
        level_db = _level_db(hop)
        if self._noise_db is None:
            self._noise_db = level_db
        elif level_db < self._noise_db:
            self._noise_db += 0.5 * (level_db - self._noise_db)
        else:
            self._noise_db += min(level_db - self._noise_db, self._rise_db)
        above = (level_db - self._noise_db - self._margin_db) / self._slope_db
        return float(1 / (1 + np.exp(-np.clip(above, -50, 50))))


def _level_db(hop: Any) -> float:
    row = samples_of(hop, np.float32).astype(np.float64)
    if not len(row):
        raise InvalidArgument("a hop has at least one sample")
    if np.asarray(hop).dtype.kind in "iu":
        row = row / 32_768
    return max(float(10 * np.log10(np.mean(row**2) + 1e-12)), _QUIETEST_DB)


_STATE = (2, 1, 128)


class SileroActivity:
    """Runs Silero's network on hops of 512 samples at 16 kHz, or 256 at 8 kHz, for speech in them.

    It keeps the network's state and the samples before a hop, so one is for one stream; calls
    follow one another.
    """

    def __init__(self, net: Network, *, rate_hz: Literal[8000, 16000] = 16_000) -> None:
        """`net` is silero-vad (version 5 on), compiled; it stays the caller's.

        Raises InvalidArgument for another network, or another rate.
        """
        check_network("net", net)
        if rate_hz not in (8000, 16_000):
            raise InvalidArgument(f"the network is for 8000 and 16000 Hz, not {rate_hz}")
        names = [port.name for port in net.inputs]
        if not {"input", "state"} <= set(names) or not set(names) <= {"input", "state", "sr"}:
            raise InvalidArgument(
                f"silero-vad has the inputs input, state and sr, this network {', '.join(names)}"
            )
        self._net = net
        self._rate = {
            port.name: np.full(port.shape, rate_hz, port.dtype)
            for port in net.inputs
            if port.name == "sr"
        }
        self.hop = 512 if rate_hz == 16_000 else 256
        self._context = self.hop // 8
        self.reset()

    def reset(self) -> None:
        """Begin anew, as after a gap."""
        self._state = np.zeros(_STATE, np.float32)
        self._before = np.zeros(self._context, np.float32)

    async def __call__(
        self, hop: Any, *, deadline: Deadline | None = None, priority: Priority | None = None
    ) -> float:
        """Returns the probability of speech in the next hop, of floats from -1 to 1 or int16.

        Raises InvalidArgument for another number of samples, and what the network raises; the
        state then stays as it was.
        """
        row = samples_of(hop, np.float32)
        if np.asarray(hop).dtype.kind in "iu":
            row = row / np.float32(32_768)
        if len(row) != self.hop:
            raise InvalidArgument(f"a hop has {self.hop} samples, not {len(row)}")
        joined = np.concatenate([self._before, row])[None]
        values = {"input": joined, "state": self._state, **self._rate}
        probability, state = await self._net(values, deadline=deadline, priority=priority)
        self._state = np.asarray(state, np.float32).reshape(_STATE)
        self._before = row[-self._context :].copy()
        return float(np.asarray(probability).reshape(-1)[0])


class SpeechEvent(Struct, frozen=True):
    """Speech has begun, or ended, at a time; times are those of the hops that were fed."""

    kind: Literal["begin", "end"]
    at_ns: int


class SpeechSegments:
    """Turns probabilities of speech into its beginnings and ends."""

    def __init__(
        self,
        *,
        threshold: float = 0.5,
        release: float = 0.35,
        least_speech_ns: int = 100_000_000,
        least_silence_ns: int = 300_000_000,
    ) -> None:
        """Speech begins when the probability has been `threshold` or more for `least_speech_ns`.

        It ends when it is below `release`, and it was that `least_silence_ns` before and has not
        come back to `threshold` since. Raises InvalidArgument unless
        0 <= release <= threshold <= 1 and both times are whole numbers, at least 0.
        """
        check_share("threshold", threshold)
        check_share("release", release)
        check_whole("least_speech_ns", least_speech_ns, 0)
        check_whole("least_silence_ns", least_silence_ns, 0)
        if release > threshold:
            raise InvalidArgument(
                f"release {release} and threshold {threshold} are in this order from 0 to 1"
            )
        self._threshold = threshold
        self._release = release
        self._least_speech_ns = least_speech_ns
        self._least_silence_ns = least_silence_ns
        self._since_ns: int | None = None
        self.is_speech = False

    def feed(self, probability: float, now_ns: int) -> SpeechEvent | None:
        """Take the probability of a hop captured at `now_ns`; returns what follows, if anything.

        The time of an event is that of the first hop that led to it, so it is earlier than now.
        Raises InvalidArgument for a probability that is no finite number, and a time that is not in
        whole nanoseconds.
        """
        check_number("probability", probability)
        check_whole("now_ns", now_ns)
        turning = probability < self._release if self.is_speech else probability >= self._threshold
        staying = (probability >= self._threshold) == self.is_speech
        if turning and self._since_ns is None:
            self._since_ns = now_ns
        elif staying:
            self._since_ns = None
        patience_ns = self._least_silence_ns if self.is_speech else self._least_speech_ns
        if not turning or self._since_ns is None or now_ns - self._since_ns < patience_ns:
            return None
        event = SpeechEvent("end" if self.is_speech else "begin", self._since_ns)
        self.is_speech, self._since_ns = not self.is_speech, None
        return event
