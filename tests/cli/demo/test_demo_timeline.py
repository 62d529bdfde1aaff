"""From a recording to figures and to the data of the pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from nnasync.cli.demo import page, picture
from nnasync.cli.demo.demo_timeline import TimelineLane, best_window, timeline_of
from nnasync.cli.demo.play import Recording
from nnasync.cli.demo.recorder import INLINE, DemoJob, DemoPiece, DemoRecorder
from nnasync.cli.demo.streams import HOP, HOP_NS, StreamMark
from nnasync.cli.demo.summary import summarize, text
from nnasync.cli.demo_data import VideoTruth, WordsTruth
from nnasync.cli.recognition import SpokenWord, Word
from nnasync.hal import Priority
from nnasync.machine import Busy, CpuMeter
from nnasync.streaming import Account, Latency, Outcome, StreamStatistics

MS = 1_000_000
ORIGIN = 500 * MS
NAMES = ("zero", "one", "two")
WORDS = WordsTruth(
    16000, 1, NAMES, (SpokenWord(1, 10 * HOP, 20 * HOP), SpokenWord(2, 90 * HOP, 120 * HOP))
)
VIDEO = VideoTruth(30, 1, (4, 4, 5, 5, 10, 10))


def mark(index: int, period_ns: int, outcome: Outcome = Outcome.COMPLETED) -> StreamMark:
    captured_ns = ORIGIN + (index + 1) * period_ns
    return StreamMark(index, captured_ns, captured_ns + MS, captured_ns + 3 * MS, outcome)


def recording(**changes: Any) -> Recording:
    hops = [mark(k, HOP_NS, Outcome.MISSED if k == 60 else Outcome.COMPLETED) for k in range(100)]
    frames = [mark(k, 33 * MS) for k in range(6)]
    high = [
        DemoPiece("words on cpu", INLINE, ORIGIN + k * 10 * MS, ORIGIN + k * 10 * MS + MS)
        for k in range(100)
    ]
    low = [
        DemoPiece("digits_large on cpu", ORIGIN, ORIGIN, ORIGIN + 5 * MS),
        DemoPiece("digits_large on cpu", ORIGIN + 1, ORIGIN + 5 * MS, ORIGIN + 9 * MS),
        DemoPiece("digits_large on cpu", ORIGIN, ORIGIN + 9 * MS, ORIGIN + 12 * MS),
        DemoPiece("digits_large on cpu", ORIGIN + 10 * MS, ORIGIN + 13 * MS, ORIGIN + 15 * MS),
        DemoPiece("another", 7, ORIGIN, ORIGIN + 900 * MS),
    ]
    jobs = [
        DemoJob("digits_large on cpu", ORIGIN, ORIGIN + 12 * MS),
        DemoJob("digits_large on cpu", ORIGIN + 1, ORIGIN + 9 * MS),
        DemoJob("digits_large on cpu", ORIGIN + 10 * MS, ORIGIN + 15 * MS),
    ]
    base = Recording(
        started_ns=ORIGIN,
        ended_ns=ORIGIN + 1000 * MS,
        exit_code=0,
        audio=StreamStatistics(
            Account(submitted=100, completed=99, missed=1),
            Latency(99, MS, MS, 3 * MS, 3 * MS),
            100,
            99,
        ),
        video=StreamStatistics(Account(submitted=6, completed=6), Latency(), 6, 6),
        audio_alone=StreamStatistics(Account(submitted=50, completed=50), Latency(), 50, 50),
        hops=tuple(hops),
        frames=tuple(frames),
        words=(Word(1, 25, 0.9),),
        labels={0: 4, 1: 4, 2: 5, 3: 1, 4: 10},
        pieces=tuple(high + low),
        jobs=tuple(jobs),
        networks={2: "words", 1: "digits", 0: "digits_large"},
        low_alone_hz=100.0,
        low_hz=60.0,
        busy=Busy(0.97, 0.9, 2),
    )
    return msgspec.structs.replace(base, **changes)


def test_summary_counts_lost_frames_as_wrong_and_judges_what_was_heard_in_time() -> None:
    summary = summarize(recording(), WORDS, VIDEO)
    assert (summary.words_spoken, summary.words_right) == (1, 1.0)
    assert summary.digits_right == 4 / 6
    assert summary.low_kept == 0.6
    assert (summary.audio_hits, summary.audio_alone_hits) == (0.99, 1.0)
    told = text(summary)
    assert "100.0% of 1 spoken words right" in told
    assert "66.7% of 6 frames right" in told
    assert "60% kept" in told
    assert "97.0% busy" in told


def test_word_that_was_not_heard_is_wrong() -> None:
    assert summarize(recording(words=()), WORDS, VIDEO).words_right == 0.0
    assert summarize(recording(words=(Word(2, 25, 0.9),)), WORDS, VIDEO).words_right == 0.0


def test_false_alarms_are_told_with_the_share_that_they_lower() -> None:
    words = (Word(3, 1, 0.8), Word(1, 25, 0.9))
    summary = summarize(recording(words=words), WORDS, VIDEO)
    assert (summary.words_right, summary.words_spoken, summary.false_alarms) == (0.5, 1, 1)
    assert "50.0% of 1 spoken words right (1 false alarm counts as wrong)" in text(summary)
    assert summarize(recording(words=words), None, VIDEO).false_alarms == 0


def test_live_devices_have_no_truth() -> None:
    nothing = StreamStatistics()
    summary = summarize(recording(low_alone_hz=0.0, audio_alone=nothing), None, None)
    assert summary.audio_alone_hits is None
    assert (summary.words_right, summary.digits_right, summary.low_kept) == (None, None, None)
    told = text(summary)
    assert "1 words heard" in told
    assert "LOW" not in told
    timeline = timeline_of(recording(), summary, WORDS, VIDEO)
    assert (timeline.said, timeline.digits) == ((), ())


def test_lanes() -> None:
    timeline = timeline_of(recording(), summarize(recording(), WORDS, VIDEO), WORDS, VIDEO)
    names = [lane.name for lane in timeline.lanes]
    assert names == ["HIGH  audio", "MEDIUM  video", "LOW  call 1", "LOW  call 2"]
    high, medium, first, second = timeline.lanes
    assert len(high.runs) == 100
    assert high.waits[0] == (10_000, 13_000)
    assert high.lost == (613_000,)
    assert high.latencies[60] == (610_000, 3_000, False)
    assert len(medium.waits) == 6
    assert first.waits == ((0, 12_000),)
    assert first.runs == ((0, 5_000), (9_000, 12_000))
    assert second.waits == ((0, 9_000), (10_000, 15_000))
    assert [said.right for said in timeline.said] == [True]
    assert [(d.text, d.right) for d in timeline.digits] == [("4", 1.0), ("5", 0.5), ("", 0.5)]
    assert timeline.window_us == (513_000, 713_000)


def test_answer_counts_for_one_word_only() -> None:
    spoken = (SpokenWord(1, 10 * HOP, 20 * HOP), SpokenWord(2, 24 * HOP, 34 * HOP))
    truth = msgspec.structs.replace(WORDS, words=spoken)
    run = recording(words=(Word(1, 26, 0.9), Word(2, 40, 0.9)))
    summary = summarize(run, truth, VIDEO)
    assert summary.words_right == 1.0
    said = timeline_of(run, summary, truth, VIDEO).said
    assert [(word.text, word.right) for word in said] == [("one", True), ("two", True)]


def test_window_stays_inside() -> None:
    assert best_window([], 1_000_000) == (400_000, 600_000)
    assert best_window([TimelineLane("x", 0, lost=(100, 450_000))], 1_000_000) == (350_000, 550_000)
    assert best_window([], 50_000)[0] == 0


def test_busy_is_the_share_of_each_slice() -> None:
    edges = np.array([0.0, 10.0, 20.0])
    np.testing.assert_allclose(picture.busy([(5, 15), (12, 14)], edges), [0.5, 0.7])
    np.testing.assert_array_equal(picture.busy([], edges), [0, 0])


def test_picture_and_page(tmp_path: Path) -> None:
    timeline = timeline_of(recording(), summarize(recording(), WORDS, VIDEO), WORDS, VIDEO)
    assert picture.draw(timeline, tmp_path / "timeline.png")
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")
    html = page.html(timeline)
    data = html.partition("const DATA = ")[2].partition(";\n")[0]
    assert len(msgspec.json.decode(data)["timeline"]["lanes"]) == 4
    assert "http" not in html.replace("http-equiv", "")


def test_page_escapes_what_a_name_may_hold() -> None:
    truth = msgspec.structs.replace(WORDS, names=("", "</script><script>alert(1)", ""))
    html = page.html(timeline_of(recording(), summarize(recording(), truth, VIDEO), truth, VIDEO))
    assert html.count("</script>") == 1


def test_recording_that_ended_at_once() -> None:
    empty = recording(
        ended_ns=ORIGIN,
        hops=(),
        frames=(),
        words=(),
        labels={},
        pieces=(),
        jobs=(),
        audio=StreamStatistics(),
        video=StreamStatistics(),
        exit_code=130,
    )
    summary = summarize(empty, WORDS, VIDEO)
    assert (summary.words_right, summary.digits_right) == (None, None)
    timeline = timeline_of(empty, summary, WORDS, VIDEO)
    assert [lane.runs for lane in timeline.lanes] == [(), ()]
    assert "0.0 seconds" in text(summary)


def test_recorder_keeps_pieces_and_jobs() -> None:
    class Task:
        name = "digits"
        ready_ns = 12
        launched_ns = 10
        active_ns = 10
        priority = Priority.MEDIUM

    recorder = DemoRecorder()
    recorder.task_ran(Task(), 20, 30, finished=False)
    recorder.task_ran(Task(), 40, 50, finished=True)
    recorder.inline_run("words", 5, 6)
    assert list(recorder.pieces) == [
        DemoPiece("digits", 10, 20, 30),
        DemoPiece("digits", 10, 40, 50),
        DemoPiece("words", INLINE, 5, 6),
    ]
    assert list(recorder.jobs) == [DemoJob("digits", 10, 50)]


def test_cpu_meter() -> None:
    meter = CpuMeter()
    sum(range(1_000_000))
    busy = meter.read()
    assert busy.cores >= 1
    assert 0 <= busy.process <= 1
    assert 0 <= busy.machine <= 1
