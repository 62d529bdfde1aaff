"""What importers and drivers share of foreign formats: types, states, and files kept whole."""

from __future__ import annotations

__all__: list[str] = []
