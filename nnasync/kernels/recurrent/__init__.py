"""Operations that carry a state from step to step."""

from __future__ import annotations

__all__: list[str] = []
