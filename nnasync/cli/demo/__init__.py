"""`nnasync demo`: two live streams through three networks, with priorities and deadlines."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import Any, TextIO

from nnasync import run
from nnasync.cli.argument_types import positive_number
from nnasync.cli.demo import page, picture
from nnasync.cli.demo.demo_timeline import DemoTimeline, timeline_of
from nnasync.cli.demo.play import DemoOptions, Recording, play
from nnasync.cli.demo.streams import read_truth
from nnasync.cli.demo.summary import summarize, text
from nnasync.cli.demo.view import PlainView, RichView
from nnasync.cli.demo_data import VideoTruth, WordsTruth
from nnasync.cli.text import HelpFormatter, json_text
from nnasync.errors import InvalidArgument

__all__ = ["add_parser"]

_DESCRIPTION = """Play a video of digits and a recording of spoken digits in real time, and
recognize both: hops of 10 ms of sound at HIGH priority, each due 10 ms after
its last sample; 30 frames a second at MEDIUM, the newest frame wins, each due
one frame period after it came; and beside them clients of a larger network as
LOW load. At the end it tells how much was right, the account of each stream,
and it writes a timeline of the run as a picture and as a page."""

_EXAMPLES = """examples:
  nnasync demo                           the clips, for a minute
  nnasync demo --seconds 10 --plain      shorter, one line a second
  nnasync demo --camera 0 --microphone   a camera and the default microphone
  nnasync demo --no-low                  without the load
"""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    parser = commands.add_parser(
        "demo",
        help="play two live streams with deadlines",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
    )
    parser.add_argument(
        "--seconds", type=positive_number, default=60.0, metavar="S", help="length (60)"
    )
    parser.add_argument("--camera", type=int, metavar="N", help="see through /dev/videoN")
    parser.add_argument(
        "--microphone",
        nargs="?",
        const="default",
        metavar="N",
        help="hear through ALSA card N, or a device by its name (the default one)",
    )
    parser.add_argument(
        "--low", type=int, default=2, metavar="N", help="clients of the LOW load (2)"
    )
    parser.add_argument("--no-low", dest="low", action="store_const", const=0, help="no LOW load")
    parser.add_argument(
        "--alone-seconds",
        type=positive_number,
        default=3.0,
        metavar="S",
        help="how long the sound and the LOW load are measured alone first (3)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("nnasync-demo"),
        metavar="DIR",
        help="folder of the timeline (nnasync-demo)",
    )
    parser.add_argument("--plain", action="store_true", help="lines instead of a live screen")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="folder of other clips and networks"
    )
    parser.set_defaults(command=_command)


def _command(arguments: argparse.Namespace) -> int:
    if importlib.util.find_spec("av") is None:
        raise InvalidArgument(
            "the demo needs PyAV, which is not installed: pip install 'nnasync[demo]'"
        )
    options = DemoOptions(
        seconds=arguments.seconds,
        alone_seconds=arguments.alone_seconds,
        camera=arguments.camera,
        microphone=_microphone(arguments.microphone),
        low_clients=max(arguments.low, 0),
        data=arguments.data,
    )
    words = read_truth(options.data, "words.json", WordsTruth)
    digits = read_truth(options.data, "digits.json", VideoTruth)
    out = sys.stderr if arguments.json else sys.stdout
    with _view(words.names, out, plain=arguments.plain or arguments.json) as view:
        recording: Recording = run(play, options, view)
    summary = summarize(
        recording,
        words if options.microphone is None else None,
        digits if options.camera is None else None,
    )
    print(_json(summary) if arguments.json else "\n" + text(summary), flush=True)
    timeline = timeline_of(recording, summary, words, digits)
    _write(arguments.out, timeline, _json(summary))
    if recording.error:
        print(f"nnasync: error: {recording.error}", file=sys.stderr)
    return recording.exit_code


def _microphone(name: str | None) -> str | None:
    return f"hw:{name}" if name is not None and name.isdigit() else name


def _view(names: tuple[str, ...], out: TextIO, *, plain: bool) -> PlainView | RichView:
    if plain or not sys.stdout.isatty():
        return PlainView(names, out)
    try:
        return RichView(names, out)
    except ImportError:
        return PlainView(names, out)


def _json(value: Any) -> str:
    return json_text(value)


def _write(folder: Path, timeline: DemoTimeline, summary: str) -> None:
    """Write summary, page and picture; the picture needs matplotlib."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.json").write_text(summary + "\n", encoding="utf-8")
    (folder / "timeline.html").write_text(page.html(timeline), encoding="utf-8")
    written = ["summary.json", "timeline.html"]
    if picture.draw(timeline, folder / "timeline.png"):
        written.append("timeline.png")
    else:
        print("no timeline.png: it needs matplotlib: pip install 'nnasync[demo]'", file=sys.stderr)
    print(f"{folder}: {', '.join(written)}", file=sys.stderr)
