"""The features of TensorFlow's micro front end: sound for networks on microcontrollers.

Wake words and keywords (`micro_speech` and its relatives) are trained on what this computes in
integers: windows of 30 ms every 20 ms, a Fourier transform of 16 bits, 40 mel bands, their roots, a
subtraction of steady noise in each band, a gain that evens out what is near and far (PCAN:
per-channel amplitude normalization), and a logarithm. Noise estimates go on from window to window,
so a front end belongs to one stream.

All of it follows the arithmetic of the library in C, with its rounding: what differs by a bit in
one window would go on in the noise estimate. Names are those of its configuration.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nnasync._core.arguments import (
    check_kind,
    check_number,
    check_positive,
    check_share,
    check_whole,
    numbers,
)
from nnasync.audio.fixed_fft import fixed_rfft
from nnasync.audio.frames import Framer, samples_of
from nnasync.errors import InvalidArgument
from nnasync.hal import Array, Struct

_WINDOW_BITS = 12
_FILTER_BITS = 12
_NOISE_BITS = 14
_SNR_BITS = 12
_PCAN_BITS = 6
_WIDEST = 32
_LOG_BITS = 16
_SEGMENT_BITS = 7
_LARGEST_WINDOW = 1 << 15
_LN_2 = 45_426
"""The natural logarithm of 2, of 16 bits."""


class MicroFrontendConfig(Struct, frozen=True):
    """The settings of `micro_speech`; milliseconds are those of its C structures."""

    rate_hz: int = 16_000
    window_ms: int = 30
    step_ms: int = 20
    channels: int = 40
    low_hz: float = 125.0
    high_hz: float = 7500.0
    smoothing_bits: int = 10
    even_smoothing: float = 0.025
    odd_smoothing: float = 0.06
    min_signal_remaining: float = 0.05
    has_pcan: bool = True
    strength: float = 0.95
    offset: float = 80.0
    gain_bits: int = 21
    has_log: bool = True
    scale_shift: int = 6


class MicroFrontend:
    """Features of a stream of 16-bit samples, one row a step."""

    def __init__(self, config: MicroFrontendConfig | None = None) -> None:
        """Raises InvalidArgument for settings out of range, and bands that fit no spectrum."""
        config = MicroFrontendConfig() if config is None else config
        check_kind("config", config, MicroFrontendConfig, "a MicroFrontendConfig")
        _check(config)
        self.config = config
        size = config.window_ms * config.rate_hz // 1000
        step = config.step_ms * config.rate_hz // 1000
        if not 4 <= size <= _LARGEST_WINDOW or step < 1:
            raise InvalidArgument(
                f"windows of {size} samples every {step}: they need 4 to {_LARGEST_WINDOW} "
                "samples, and steps at least 1"
            )
        self._framer = Framer(size, step, dtype=np.int16)
        self._window = _window(size)
        self._fft_size = 1 << max(size - 1, 1).bit_length()
        self._filters = _filters(config, self._fft_size)
        self._correction = self._fft_size.bit_length() - 1 - _FILTER_BITS // 2
        check_whole("smoothing_bits", config.smoothing_bits, max(self._correction, 0), 31)
        check_whole("gain_bits", config.gain_bits, self._correction + _SNR_BITS, 31)
        even, odd, least = (
            int(np.float32(share) * (1 << _NOISE_BITS))
            for share in (config.even_smoothing, config.odd_smoothing, config.min_signal_remaining)
        )
        self._smoothing = np.where(np.arange(config.channels) % 2 == 0, even, odd).astype(np.uint64)
        self._least = np.uint64(least)
        self._gains = _gain_table(config, config.smoothing_bits - self._correction)
        self._noise = np.zeros(config.channels, np.uint64)

    def reset(self) -> None:
        """Begin anew: no samples kept, no noise known."""
        self._framer.reset()
        self._noise[:] = 0

    def feed(self, samples: Any) -> Array:
        """Features of the windows that are full now, uint16 [n, channels].

        Samples are int16, or floats from -1 to 1. Raises InvalidArgument for what is no row of
        samples.
        """
        windows = self._framer.feed(_of_16_bits(samples))
        if not len(windows):
            return np.zeros((0, self.config.channels), np.uint16)
        return np.stack([self._row(window) for window in windows])

    def _row(self, window: Array) -> Array:
        weighted = (window.astype(np.int32) * self._window) >> _WINDOW_BITS
        # The library counts the bits of the largest as int16, where -32768 stays negative.
        largest = int(np.abs(weighted.astype(np.int16)).max())
        shift = 15 - max(largest, 0).bit_length()
        padded = np.zeros(self._fft_size, np.int16)
        padded[: len(weighted)] = (weighted << shift).astype(np.int16)
        real, imaginary = fixed_rfft(padded)
        energies = (real * real + imaginary * imaginary).astype(np.uint32).astype(np.int64)
        signal = _roots(self._filters @ energies) >> np.uint64(shift)
        signal = self._without_noise(signal)
        if self.config.has_pcan:
            signal = self._evened(signal)
        return self._logarithms(signal) if self.config.has_log else _limited(signal)

    def _without_noise(self, signal: Array) -> Array:
        bits, one = np.uint64(self.config.smoothing_bits), np.uint64(1 << _NOISE_BITS)
        scaled = (signal << bits) & _WORD
        share = self._smoothing
        estimate = ((scaled * share + self._noise * (one - share)) >> np.uint64(14)) & _WORD
        self._noise = estimate
        least = (signal * self._least) >> np.uint64(_NOISE_BITS)
        left: Array = np.maximum((scaled - np.minimum(estimate, scaled)) >> bits, least)
        return left

    def _evened(self, signal: Array) -> Array:
        gains = _looked_up(self._gains, self._noise)
        shift = self.config.gain_bits - self._correction - _SNR_BITS
        ratio = ((signal * gains) >> np.uint64(shift)) & _WORD
        small = ((ratio * ratio) & _WORD) >> np.uint64(2 + 2 * _SNR_BITS - _PCAN_BITS)
        large = (ratio >> np.uint64(_SNR_BITS - _PCAN_BITS)) - np.uint64(1 << _PCAN_BITS)
        return np.where(ratio < 2 << _SNR_BITS, small, large)

    def _logarithms(self, signal: Array) -> Array:
        shift = self._correction
        values = signal >> np.uint64(-shift) if shift < 0 else (signal << np.uint64(shift)) & _WORD
        logs = [_log(int(value), self.config.scale_shift) if value > 1 else 0 for value in values]
        return _limited(np.array(logs, np.uint64))


def micro_features(rows: Array) -> Array:
    """Features as the int8 input of `micro_speech` has them: 256 steps from 0 to 26 times 25.6.

    Raises InvalidArgument for what are no finite numbers.
    """
    span = 666
    rows = numbers("features", rows)
    if not np.isfinite(rows).all():
        raise InvalidArgument("features are finite numbers, these have NaN or infinite ones")
    scaled = (np.clip(rows, 0, 2 * span).astype(np.int32) * 256 + span // 2) // span - 128
    return np.clip(scaled, -128, 127).astype(np.int8)


_WORD = np.uint64(0xFFFFFFFF)


def _check(config: MicroFrontendConfig) -> None:
    """Raise InvalidArgument for settings that its integers cannot follow."""
    check_whole("rate_hz", config.rate_hz, 1, 1_000_000)
    check_whole("window_ms", config.window_ms, 1, 60_000)
    check_whole("step_ms", config.step_ms, 1, 60_000)
    check_whole("channels", config.channels, 1, _LARGEST_WINDOW)
    check_number("low_hz", config.low_hz, 0)
    check_number("high_hz", config.high_hz, config.low_hz)
    check_share("even_smoothing", config.even_smoothing)
    check_share("odd_smoothing", config.odd_smoothing)
    check_share("min_signal_remaining", config.min_signal_remaining)
    check_number("strength", config.strength, 0, 10)
    check_positive("offset", config.offset)
    check_whole("scale_shift", config.scale_shift, 0, 16)


def _of_16_bits(samples: Any) -> Array:
    array = np.asarray(samples)
    if array.dtype.kind == "f":
        scaled = np.clip(samples_of(array, np.float64), -1, 1) * 32_768
        rounded: Array = np.clip(np.rint(scaled), -32_768, 32_767).astype(np.int16)
        return rounded
    if array.dtype not in (np.int16, np.int8, np.uint8):
        raise InvalidArgument(f"samples are int16, or floats from -1 to 1, not {array.dtype}")
    return samples_of(array, np.int16)


def _limited(values: Array) -> Array:
    return np.minimum(values, np.uint64(0xFFFF)).astype(np.uint16)


def _window(size: int) -> Array:
    step = np.float32(2 * np.pi / np.float32(size))
    wave = (0.5 - 0.5 * np.cos(float(step) * (np.arange(size) + 0.5))).astype(np.float32)
    weights: Array = np.floor(wave * np.float32(1 << _WINDOW_BITS) + 0.5).astype(np.int32)
    return weights


def _mel(hertz: Array | np.floating[Any]) -> Array:
    # The library has float32 here, and the logarithm in float64.
    ratio = np.asarray(hertz, np.float32).astype(np.float64) / 700.0
    mels: Array = (1127.0 * np.log1p(ratio)).astype(np.float32)
    return mels


def _filters(config: MicroFrontendConfig, fft_size: int) -> Array:
    """Weights of 12 bits, int64 [channels, fft_size / 2 + 1]: rising, then falling."""
    count = config.channels + 1
    low, high = _mel(np.float32(config.low_hz)), _mel(np.float32(config.high_hz))
    spacing = np.float32((high - low) / np.float32(count))
    centers = low + spacing * np.arange(1, count + 1, dtype=np.float32)
    hz_per_bin = np.float32(0.5 * config.rate_hz / np.float32(fft_size // 2))
    bins = fft_size // 2 + 1
    mels = _mel(np.arange(bins, dtype=np.float32) * hz_per_bin)
    first = int(1.5 + config.low_hz / float(hz_per_bin))
    weights = np.zeros((count + 1, bins), np.int64)
    band = np.searchsorted(centers, mels, side="left")
    edges = np.concatenate([[low], centers])
    for number in range(first, bins):
        own = int(band[number])
        if own >= count:
            break
        share = np.float32(
            np.float32(centers[own] - mels[number]) / np.float32(centers[own] - edges[own])
        )
        # A bin falls in the band that ends here, and rises in the next.
        weights[own, number] = int(np.floor(float(share) * (1 << _FILTER_BITS) + 0.5))
        weights[own + 1, number] = int(np.floor((1.0 - float(share)) * (1 << _FILTER_BITS) + 0.5))
    else:
        raise InvalidArgument(
            f"bands up to {config.high_hz} Hz need a spectrum that goes further than "
            f"{config.rate_hz / 2} Hz"
        )
    return weights[1:count]


def _roots(values: Array) -> Array:
    """Rounded square roots, uint64, of int64 values; those of 32 bits end at 65535."""
    whole = values.astype(np.uint64)
    roots = np.floor(np.sqrt(whole.astype(np.float64))).astype(np.uint64)
    roots -= roots * roots > whole
    roots += (roots + np.uint64(1)) ** np.uint64(2) <= whole
    is_small = whole <= _WORD
    roots += (whole - roots * roots > roots) & ~(is_small & (roots >= 0xFFFF))
    return roots


def _gain_table(config: MicroFrontendConfig, input_bits: int) -> Array:
    """Quadratic pieces of the gain for each power of 2, int64 [33, 3]; rows 0, 1 are values."""
    table = np.zeros((_WIDEST + 1, 3), np.int64)
    table[0, 0], table[1, 0] = (_gain(config, input_bits, x) for x in (0, 1))
    for interval in range(2, _WIDEST + 1):
        begin = 1 << (interval - 1)
        end = 2 * begin - 1 if interval == _WIDEST else 2 * begin
        y0, y1, y2 = (_gain(config, input_bits, x) for x in (begin, begin + (begin >> 1), end))
        slope = 4 * (y1 - y0) - (y2 - y0)
        table[interval] = y0, slope, (y2 - y0) - slope
    return table


def _gain(config: MicroFrontendConfig, input_bits: int, x: int) -> int:
    value = np.float32(x) / np.float32(1 << input_bits) + np.float32(config.offset)
    gain = np.float32(1 << config.gain_bits) * np.float32(value ** np.float32(-config.strength))
    return 0x7FFF if gain > 0x7FFF else int(gain + np.float32(0.5))


def _looked_up(table: Array, values: Array) -> Array:
    gains = [_gain_at(table, int(value)) for value in values]
    return np.array(gains, np.int64).astype(np.uint64)


def _gain_at(table: Array, x: int) -> int:
    if x < 2:
        return int(table[x, 0])
    interval = x.bit_length()
    y0, slope, curve = (int(value) for value in table[interval])
    if x == 2:
        return y0
    fraction = (x << (11 - interval) if interval < 11 else x >> (interval - 11)) & 0x3FF
    rise = ((curve * fraction) >> 5) + (slope << 5)
    return ((rise * fraction + (1 << 14)) >> 15) + y0


def _log(value: int, scale_shift: int) -> int:
    """Returns the natural logarithm times 2 ** scale_shift, by straight pieces of log2."""
    whole = value.bit_length() - 1
    fraction = value - (1 << whole)
    shift = _LOG_BITS - whole
    fraction = fraction << shift if shift > 0 else fraction >> -shift
    segment = fraction >> (_LOG_BITS - _SEGMENT_BITS)
    before, after = _BENDS[segment], _BENDS[segment + 1]
    place = fraction - (segment << (_LOG_BITS - _SEGMENT_BITS))
    # The library shifts by all 16 bits here, which leaves a 128th of the slope.
    fraction += before + (((after - before) * place) >> _LOG_BITS)
    half = 1 << (_LOG_BITS - 1)
    natural = (_LN_2 * ((whole << _LOG_BITS) + fraction) + half) >> _LOG_BITS
    return ((natural << scale_shift) + half) >> _LOG_BITS


def _bends() -> list[int]:
    """Returns how far log2(1 + x) lies above x, in 16 bits, at the ends of 128 pieces."""
    x = np.arange((1 << _SEGMENT_BITS) + 1) / (1 << _SEGMENT_BITS)
    return [int(v) for v in np.rint((np.log2(1 + x) - x) * (1 << _LOG_BITS))] + [0]


_BENDS = _bends()
