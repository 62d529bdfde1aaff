"""Operations that move data: shapes, slices, joins, lookups."""

from __future__ import annotations

__all__: list[str] = []
