"""Letters as masks, for text in pictures: ASCII in a matrix of 5 by 7 dots.

A letter is seven characters below, one a row from the top, each a number in base 32 whose five bits
are the dots from left to right. What is not ASCII is shown as a question mark.
"""

from __future__ import annotations

import functools

import numpy as np

from nnasync.hal import Array
from nnasync.vision.resizing import resized

_COLUMNS, _ROWS = 5, 7
_FIRST = 32
_LETTERS = (
    "0000000 4444404 AAA0000 AAVAVAA 4FKE5U4 OP248J3 CIK8LID 4480000 2488842 8422248 04LEL40 "
    "044V440 0000C48 000V000 00000CC 01248G0 EHJLPHE 4C4444E EH1248V V2421HE 26AIV22 VGU11HE "
    "68GUHHE V124888 EHHEHHE EHHF12C 0CC0CC0 0CC0C48 248G842 00V0V00 8421248 EH12404 EH1DLLE "
    "EHHVHHH UHHUHHU EHGGGHE SIHHHIS VGGUGGV VGGUGGG EHGNHHF HHHVHHH E44444E 72222IC HIKOKIH "
    "GGGGGGV HRLLHHH HHPLJHH EHHHHHE UHHUGGG EHHHLID UHHUKIH FGGE11U V444444 HHHHHHE HHHHHA4 "
    "HHHLLLA HHA4AHH HHHA444 V1248GV E88888E 0G84210 E22222E 4AH0000 000000V 8420000 00E1FHF "
    "GGMPHHU 00EGGHE 11DJHHF 00EHVGE 698S888 0FHHF1E GGMPHHH 40C444E 20622IC GGIKOKI C44444E "
    "00QLLHH 00MPHHH 00EHHHE 00UHUGG 00DJF11 00MPGGG 00EGE1U 88S8896 00HHHJD 00HHHA4 00HHLLA "
    "00HA4AH 00HHF1E 00V248V 2448442 4444444 8442448 008L200"
)


_DOTS = tuple(_LETTERS.split(" "))


@functools.lru_cache(maxsize=512)
def text_mask(text: str, height: int) -> Array:
    """Returns how much of each pixel letters cover: float32 [height, width], 0 to 1, read only."""
    dots = np.zeros((_ROWS + 2, (_COLUMNS + 1) * len(text) + 1), np.float32)
    for number, letter in enumerate(text):
        left = 1 + number * (_COLUMNS + 1)
        dots[1 : 1 + _ROWS, left : left + _COLUMNS] = _letter(letter)
    width = max(round(dots.shape[1] * height / dots.shape[0]), 1)
    mask = resized(dots, (height, width))
    if height > dots.shape[0]:
        # Between two dots the blend is straight; a steeper one has sharp edges and round corners.
        mask = np.clip((mask - 0.5) * (height / dots.shape[0]) + 0.5, 0, 1)
    mask.flags.writeable = False
    return mask


def _letter(letter: str) -> Array:
    code = ord(letter) - _FIRST
    rows = _DOTS[code if 0 <= code < len(_DOTS) else ord("?") - _FIRST]
    bits = 1 << np.arange(_COLUMNS)[::-1]
    return np.array([[bool(int(row, 32) & bit) for bit in bits] for row in rows], np.float32)
