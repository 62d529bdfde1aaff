"""What stands between sound and networks: windows, mel features, voice activity."""

from __future__ import annotations

from nnasync.audio.activity import EnergyActivity, SileroActivity, SpeechEvent, SpeechSegments
from nnasync.audio.fixed_fft import fixed_rfft
from nnasync.audio.frames import Framer, OverlapAdd, hann
from nnasync.audio.log_mel import LogMel, whisper_features, whisper_scaled
from nnasync.audio.mel import MelScale, hertz_to_mel, mel_filters, mel_to_hertz, mfcc
from nnasync.audio.micro_frontend import MicroFrontend, MicroFrontendConfig, micro_features

__all__ = [
    "EnergyActivity",
    "Framer",
    "LogMel",
    "MelScale",
    "MicroFrontend",
    "MicroFrontendConfig",
    "OverlapAdd",
    "SileroActivity",
    "SpeechEvent",
    "SpeechSegments",
    "fixed_rfft",
    "hann",
    "hertz_to_mel",
    "mel_filters",
    "mel_to_hertz",
    "mfcc",
    "micro_features",
    "whisper_features",
    "whisper_scaled",
]
