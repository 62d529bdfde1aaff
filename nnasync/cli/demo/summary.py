"""The demo when it has ended: how much was right, on time, lost, and how busy the machine was."""

from __future__ import annotations

from collections.abc import Sequence

from nnasync.cli.demo.play import Recording
from nnasync.cli.demo.streams import HOP
from nnasync.cli.demo_data import VideoTruth, WordsTruth
from nnasync.cli.recognition import (
    SpokenWord,
    Word,
    answers,
    digit_accuracy,
    word_accuracy,
)
from nnasync.cli.text import table
from nnasync.hal import Struct
from nnasync.streaming import StreamStatistics

_MARGIN_HOPS = 30


class Summary(Struct):
    """The figures of a run; shares between 0 and 1, None where the truth is not known.

    `audio_alone_hits` is that of the sound before anything ran beside it, None without a LOW load.
    `words_right` is the share of right answers among all spoken words and all false alarms.
    """

    seconds: float
    words_right: float | None
    words_spoken: int
    words_heard: int
    false_alarms: int
    digits_right: float | None
    frames: int
    audio: StreamStatistics
    video: StreamStatistics
    audio_hits: float
    video_hits: float
    audio_alone: StreamStatistics
    audio_alone_hits: float | None
    low_alone_hz: float
    low_hz: float
    low_kept: float | None
    machine_busy: float
    process_busy: float
    cores: int


def judged(
    recording: Recording, truth: WordsTruth
) -> tuple[tuple[Word, ...], tuple[SpokenWord, ...]]:
    """The heard and the spoken words that can be held against each other.

    A run that ended early is judged up to the last word that it had time to hear.
    """
    hops = recording.audio.account.submitted
    spoken = tuple(w for w in truth.words if w.end <= (hops - _MARGIN_HOPS) * HOP)
    later = [w.start // HOP for w in truth.words if w not in spoken]
    heard = tuple(w for w in recording.words if w.hop < min(later, default=hops + 1))
    return heard, spoken


def summarize(recording: Recording, words: WordsTruth | None, video: VideoTruth | None) -> Summary:
    """The figures of a run; a truth is None where a live device was used."""
    frames = recording.video.account.submitted
    words_right = digits_right = None
    spoken: Sequence[SpokenWord] = ()
    false_alarms = 0
    if words is not None:
        heard, spoken = judged(recording, words)
        words_right = word_accuracy(heard, spoken) if spoken else None
        answered = sum(answer is not None for _, answer in answers(heard, spoken))
        false_alarms = len(heard) - answered
    if video is not None and frames:
        digits_right = digit_accuracy(recording.labels, video.labels[:frames])
    alone_hz, alone = recording.low_alone_hz, recording.audio_alone
    return Summary(
        seconds=(recording.ended_ns - recording.started_ns) / 1e9,
        words_right=words_right,
        words_spoken=len(spoken),
        words_heard=len(recording.words),
        false_alarms=false_alarms,
        digits_right=digits_right,
        frames=frames,
        audio=recording.audio,
        video=recording.video,
        audio_hits=recording.audio.hit_rate,
        video_hits=recording.video.hit_rate,
        audio_alone=alone,
        audio_alone_hits=alone.hit_rate if alone.account.submitted else None,
        low_alone_hz=alone_hz,
        low_hz=recording.low_hz,
        low_kept=recording.low_hz / alone_hz if alone_hz else None,
        machine_busy=recording.busy.machine,
        process_busy=recording.busy.process,
        cores=recording.busy.cores,
    )


def text(summary: Summary) -> str:
    """The figures as a page of text."""
    lines = [
        f"{summary.seconds:.1f} seconds",
        "",
        _recognition(summary),
        "",
        _streams(summary),
        "",
        f"{summary.cores} cores {summary.machine_busy:.1%} busy "
        f"({summary.process_busy:.1%} by this process)",
    ]
    if summary.low_kept is not None:
        lines.append(
            f"LOW load: {summary.low_hz:.1f} answers a second beside the streams, "
            f"{summary.low_alone_hz:.1f} alone: {summary.low_kept:.0%} kept"
        )
    return "\n".join(lines)


def _recognition(summary: Summary) -> str:
    words = f"{summary.words_heard} words heard"
    if summary.words_right is not None:
        words = (
            f"{summary.words_right:.1%} of {summary.words_spoken} spoken words right"
            f"{_false_alarms(summary)}"
        )
    digits = f"{summary.frames} frames seen"
    if summary.digits_right is not None:
        digits = (
            f"{summary.digits_right:.1%} of {summary.frames} frames right "
            "(lost frames count as wrong)"
        )
    return f"{words}\n{digits}"


def _false_alarms(summary: Summary) -> str:
    """Returns a note on events in `words_right` that answer no spoken word."""
    alarms = summary.false_alarms
    if not alarms:
        return ""
    return f" ({alarms} false alarm{'s count' if alarms > 1 else ' counts'} as wrong)"


def _streams(summary: Summary) -> str:
    heads = ["stream", "submitted", "completed", "missed", "dropped", "cancelled", "failed"]
    heads += ["pending", "p50 ms", "p90 ms", "p99 ms", "max ms", "deadlines met"]
    named = [("audio HIGH", summary.audio), ("video MEDIUM", summary.video)]
    if summary.audio_alone_hits is not None:
        named.insert(0, ("audio HIGH, alone", summary.audio_alone))
    return table(heads, [_row(name, statistics) for name, statistics in named])


def _row(name: str, statistics: StreamStatistics) -> list[str]:
    account, latency = statistics.account, statistics.latency
    counts = (
        account.submitted,
        account.completed,
        account.missed,
        account.dropped,
        account.cancelled,
        account.failed,
        account.pending,
    )
    times = (latency.p50_ns, latency.p90_ns, latency.p99_ns, latency.max_ns)
    return [
        name,
        *(str(count) for count in counts),
        *(f"{time / 1e6:.2f}" for time in times),
        f"{statistics.hit_rate:.2%}",
    ]
