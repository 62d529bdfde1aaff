"""The timeline as a page: one file without any other, to look through with mouse and keys."""

from __future__ import annotations

import importlib.resources

import msgspec

from nnasync.cli.demo.demo_timeline import DemoTimeline
from nnasync.cli.demo.picture import COLORS, LOST, RIGHT

_PLACE = "/*TIMELINE*/"


def html(timeline: DemoTimeline) -> str:
    """The page; its template is timeline.html beside this module."""
    template = importlib.resources.files("nnasync.cli.demo").joinpath("timeline.html")
    colors = {str(int(priority)): color for priority, color in COLORS.items()}
    data = {
        "timeline": timeline,
        "colors": {**colors, "lost": LOST, "right": RIGHT},
        "hits": {"audio": timeline.summary.audio_hits, "video": timeline.summary.video_hits},
    }
    encoded = msgspec.json.encode(data).decode().replace("</", "<\\/")
    return template.read_text(encoding="utf-8").replace(_PLACE, encoded)
