"""Settings that clients read and change over the network: of traces, and of the log.

Nothing that a client names is ever a file here: traces are taken with `nnasync.tracing`, and the
log goes where the program sends it. So only how much is logged can be changed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from nnasync.serving.problems import ServingError, invalid

_LOGGER = logging.getLogger("nnasync")
_OFF = {
    "trace_level": ["OFF"],
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_file": "",
    "trace_mode": "triton",
}
_FLAGS = ("log_info", "log_warning", "log_error")


class TraceSettings:
    """Answers requests for settings of traces: none are taken, and that cannot be changed."""

    def changed(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the settings; raises ServingError for a change of any of them."""
        for name, value in changes.items():
            if name not in _OFF:
                raise invalid(f"'{name[:200]}' is not a trace setting")
            if value is not None and value != _OFF[name]:
                raise invalid(
                    f"'{name}' cannot be changed: this server takes no traces at the request of "
                    "clients"
                )
        return dict(_OFF)


class LogSettings:
    """Reads and changes how much of what nnasync does is logged."""

    def __init__(self, *, may_change: bool = True) -> None:
        """Allows clients to change the settings with `may_change`, else only to read them."""
        self._may_change = may_change
        self._told: dict[str, Any] = {
            "log_file": "",
            "log_info": True,
            "log_warning": True,
            "log_error": True,
            "log_verbose_level": 0,
            "log_format": "default",
        }

    def changed(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the settings after these changes; unknown settings are ignored, as by Triton.

        Raises ServingError for a file, a format, values of other types, and any change where none
        is allowed.
        """
        found = dict(self._told)
        for name, value in changes.items():
            if name not in found:
                continue
            is_flag = name in _FLAGS
            if value.__class__ is not type(found[name]):
                raise invalid(f"'{name}' must be {'a boolean' if is_flag else 'as it is shown'}")
            if name in ("log_file", "log_format") and value != found[name]:
                raise invalid(f"'{name}' cannot be changed by clients of this server")
            if name == "log_verbose_level" and not 0 <= value <= 10:
                raise invalid("'log_verbose_level' is from 0 to 10")
            found[name] = value
        if found == self._told:
            return found
        if not self._may_change:
            text = "the log is not changed by clients: this server has no --allow-settings"
            raise ServingError(HTTPStatus.FORBIDDEN, text)
        self._told = found
        _LOGGER.setLevel(_level(found))
        return dict(found)


def _level(told: Mapping[str, Any]) -> int:
    if told["log_verbose_level"]:
        return logging.DEBUG
    for name, level in zip(_FLAGS, (logging.INFO, logging.WARNING, logging.ERROR), strict=True):
        if told[name]:
            return level
    return logging.CRITICAL
