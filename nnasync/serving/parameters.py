"""Parameters of requests: those that the protocol knows, checked, and those of the user."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nnasync.serving.messages import Parameter, RegionSlice
from nnasync.serving.problems import invalid

_MOST = 2**63 - 1
_FLAGS = ("sequence_start", "sequence_end", "binary_data_output")
_RESERVED = "triton_"
_KNOWN_RESERVED = ("triton_enable_empty_final_response",)


def split_parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters of a request as fields of `InferRequest`.

    Raises ServingError for values of other types, and names that are reserved.
    """
    fields: dict[str, Any] = {}
    own: dict[str, Parameter] = {}
    for name, value in given.items():
        if name in _FLAGS:
            fields[name] = _flag(name, value)
        elif name == "priority":
            fields[name] = whole(name, value)
        elif name == "timeout":
            fields["timeout_us"] = whole(name, value)
        elif name == "sequence_id":
            fields[name] = value if isinstance(value, str) else whole(name, value, 2**64 - 1)
        elif name.startswith(_RESERVED) and name not in _KNOWN_RESERVED:
            raise invalid(f"parameter '{name}': names that begin with '{_RESERVED}' are reserved")
        elif isinstance(value, (bool, int, float, str)):
            own[name] = value
        else:
            raise invalid(f"parameter '{name}' must be a boolean, a number or a string")
    if own:
        fields["parameters"] = own
    return fields


def region_of(given: Mapping[str, Any]) -> RegionSlice | None:
    """Returns the piece of shared memory that a tensor's parameters name.

    Returns None if they name none.
    """
    name = given.get("shared_memory_region")
    if name is None:
        return None
    if not isinstance(name, str):
        raise invalid("parameter 'shared_memory_region' must be a string")
    if "shared_memory_byte_size" not in given:
        raise invalid("parameter 'shared_memory_region' needs 'shared_memory_byte_size' beside it")
    return RegionSlice(
        name,
        whole("shared_memory_byte_size", given["shared_memory_byte_size"]),
        whole("shared_memory_offset", given.get("shared_memory_offset", 0)),
    )


def whole(name: str, value: object, most: int = _MOST) -> int:
    """Returns a parameter that is a whole number from 0 to `most`.

    Raises ServingError for others.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise invalid(f"parameter '{name}' must be an unsigned integer, up to {most}")
    return value


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise invalid(f"parameter '{name}' must be a boolean")
    return value
