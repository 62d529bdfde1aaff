"""Where ALSA finds its configuration, when the library is not the system's own.

PyAV's wheels carry a libasound whose compiled-in path exists on the machine that built it only, so
that no device can be opened. `ALSA_CONFIG_PATH` is what libasound looks at first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, MutableMapping

__all__ = ["CONFIGURATION", "find_configuration"]

CONFIGURATION = "/usr/share/alsa/alsa.conf"
"""Where distributions keep it."""


def find_configuration(
    environment: MutableMapping[str, str] = os.environ,
    exists: Callable[[str], bool] = os.path.isfile,
) -> None:
    """Set ALSA_CONFIG_PATH where it is not set and the system has the file; else change nothing."""
    if "ALSA_CONFIG_PATH" not in environment and exists(CONFIGURATION):
        environment["ALSA_CONFIG_PATH"] = CONFIGURATION
