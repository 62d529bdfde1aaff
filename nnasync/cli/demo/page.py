"""The timeline as a page: one file without any other, to look through with mouse and keys."""

from __future__ import annotations

import importlib.resources

import msgspec

from nnasync.cli.demo.picture import COLOURS, LOST, RIGHT
from nnasync.cli.demo.timeline import Timeline

__all__ = ["html"]

_PLACE = "/*TIMELINE*/"


def html(timeline: Timeline) -> str:
    """The page; its template is timeline.html beside this module."""
    template = importlib.resources.files("nnasync.cli.demo").joinpath("timeline.html")
    colours = {str(int(priority)): colour for priority, colour in COLOURS.items()}
    data = {
        "timeline": timeline,
        "colours": {**colours, "lost": LOST, "right": RIGHT},
        "hits": {"audio": timeline.summary.audio_hits, "video": timeline.summary.video_hits},
    }
    encoded = msgspec.json.encode(data).decode().replace("</", "<\\/")
    return template.read_text(encoding="utf-8").replace(_PLACE, encoded)
