"""Sentences from espeak-ng with the phone of every moment, and their features for a network.

The library of espeak-ng says when each phone begins, so the truth needs no alignment. Its symbols
(X-SAMPA, more or less) are 45 and more, of which some are variants; they are folded into 41 phones,
and silence is the 42nd. Sentences are random words in random order, so that nothing but the sounds
tells what comes next. Variants of the voice are split as those of `training.speech`.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nnasync.suites.data import FRAMES, PHONES, STEP_FRAMES
from training import features, speech, tracks

__all__ = ["VOCABULARY", "Sentence", "sentence"]

_TEXT = """
    about above across after again air all almost along always among animal answer any apple
    around ask autumn away baby back bag ball bath beach bear beautiful because bed before begin
    behind bell below beside between bicycle big bird black blue boat body book both box boy bread
    break bridge bring brother build bus butter buy call camera candle car carry catch chair change
    cheese child church city clean clear climb clock close cloud coat coffee cold color come cook
    corner could country cow cup dance dark daughter day deep dinner doctor dog door dream dress
    drink drive dry each early earth east easy eat egg eight empty evening every eye face fall
    family far farm father feather field fifty find finger fire first fish five floor flower fly
    follow food foot forest four fresh friend from fruit full garden ginger girl give glass go good
    grass great green ground grow half hand happy hat have head hear heavy help her here hill
    history hold home horse hot hour house how hundred ice idea island job join journey joy judge
    juice jump just keep key kitchen knife know lake language laugh leaf learn leave left leg letter
    light listen little long look lunch machine make many market meadow measure meet milk minute
    mirror money month moon more morning mother mountain mouse mouth move music name near never new
    next night nine noise north nose nothing now number ocean of office often old one open orange
    other our out over page paper park path pen people picture place plant play please point pool
    poor pure quick quiet rain read red remember rice right river road rock roof room rose round run
    salt sand say school sea season seven shadow share she sheep ship shoe short shoulder show sing
    sister six sky sleep slow small smile smooth snow soap soft some son song soon south spoon
    spring star station stay stone story street strong sugar summer sun sure sweet swim table take
    tall teacher television ten thank that the then there thing think third this thousand three
    through thumb time today together tomorrow tooth top touch tour town toy train travel treasure
    tree two under until up usual valley vegetable very vision visit voice wait walk wall warm wash
    watch water way wear weather week west what wheel where which while white why wide wind window
    winter with wolf woman wood word work world worm write yellow yes yesterday you young your zebra
    zero zoo
"""
VOCABULARY = tuple(_TEXT.split())
_FOLDED = {
    "i": "i:", "i@": "i:", "i@3": "i:", "I2": "I", "I#": "I", "e@": "E", "aa": "a", "0": "A:",
    "A@": "A:", "O2": "O:", "O@": "O:", "o@": "O:", "U@": "U", "a#": "@", "@2": "@", "@-": "@",
    "3:": "3", "aI3": "aI", "aI@": "aI", "t2": "t", "@L": "l", "r-": "r",
}  # fmt: skip
_SILENT, _RETRIEVE, _PHONES, _PHONE, _RATE, _PITCH = "_", 1, 1, 7, 1, 3
_KEPT_BEFORE = "; "
"""Marks that belong to the phone before them."""

Floats = NDArray[np.float32]


class Sentence(NamedTuple):
    """Log mel float32 [hops, 40], and the phone int8 in the middle of each step's frames."""

    log_mel: Floats
    phones: NDArray[np.int8]


class _Symbol(ctypes.Union):
    _fields_ = (("number", ctypes.c_int), ("string", ctypes.c_char * 8))


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", _Symbol),
    )


class _Speaker:
    """The library, which has one voice at a time and calls back with what it has spoken."""

    def __init__(self) -> None:
        try:
            self._library: Any = ctypes.CDLL("libespeak-ng.so.1")
        except OSError as error:
            raise RuntimeError(
                "libespeak-ng is not installed; on Debian: apt-get install libespeak-ng1"
            ) from error
        self.rate = int(self._library.espeak_Initialize(_RETRIEVE, 500, None, _PHONES))
        self._waves: list[NDArray[np.int16]] = []
        self._begins: list[tuple[int, str]] = []
        kind = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
        )
        self._callback = kind(self._hear)
        self._library.espeak_SetSynthCallback(self._callback)

    def _hear(self, wave: Any, count: int, events: Any) -> int:
        if wave and count > 0:
            self._waves.append(np.ctypeslib.as_array(wave, (count,)).copy())
        index = 0
        while events[index].type:
            if events[index].type == _PHONE:
                symbol = bytes(events[index].id.string).decode()
                self._begins.append((events[index].sample, symbol))
            index += 1
        return 0

    def speak(
        self, text: str, voice: str, speed: int, pitch: int
    ) -> tuple[Floats, list[tuple[int, str]]]:
        """The wave, and at which sample which phone begins."""
        self._waves.clear()
        self._begins.clear()
        if self._library.espeak_SetVoiceByName(voice.encode()):
            raise RuntimeError(f"espeak-ng has no voice {voice}")
        self._library.espeak_SetParameter(_RATE, speed, 0)
        self._library.espeak_SetParameter(_PITCH, pitch, 0)
        data = text.encode()
        self._library.espeak_Synth(data, len(data) + 1, 0, 0, 0, 1, None, None)
        self._library.espeak_Synchronize()
        return np.concatenate(self._waves).astype(np.float32) / 32768, list(self._begins)


@functools.cache
def _speaker() -> _Speaker:
    return _Speaker()


def _phone(symbol: str) -> int:
    if symbol.startswith(_SILENT) or not symbol:
        return PHONES.index(_SILENT)
    return PHONES.index(_FOLDED.get(symbol, symbol))


def _spoken(
    voices: speech.Voices, words: int, rng: np.random.Generator
) -> tuple[Floats, NDArray[np.int8]]:
    """A sentence at 16 kHz between silences, and the phone of each of its samples."""
    chosen = [VOCABULARY[int(i)] for i in rng.integers(len(VOCABULARY), size=words)]
    variant = voices.variants[int(rng.integers(len(voices.variants)))]
    speaker = _speaker()
    wave, begins = speaker.speak(
        " ".join(chosen), f"en-us+{variant}", int(rng.integers(120, 190)), int(rng.integers(25, 75))
    )
    ratio = speech.RATE / speaker.rate * rng.uniform(0.95, 1.06)
    samples = speech.resample(wave, ratio)
    truth = np.full(len(samples), PHONES.index(_SILENT), np.int8)
    for at, symbol in begins:
        if symbol.strip() and symbol not in _KEPT_BEFORE:
            truth[int(at * ratio) :] = _phone(symbol)
    before, after = (int(rng.uniform(0.05, 0.25) * speech.RATE) for _ in range(2))
    samples = np.pad(samples / max(float(np.abs(samples).max()), 1e-3), (before, after))
    return samples, np.pad(truth, (before, after), constant_values=PHONES.index(_SILENT))


def sentence(voices: speech.Voices, words: int, seed: list[int]) -> Sentence:
    """Some words in a voice, loud or not, with noise 15 to 35 dB below."""
    rng = np.random.default_rng([*seed, 0x9403E])
    samples, truth = _spoken(voices, words, rng)
    level = tracks.SPEECH_LEVEL * 10 ** rng.uniform(-0.4, 0.2)
    power = float(np.sqrt(np.mean(samples**2)))
    noisy = samples / power * level
    noisy = noisy + tracks.noise(len(samples), rng) * level * 10 ** (-rng.uniform(15, 35) / 20)
    whole = (np.clip(noisy, -1, 1) * 32767).astype(np.int16)
    log_mel = features.log_mel(whole)
    steps = (len(log_mel) - FRAMES) // STEP_FRAMES + 1
    middle = (np.arange(steps) * STEP_FRAMES + FRAMES // 2) * features.HOP - features.HOP // 2
    return Sentence(log_mel, truth[np.minimum(middle, len(truth) - 1)])
