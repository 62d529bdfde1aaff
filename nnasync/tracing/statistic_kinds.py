"""What the fields of statistics are, so that metrics can be made of any of them.

A field that counts from the start is a `Count`; any other number is as it is now.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

COUNTER = "counter"
LABEL = "label"

Count = Annotated[int, msgspec.Meta(extra={COUNTER: True})]
"""A number that only grows: events since the start, or, ending in _ns, the time they took."""


def labeled(label: str, *values: str) -> msgspec.Meta:
    """Annotation of a tuple of numbers: one for each value of a label."""
    return msgspec.Meta(extra={LABEL: (label, values)})
