"""Where ALSA finds its configuration, when the library is not the system's own.

PyAV's wheels carry a libasound whose compiled-in folder exists on the machine that built it only,
so that no device can be opened. `ALSA_CONFIG_PATH` names the file that libasound begins with, and
`ALSA_CONFIG_DIR` the folder of what that includes, without which `default` is not known.
"""

from __future__ import annotations

import os
from collections.abc import Callable, MutableMapping

FOLDER = "/usr/share/alsa"
"""Where distributions keep it."""


def find_configuration(
    environment: MutableMapping[str, str] = os.environ,
    exists: Callable[[str], bool] = os.path.isfile,
) -> None:
    """Sets both variables where they are not set and the system has the files."""
    if exists(f"{FOLDER}/alsa.conf"):
        environment.setdefault("ALSA_CONFIG_DIR", FOLDER)
        environment.setdefault("ALSA_CONFIG_PATH", f"{FOLDER}/alsa.conf")
