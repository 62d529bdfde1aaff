"""Log mel energies of sound while it arrives, as Whisper and most networks since have them.

Each window is weighted by a raised cosine, its power spectrum is summed by mel filters, and the
logarithm of that is a row. With `centered`, row t belongs to the samples around t hops: the sound
is continued as if reflected at both ends. Pieces of any length give the same rows as the whole.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np

from nnasync._core.arguments import check_choice, check_number, check_positive, check_whole, numbers
from nnasync.audio.frames import Framer, hann, samples_of
from nnasync.audio.mel import MelScale, mel_filters
from nnasync.errors import InvalidArgument
from nnasync.hal import Array

Logarithm: TypeAlias = Literal["log10", "ln"]

_LONGEST_S = 3600


class LogMel:
    """Rows of log mel energies, one every `hop` samples; it keeps what later rows need."""

    def __init__(
        self,
        rate_hz: int = 16_000,
        *,
        window: int = 400,
        hop: int = 160,
        bands: int = 80,
        fft_size: int | None = None,
        low_hz: float = 0.0,
        high_hz: float | None = None,
        scale: MelScale = "slaney",
        unit_area: bool = True,
        centered: bool = True,
        logarithm: Logarithm = "log10",
        floor: float = 1e-10,
    ) -> None:
        """Sets up the spectrum; the defaults are Whisper's, before its scaling (`whisper_scaled`).

        `fft_size` is that of the window unless given; energies below `floor` count as that much.
        For the others see `mel_filters`. Raises InvalidArgument for what fits no spectrum.
        """
        self._framer = Framer(window, hop)
        size = window if fft_size is None else fft_size
        check_whole("fft_size", size, 1)
        if size < window:
            raise InvalidArgument(f"fft_size is at least the window, {window}, not {size}")
        check_positive("floor", floor)
        check_choice("logarithm", logarithm, ("log10", "ln"))
        self._window = hann(window).astype(np.float32)
        self._fft_size = size
        self._filters = mel_filters(
            rate_hz,
            size,
            bands,
            low_hz=low_hz,
            high_hz=high_hz,
            scale=scale,
            unit_area=unit_area,
        )
        self._log = np.log10 if logarithm == "log10" else np.log
        self._floor = np.float32(floor)
        self._margin = window // 2 if centered else 0
        self.bands = bands
        self.reset()

    def reset(self) -> None:
        """Begin anew, as after a gap."""
        self._framer.reset()
        self._first = np.zeros(0, np.float32)
        self._last = np.zeros(0, np.float32)
        self._has_begun = not self._margin
        self._count = self._rows = 0

    def feed(self, samples: Any) -> Array:
        """Rows that are complete, float32 [n, bands], of samples from -1 to 1 or of 16 bits.

        Raises InvalidArgument for what is no row of samples.
        """
        row = samples_of(samples, np.float32)
        if np.asarray(samples).dtype.kind in "iu":
            row = row / np.float32(32_768)
        self._count += len(row)
        if self._margin:
            self._last = np.concatenate([self._last, row])[-self._margin - 1 :]
        if not self._has_begun:
            row = self._first = np.concatenate([self._first, row])
            if len(row) <= self._margin:
                return np.zeros((0, self.bands), np.float32)
            row = np.concatenate([row[self._margin : 0 : -1], row])
            self._has_begun, self._first = True, self._first[:0]
        return self._of(self._framer.feed(row))

    def finish(self) -> Array:
        """Returns the rows that the end of the sound completes, and begins anew.

        In all there are as many rows as there were whole hops.

        Without `centered` there are none.
        """
        wanted = self._count // self._framer.hop - self._rows
        rows = np.zeros((0, self.bands), np.float32)
        if self._margin and wanted > 0:
            if not self._has_begun:
                raise InvalidArgument(
                    f"{self._count} samples are too few to be reflected around a window: at least "
                    f"{self._margin + 1} are needed"
                )
            rows = self._of(self._framer.feed(self._last[-2::-1]))[:wanted]
        self.reset()
        return rows

    def _of(self, windows: Array) -> Array:
        self._rows += len(windows)
        spectrum = np.fft.rfft(windows * self._window, self._fft_size)
        power = (spectrum.real**2 + spectrum.imag**2).astype(np.float32)
        energies = np.maximum(power @ self._filters.T, self._floor)
        rows: Array = self._log(energies)
        return rows


def whisper_scaled(log_mel: Array) -> Array:
    """Log10 mel energies as Whisper takes them: at least 8 below the loudest, (x + 4) / 4.

    What is loudest counts for the whole array, so give it what the network is to be given at once.
    Raises InvalidArgument for what are no numbers.
    """
    energies = numbers("log_mel", log_mel)
    loudest = energies.max() if energies.size else 0.0
    scaled: Array = (np.maximum(energies, loudest - 8.0) + 4.0) / 4.0
    return scaled.astype(np.float32)


def whisper_features(samples: Any, *, bands: int = 80, seconds: float | None = 30.0) -> Array:
    """Whisper's input, float32 [1, bands, frames], of 16 kHz samples.

    Silence is added, or samples are cut off, up to `seconds`; None leaves the length as it is.
    Raises InvalidArgument for what is no row of samples, and a length that is not 0 to an hour.
    """
    row = samples_of(samples, np.float32)
    if np.asarray(samples).dtype.kind in "iu":
        row = row / np.float32(32_768)
    if seconds is not None:
        check_number("seconds", seconds, 0, _LONGEST_S)
        length = round(seconds * 16_000)
        row = np.pad(row[:length], (0, max(length - len(row), 0)))
    front = LogMel(bands=bands)
    rows = np.concatenate([front.feed(row), front.finish()])
    return whisper_scaled(rows[: len(row) // 160]).T[None]
