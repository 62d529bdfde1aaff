"""Devices of HAL 1.0, 1.1 and 1.2 beside those of 1.3, and what is checked when one is found.

`interfaces` says what a device of an older version has. `admit` examines a device of any version
and returns one of HAL 1.3 that keeps its first answers: `Versioned` for the older ones. What those
are given is converted down (`model_slices`, `validation.older_model`), what they answer is held to
the rules of HAL 1.3 (`versioned_results`); fences, deadlines, cancelling and bursts are made of
plain executions (`errands`, `prepared`). What an older version has no word for is lost without an
error: preference, priority, cache files, timing, permission to relax.
"""

from __future__ import annotations

from nnasync._core.device_helpers import Answers
from nnasync._core.versions.answers import examine
from nnasync._core.versions.device import Versioned
from nnasync._core.versions.discovery import Discovered, admit
from nnasync._core.versions.errands import Errand, Errands
from nnasync._core.versions.interfaces import OlderDevice
from nnasync._core.versions.model_slices import Slice, view_of

__all__ = [
    "Answers",
    "Discovered",
    "Errand",
    "Errands",
    "OlderDevice",
    "Slice",
    "Versioned",
    "admit",
    "examine",
    "view_of",
]
