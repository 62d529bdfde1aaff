"""Data of the suites that no file of others gives: a network that hears phones, and sentences.

The network has the shape of the acoustic models of telephones: 8 frames of 40 log mel energies in a
row, 10 ms apart, are the input [1, 320] of a step, steps are 20 ms apart, and the output [1, 42]
scores 41 phones of English and silence. Sentences were spoken by voices that training left out.
`scripts/train_networks.py` makes both.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from nnasync.errors import ModelError
from nnasync.hal import Array

__all__ = ["BANDS", "FRAMES", "PHONES", "STEP_FRAMES", "PhoneSequence", "read_phones"]

PHONES = (
    *("_", "i:", "I", "E", "a", "A:", "O:", "U", "u:", "V", "@", "3", "eI", "aI", "OI", "aU", "oU"),
    *("p", "b", "t", "t#", "d", "k", "g", "f", "v", "T", "D", "s", "z", "S", "Z", "h", "m", "n"),
    *("N", "l", "r", "j", "w", "tS", "dZ"),
)
"""What the scores stand for, in the notation of espeak-ng; `_` is silence, `t#` a flap."""

BANDS, FRAMES, STEP_FRAMES = 40, 8, 2
NETWORK = Path(__file__).with_name("phones.nnm")
SEQUENCES = Path(__file__).with_name("phones.npz")


class PhoneSequence(msgspec.Struct, frozen=True):
    """One sentence: `inputs` float32 [steps, 320], and phones as indexes of `PHONES`, int8 [steps].

    `golden` is what the network says of each step where it runs in 32-bit floats on the reference,
    `spoken` what was spoken in the middle of the step's frames.
    """

    inputs: Array
    golden: Array
    spoken: Array


def read_phones(path: Path = SEQUENCES) -> list[PhoneSequence]:
    """Read the sentences. Raises ModelError for a file that holds others, OSError without it."""
    with np.load(path, allow_pickle=False) as file:
        try:
            frames, hops = file["frames"], file["hops"]
            low, step = (float(value) for value in file["scale"])
            golden, spoken = file["golden"], file["spoken"]
        except (KeyError, ValueError) as error:
            raise ModelError(f"{path} holds no sentences: {error}") from error
    steps = (hops - FRAMES) // STEP_FRAMES + 1
    if (
        frames.shape != (int(hops.sum()), BANDS)
        or not golden.shape == spoken.shape == (int(steps.sum()),)
        or (hops < FRAMES).any()
    ):
        raise ModelError(f"{path}: frames, steps and phones do not belong together")
    result, at, begin = [], 0, 0
    for hop_count, count in zip(hops.tolist(), steps.tolist(), strict=True):
        log_mel = frames[at : at + hop_count].astype(np.float32) * np.float32(step) + low
        whole = slice(begin, begin + count)
        result.append(PhoneSequence(stacked(log_mel), golden[whole], spoken[whole]))
        at, begin = at + hop_count, begin + count
    return result


def stacked(log_mel: Array) -> Array:
    """The inputs float32 [steps, 320] of log mel energies float32 [hops, 40]."""
    windows = np.lib.stride_tricks.sliding_window_view(log_mel, FRAMES, axis=0)[::STEP_FRAMES]
    return np.ascontiguousarray(windows.transpose(0, 2, 1)).reshape(len(windows), -1)
