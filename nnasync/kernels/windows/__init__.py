"""Operations whose windows slide over images, and the dense layer, which is one window."""

from __future__ import annotations

__all__: list[str] = []
