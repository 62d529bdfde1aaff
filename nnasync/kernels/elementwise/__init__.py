"""Operations on single elements and on pairs of them."""

from __future__ import annotations

__all__: list[str] = []
