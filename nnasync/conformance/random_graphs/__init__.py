"""Random graphs: pseudo-random legal models, run on any device and compared with the reference."""

from __future__ import annotations
