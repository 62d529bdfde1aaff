"""Windows, features and voice activity of a second of sound."""

from __future__ import annotations

from typing import Any

import numpy as np

import nnasync as nn
from nnasync import audio
from nnasync.audio import MelScale, SpeechEvent

RATE_HZ = 16000


def sound() -> Any:
    """Half a second of faint noise, and as much of a loud tone."""
    random = np.random.default_rng(0)
    faint = random.normal(0, 1e-4, RATE_HZ // 2)
    tone = 0.5 * np.sin(np.arange(RATE_HZ // 2) * 2 * np.pi * 440 / RATE_HZ)
    return np.concatenate([faint, tone]).astype(np.float32)


def features(samples: Any) -> None:
    rows = audio.LogMel(RATE_HZ, bands=40).feed(samples)
    print("cepstral coefficients", audio.mfcc(np.array(rows), 13).shape)
    print("Whisper", audio.whisper_features(samples, seconds=1).shape)
    print("a row of a stream for Whisper", audio.whisper_scaled(np.array(rows)).max() <= 4)
    scale: MelScale = "htk"
    filters = audio.mel_filters(RATE_HZ, 512, 40, scale=scale)
    edges = audio.mel_to_hertz(np.linspace(0, audio.hertz_to_mel(8000, scale), 42), scale)
    print("filters", filters.shape, "up to", round(float(edges[-1])))
    front = audio.MicroFrontend(audio.MicroFrontendConfig(channels=32))
    print("micro front end", len(front.feed(samples)))
    real, _ = audio.fixed_rfft((samples[-512:] * 32767).astype(np.int16))
    print("the tone is in bin", int(np.abs(real).argmax()))


def windows(samples: Any) -> None:
    frames = audio.Framer(512, 256).feed(samples)
    print("windows", len(frames), (frames[0] * audio.hann(512)).shape)


def speech(samples: Any) -> None:
    activity, segments = audio.EnergyActivity(), audio.SpeechSegments()
    for start in range(0, len(samples), 160):
        probability = activity.feed(samples[start : start + 160])
        event: SpeechEvent | None = segments.feed(probability, start * 10**9 // RATE_HZ)
        if event is not None:
            print(event.kind, event.at_ns / 1e9)


async def with_a_network(net: nn.Net, samples: Any) -> float:
    """The same by silero-vad, with a file of yours."""
    activity = audio.SileroActivity(net)
    return float(await activity(samples[:512]))


def main() -> None:
    samples = sound()
    features(samples)
    windows(samples)
    speech(samples)


if __name__ == "__main__":
    main()
