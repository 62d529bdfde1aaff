"""Operations on boxes and regions of interest."""

from __future__ import annotations

__all__: list[str] = []
