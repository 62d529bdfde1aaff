"""The demo while it plays: plain lines, or a live screen made with rich."""

from __future__ import annotations

from typing import Any, Self, TextIO

from nnasync.cli.demo.play import DemoStatus
from nnasync.cli.recognition import NONE
from nnasync.hal import Array
from nnasync.streaming import StreamStatistics


class PlainView:
    """One line a second."""

    period_s = 1.0

    def __init__(self, names: tuple[str, ...], out: TextIO) -> None:
        self._names = names
        self._out = out

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def note(self, text: str) -> None:
        """Print a line."""
        print(text, file=self._out, flush=True)

    def show(self, status: DemoStatus) -> None:
        """Print the status as a line."""
        heard = _word(status.words[-1].label, self._names) if status.words else "-"
        parts = [
            f"{status.elapsed_s:5.1f} s",
            f"hears {heard:5}",
            f"sees {_digit(status.digit)}",
            f"audio {_stream(status.audio)}",
            f"video {_stream(status.video)}",
            f"LOW {status.low_hz:.1f}/s",
            f"cores {status.busy.machine:.0%} busy",
        ]
        print(" | ".join(parts), file=self._out, flush=True)


class RichView:
    """A live screen that is drawn anew four times a second."""

    period_s = 0.25

    def __init__(self, names: tuple[str, ...], out: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._names = names
        console = Console(file=out)
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    def note(self, text: str) -> None:
        """Show a line in place of the screen."""
        self._live.update(text, refresh=True)

    def show(self, status: DemoStatus) -> None:
        """Draw the screen."""
        from rich.console import Group
        from rich.panel import Panel
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        top = Table.grid(expand=True, padding=(0, 1))
        top.add_column(width=36)
        top.add_column(ratio=1)
        top.add_row(
            Panel(_picture(status.frame), title=_caption(status), border_style="blue"),
            Group(
                Panel(self._heard(status), title="hears", border_style="dark_orange"),
                _streams(status),
                _machine(status),
            ),
        )
        done_s = min(status.elapsed_s, status.seconds)
        bar = ProgressBar(total=status.seconds, completed=done_s, complete_style="blue")
        bottom = Table.grid(expand=True, padding=(0, 1))
        bottom.add_column(ratio=1)
        bottom.add_column(width=12, justify="right")
        bottom.add_row(bar, f"{done_s:.0f} of {status.seconds:.0f} s")
        self._live.update(Group(top, bottom), refresh=True)

    def _heard(self, status: DemoStatus) -> Any:
        from rich.text import Text

        text = Text()
        for age, word in enumerate(reversed(status.words)):
            style = "bold dark_orange" if age == 0 else "dim" if age > 4 else ""
            text = Text(_word(word.label, self._names) + "  ", style=style) + text
        return text or Text("...", style="dim")


def _word(label: int, names: tuple[str, ...]) -> str:
    return names[label] if label < len(names) else str(label)


def _digit(label: int) -> str:
    return "-" if label == NONE else str(label)


def _stream(statistics: StreamStatistics) -> str:
    account, latency = statistics.account, statistics.latency
    lost = [
        f"{count} {name}"
        for name in ("missed", "dropped", "cancelled", "failed")
        if (count := getattr(account, name))
    ]
    lost_text = f" {', '.join(lost)}" if lost else ""
    return (
        f"{account.completed}/{account.submitted}{lost_text} "
        f"p50 {latency.p50_ns / 1e6:.1f} p99 {latency.p99_ns / 1e6:.1f} ms "
        f"hits {statistics.hit_rate:.2%}"
    )


def _caption(status: DemoStatus) -> str:
    if status.digit == NONE:
        return "sees nothing"
    return f"sees [bold]{status.digit}[/bold]  ({status.score:.0%})"


def _picture(frame: Array | None) -> Any:
    """The frame in 32 x 32 pixels, two to a character."""
    from rich.text import Text

    if frame is None:
        return Text("\n" * 15)
    small = frame[::2, ::2]
    text = Text()
    for upper, lower in zip(small[::2].tolist(), small[1::2].tolist(), strict=False):
        for a, b in zip(upper, lower, strict=True):
            text.append("▀", style=f"rgb({a},{a},{a}) on rgb({b},{b},{b})")
        text.append("\n")
    text.right_crop(1)
    return text


def _streams(status: DemoStatus) -> Any:
    from rich.table import Table

    names = ("submitted", "completed", "missed", "dropped", "cancelled", "failed", "pending")
    table = Table(expand=True, box=None, padding=(0, 1))
    for head in ("", "audio HIGH", "video MEDIUM"):
        table.add_column(head, justify="left" if not head else "right")
    both = (status.audio, status.video)
    for name in names:
        table.add_row(name, *(str(getattr(s.account, name)) for s in both))
    for name in ("p50", "p90", "p99", "max"):
        figures = (getattr(s.latency, f"{name}_ns") / 1e6 for s in both)
        table.add_row(f"latency {name}", *(f"{figure:.2f} ms" for figure in figures))
    table.add_row("deadlines met", *(f"[bold]{s.hit_rate:.2%}[/bold]" for s in both))
    return table


def _machine(status: DemoStatus) -> Any:
    from rich.text import Text

    busy = status.busy
    kept = f", {status.low_hz / status.low_alone_hz:.0%} of alone" if status.low_alone_hz else ""
    return Text(
        f" {busy.cores} cores {busy.machine:.1%} busy, {busy.process:.1%} by us\n"
        f" LOW load {status.low_hz:.1f}/s{kept}"
    )
