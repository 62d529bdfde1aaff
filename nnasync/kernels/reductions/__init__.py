"""Operations along axes: sums, extremes, norms, orders."""

from __future__ import annotations

__all__: list[str] = []
