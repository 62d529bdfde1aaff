"""What importers and drivers share of foreign formats: tables of operators and types."""

from __future__ import annotations

__all__: list[str] = []
