"""The timeline of a run as data for pictures: lanes with bars, latencies, words, digits.

All times are microseconds from the beginning of the streams.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from nnasync.cli.demo.play import Recording
from nnasync.cli.demo.recorder import INLINE, DemoJob, DemoPiece
from nnasync.cli.demo.streams import FRAME_NS, HOP_NS, SAMPLE_RATE_HZ, StreamMark
from nnasync.cli.demo.summary import Summary, judged
from nnasync.cli.demo_data import VideoTruth, WordsTruth
from nnasync.cli.recognition import NONE, answers
from nnasync.hal import Priority, Struct
from nnasync.streaming import Outcome


class TimelineLane(Struct):
    """One row of the timeline.

    `waits` are (from, to) of what was asked, `runs` (from, to) of what had a core, `lost` the times
    at which something was missed or dropped, `latencies` (capture, duration, was completed).
    """

    name: str
    priority: int
    budget_us: int = 0
    waits: tuple[tuple[int, int], ...] = ()
    runs: tuple[tuple[int, int], ...] = ()
    lost: tuple[int, ...] = ()
    latencies: tuple[tuple[int, int, bool], ...] = ()


class Said(Struct):
    """A word that was spoken, from and to, and whether it was heard right."""

    text: str
    start_us: int
    end_us: int
    right: bool


class Digit(Struct):
    """Frames with the same truth: from and to, the digit, the share that was seen right."""

    text: str
    start_us: int
    end_us: int
    right: float


class DemoTimeline(Struct):
    """Everything that the pictures show."""

    duration_us: int
    cores: int
    lanes: tuple[TimelineLane, ...]
    said: tuple[Said, ...]
    digits: tuple[Digit, ...]
    summary: Summary
    window_us: tuple[int, int]


def timeline_of(
    recording: Recording, summary: Summary, words: WordsTruth, video: VideoTruth
) -> DemoTimeline:
    """The timeline of a recording; words and digits are left out where live devices were used."""
    origin_ns = _origin_ns(recording)
    pieces: dict[Priority | None, list[DemoPiece]] = {None: []} | {level: [] for level in Priority}
    for piece in recording.pieces:
        pieces[_priority(recording, piece.network)].append(piece)
    low = [job for job in recording.jobs if _priority(recording, job.network) is Priority.LOW]
    lanes = (
        _stream_lane("audio", Priority.HIGH, HOP_NS, recording.hops, pieces, origin_ns),
        _stream_lane("video", Priority.MEDIUM, FRAME_NS, recording.frames, pieces, origin_ns),
        *_low_lanes(low, pieces[Priority.LOW], origin_ns),
    )
    said = _said(recording, words) if summary.words_right is not None else ()
    digits = _digits(recording, video) if summary.digits_right is not None else ()
    duration_us = max((recording.ended_ns - origin_ns) // 1000, 1)
    return DemoTimeline(
        duration_us, summary.cores, lanes, said, digits, summary, best_window(lanes, duration_us)
    )


def best_window(
    lanes: Sequence[TimelineLane], duration_us: int, width_us: int = 200_000
) -> tuple[int, int]:
    """Returns the interval to enlarge: around a loss near the middle, else the middle itself."""
    middle = duration_us // 2
    lost = [at for lane in lanes for at in lane.lost if width_us < at < duration_us - width_us]
    center = min(lost, key=lambda at: abs(at - middle), default=middle)
    start = max(min(center - width_us // 2, duration_us - width_us), 0)
    return start, start + width_us


def _origin_ns(recording: Recording) -> int:
    """Position 0 of the clips on the monotonic clock."""
    first = [mark.captured_ns for mark in recording.hops if mark.index == 0]
    return first[0] - HOP_NS if first else recording.started_ns


def _priority(recording: Recording, executed: str) -> Priority | None:
    """Priority of the network that an execution names; its device may stand behind it."""
    for level, network in recording.networks.items():
        if executed == network or executed.startswith(f"{network} on "):
            return Priority(level)
    return None


def _stream_lane(
    name: str,
    priority: Priority,
    budget_ns: int,
    marks: Sequence[StreamMark],
    pieces: dict[Priority | None, list[DemoPiece]],
    origin_ns: int,
) -> TimelineLane:
    completed = Outcome.COMPLETED
    return TimelineLane(
        name=f"{priority.name}  {name}",
        priority=int(priority),
        budget_us=budget_ns // 1000,
        waits=_spans(((m.captured_ns, m.finished_ns) for m in marks if m.started_ns), origin_ns),
        runs=_spans(((p.start_ns, p.end_ns) for p in pieces[priority]), origin_ns),
        lost=tuple(
            (m.finished_ns - origin_ns) // 1000 for m in marks if m.outcome is not completed
        ),
        latencies=tuple(
            (
                (m.captured_ns - origin_ns) // 1000,
                (m.finished_ns - m.captured_ns) // 1000,
                m.outcome is completed,
            )
            for m in marks
        ),
    )


def _spans(spans: Iterable[tuple[int, int]], origin_ns: int) -> tuple[tuple[int, int], ...]:
    moved = (((a - origin_ns) // 1000, (b - origin_ns) // 1000) for a, b in spans)
    return tuple(sorted(span for span in moved if span[1] >= 0))


def _low_lanes(
    jobs: Sequence[DemoJob], pieces: Sequence[DemoPiece], origin_ns: int
) -> list[TimelineLane]:
    """One lane for as many LOW executions as there were at a time."""
    ends: list[tuple[int, int]] = []
    lane_of: dict[int, int] = {INLINE: 0}
    waits: list[list[tuple[int, int]]] = []
    for job in sorted(jobs, key=lambda job: job.job):
        if ends and ends[0][0] <= job.job:
            _, lane = heapq.heappop(ends)
        else:
            lane = len(waits)
            waits.append([])
        heapq.heappush(ends, (job.end_ns, lane))
        lane_of[job.job] = lane
        waits[lane].append((job.job, job.end_ns))
    runs: list[list[tuple[int, int]]] = [[] for _ in waits]
    for piece in pieces:
        lane = lane_of.get(piece.job, len(runs))
        if lane < len(runs):
            runs[lane].append((piece.start_ns, piece.end_ns))
    return [
        TimelineLane(
            name=f"LOW  call {index + 1}",
            priority=int(Priority.LOW),
            waits=_spans(waits[index], origin_ns),
            runs=_spans(runs[index], origin_ns),
        )
        for index in range(len(waits))
    ]


def _said(recording: Recording, truth: WordsTruth) -> tuple[Said, ...]:
    """The spoken words, and whether their answers are right."""
    to_us = 1_000_000 / SAMPLE_RATE_HZ
    return tuple(
        Said(
            truth.names[word.label],
            int(word.start * to_us),
            int(word.end * to_us),
            event is not None and event.label == word.label,
        )
        for word, event in answers(*judged(recording, truth))
    )


def _digits(recording: Recording, truth: VideoTruth) -> tuple[Digit, ...]:
    labels = truth.labels[: recording.video.account.submitted]
    period_us = 1e6 / truth.fps
    segments = []
    start = 0
    for frame in range(1, len(labels) + 1):
        if frame == len(labels) or labels[frame] != labels[start]:
            label = labels[start]
            seen = sum(recording.labels.get(f) == label for f in range(start, frame))
            text = "" if label == NONE else str(label)
            begin_us, end_us = int(start * period_us), int(frame * period_us)
            segments.append(Digit(text, begin_us, end_us, seen / (frame - start)))
            start = frame
    return tuple(segments)
