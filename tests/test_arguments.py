"""What is no argument is refused where it is given, with its name, what it is and what it must be.

Each row is a call that is right, one of its arguments, and values that are wrong there: of another
type, NaN, out of range, a word for a list, a coroutine function for a function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

import nnasync as nn
from nnasync import audio, batching, devices, experiments, memory, ray, streaming, vision
from nnasync._core.arguments import check_function, check_number, told, words
from nnasync._core.execution import Port
from nnasync.errors import ExperimentError, InvalidArgument
from nnasync.streaming import webrtc

NAN, INF = math.nan, math.inf
ROWS = np.ones((2, 4), np.float32)
BOXES = vision.Boxes.of([[1, 2, 3, 4], [2, 3, 9, 9]])
PICTURE = np.zeros((20, 30, 3), np.uint8)
PORT = Port("picture", (1, 8, 8, 3), np.dtype(np.float32), 0.0, 0, 0)
OPEN = Port("picture", (1, 0, 0, 3), np.dtype(np.float32), 0.0, 0, 0)
GRAY = Port("picture", (1, 8, 8, 1), np.dtype(np.float32), 0.0, 0, 0)

SOURCE = streaming.synthetic(int, rate_hz=1)

NO_NUMBERS = ("1", None, [1], NAN, INF, True)
NO_WHOLE = (*NO_NUMBERS, 1.5, -1)
NO_SHARES = (*NO_NUMBERS, -0.5, 50)
NO_WORDS = ("word", None, 3, [1])
NO_FUNCTIONS = ("len", 3)


class Net:
    """What a detector wants of a network, and no more."""

    labels = ()
    inputs = (PORT,)
    outputs = (PORT, PORT)

    async def __call__(self, *arrays: Any, **options: Any) -> Any:
        """No answer."""

    def dequantize(self, result: Any) -> Any:
        """The result itself."""
        return result


async def waits(given: object) -> str:
    """A function where only one that answers at once will do."""
    return str(given)


Row = tuple[Callable[..., Any], Mapping[str, Any], str, tuple[Any, ...]]

AUDIO: list[Row] = [
    (audio.SileroActivity, {}, "net", ("file", None, Net)),
    (audio.EnergyActivity, {}, "margin_db", NO_NUMBERS),
    (audio.EnergyActivity, {}, "slope_db", (*NO_NUMBERS, 0)),
    (audio.SpeechSegments, {}, "threshold", NO_SHARES),
    (audio.SpeechSegments, {}, "release", NO_SHARES),
    (audio.SpeechSegments, {}, "least_silence_ns", NO_WHOLE),
    (audio.SpeechSegments().feed, {"now_ns": 0}, "probability", NO_NUMBERS),
    (audio.SpeechSegments().feed, {"probability": 0.5}, "now_ns", ("now", None, 0.5, NAN)),
    (audio.Framer, {"hop": 1}, "size", (*NO_WHOLE, 0)),
    (audio.Framer, {"size": 4}, "hop", (*NO_WHOLE, 0)),
    (audio.Framer, {"size": 4, "hop": 1}, "dtype", ("word", str, object, bool, 3)),
    (audio.OverlapAdd, {"size": 4}, "hop", (*NO_WHOLE, 5)),
    (audio.hann, {}, "size", (*NO_WHOLE, 0)),
    (audio.mel_filters, {"fft_size": 512, "bands": 8}, "rate_hz", (*NO_WHOLE, 0)),
    (audio.mel_filters, {"rate_hz": 16_000, "bands": 8}, "fft_size", (*NO_WHOLE, 1)),
    (audio.mel_filters, {"rate_hz": 16_000, "fft_size": 512}, "bands", (*NO_WHOLE, 0)),
    (audio.LogMel, {}, "low_hz", NO_NUMBERS),
    (audio.LogMel, {}, "floor", (*NO_NUMBERS, 0)),
    (audio.LogMel, {}, "scale", ("bark", None, ["htk"])),
    (audio.LogMel, {}, "logarithm", ("log2", None, ROWS)),
    (audio.hertz_to_mel, {}, "hertz", ("word", None, ROWS.astype(bool), [[1], [1, 2]])),
    (audio.mfcc, {"count": 1}, "log_mel", ("word", None, ROWS.astype(str))),
    (audio.mfcc, {"log_mel": ROWS}, "count", (*NO_WHOLE, 0)),
    (audio.fixed_rfft, {}, "samples", ("word", None, ROWS)),
    (audio.whisper_features, {"samples": ROWS[0]}, "seconds", ("1", NAN, INF, -1, True)),
    (audio.whisper_scaled, {}, "log_mel", ("word", None)),
    (audio.MicroFrontend, {}, "config", ("word", 0, {}, audio.MicroFrontendConfig)),
]

MICRO_FRONTEND: list[tuple[str, tuple[Any, ...]]] = [
    ("rate_hz", NO_WHOLE),
    ("step_ms", NO_WHOLE),
    ("channels", (*NO_WHOLE, 0)),
    ("high_hz", NO_NUMBERS),
    ("smoothing_bits", (*NO_WHOLE, 32)),
    ("gain_bits", (*NO_WHOLE, 32)),
    ("even_smoothing", NO_SHARES),
    ("offset", (*NO_NUMBERS, 0)),
    ("scale_shift", (*NO_WHOLE, 17)),
]

HEADS: list[Row] = [
    (vision.AnchorHead, {"anchors": ROWS}, "order", ("yx", None, 3)),
    (vision.AnchorHead, {"anchors": ROWS}, "variances", (0.1, (0.1, 0.2), None)),
    (vision.AnchorHead, {"anchors": ROWS}, "background", ("0", 0.5, True)),
    (vision.CornerHead, {}, "scores", ("logit", None)),
    (vision.CornerHead, {}, "order", ("xy", None)),
    (vision.PostprocessHead, {}, "order", ("xy", None)),
    (vision.DistanceHead, {}, "cells", ((), (0,), 8, "8", (8.5,))),
    (vision.DistanceHead, {}, "scores", ("logit",)),
    (vision.YoloHead, {}, "scores", ("logit", None)),
    (vision.YoloGridHead, {}, "anchors", ((), ((3, 4),), "x", 3)),
    (vision.YoloGridHead, {"anchors": (((3.0, 4.0),),)}, "spread", NO_NUMBERS),
    (vision.anchors_on_grids, {"cells": (8,), "sides": ((4,),)}, "size", (64, "ab", (0, 4))),
    (vision.anchors_on_grids, {"size": (64, 64), "sides": ((4,),)}, "cells", (8, "8", (0,), ())),
]

VISION: list[Row] = [
    (vision.Boxes.of, {}, "names", NO_WORDS),
    (vision.Boxes.of, {}, "corners", ("word", ROWS.astype(str), ROWS.astype(complex))),
    (BOXES.chosen, {}, "which", (0, None, "word", [7], [0.5])),
    (BOXES.above, {}, "threshold", NO_NUMBERS),
    (vision.areas, {}, "corners", ([[1, 2, 3, 4]], ROWS[0], ROWS[:, :3])),
    (vision.overlaps, {"a": ROWS}, "b", ([[1, 2, 3, 4]], ROWS[0])),
    (vision.suppressed, {}, "boxes", ([], ROWS, None)),
    (vision.suppressed, {"boxes": BOXES}, "overlap", NO_SHARES),
    (vision.suppressed, {"boxes": BOXES}, "threshold", NO_NUMBERS),
    (vision.suppressed, {"boxes": BOXES}, "most", ("1", 1.5, -1, NAN, True)),
    (vision.suppressed, {"boxes": BOXES}, "soft_sigma", ("1", NAN, INF, 0, True)),
    (vision.average_precisions, {"truth": [BOXES]}, "found", (BOXES, [ROWS], None)),
    (vision.average_precisions, {"found": [], "truth": []}, "overlap", NO_SHARES),
    (vision.Tracker, {}, "overlap", (*NO_SHARES, 0)),
    (vision.Tracker, {}, "patience_ns", NO_WHOLE),
    (vision.Tracker, {}, "confirmations", (*NO_WHOLE, 0)),
    (vision.Tracker().update, {"now_ns": 0}, "boxes", ([], [BOXES], ROWS, None)),
    (vision.Tracker().update, {"boxes": BOXES}, "now_ns", ("now", None, 0.5, NAN)),
    (vision.Tracker().expected, {}, "now_ns", ("now", None, 0.5, NAN)),
    (vision.draw, {"picture": PICTURE}, "boxes", ([], [BOXES], ROWS, None)),
    (vision.draw, {"picture": PICTURE, "boxes": BOXES}, "caption", (*NO_FUNCTIONS, waits)),
    (vision.draw, {"picture": PICTURE, "boxes": BOXES}, "color", ((), "red", (3,), None)),
    (vision.draw, {"picture": PICTURE, "boxes": BOXES}, "thickness", (*NO_WHOLE[:1], 0, 1.5)),
    (vision.Canvas(PICTURE).fill, {"window": (0, 0, 1, 1)}, "color", ("red", None, 3, ("a",) * 3)),
    (vision.Canvas(PICTURE).text, {"left": 0, "top": 0, "color": (0, 0, 0)}, "text", (None, 3)),
    (vision.prepare, {"picture": PICTURE, "net": PORT}, "fill", (*NO_WHOLE, 300)),
    (vision.prepare, {"picture": PICTURE, "net": PORT}, "fit", ("best", None, ROWS)),
    (
        vision.prepare,
        {"picture": PICTURE, "net": PORT},
        "window",
        ("abcd", (0, 0, 1), (0, 0, 1.5, 1)),
    ),
    (vision.prepare, {"picture": PICTURE, "net": PORT}, "out", ("word", [1], ROWS)),
    (vision.prepare, {"picture": PICTURE, "net": OPEN}, "size", (8, "ab", (8,), (8, 0), (8.0, 8))),
    (vision.prepare, {"picture": PICTURE, "net": GRAY}, "normalization", (vision.IMAGENET,)),
    (vision.Normalization, {}, "mean", (0.5, "word", (NAN,), ("a",), (1.0, 2.0))),
    (vision.Normalization, {}, "deviation", ((0.0,), (INF,), None)),
    (vision.placement, {"width": 8, "height": 8}, "into", (8, "ab", (8, 8, 3), (0, 4))),
    (vision.placement, {"height": 8, "into": (8, 8)}, "width", (*NO_WHOLE, 0)),
    (vision.placement(8, 8, (4, 4)).to_picture, {}, "boxes", (ROWS, None)),
    (vision.resized, {"pixels": PICTURE}, "size", (8, "ab", (8.5, 8), (1 << 17, 4))),
    (vision.Detector, {"head": vision.YoloHead()}, "net", ("file", None, Net)),
    (vision.Detector, {"net": Net()}, "head", (vision.YoloHead, "yolo", None)),
]


async def nothing(given: object) -> None:
    """What a stage awaits."""


def stage_of(method: str) -> Callable[..., Any]:
    """A method of a stream, which makes the next stage in a graph of its own."""
    found: Callable[..., Any] = getattr(streaming.Graph().source(SOURCE), method)
    return found


NO_TIMES = ("1", NAN, INF, 0, -1, True)
NO_NS = ("now", 0.5, NAN, True)
NO_RATES = (*NO_NUMBERS, 0)
NO_COUNTS = (*NO_WHOLE, 0)

SOURCES: list[Row] = [
    (streaming.synthetic, {"rate_hz": 1}, "make", ("len", None, 3)),
    (streaming.synthetic, {"make": int}, "rate_hz", NO_RATES),
    (streaming.synthetic, {"make": int, "rate_hz": 1}, "count", (*NO_NS, -1)),
    (streaming.synthetic, {"make": int, "rate_hz": 1}, "start_ns", NO_NS),
    (streaming.synthetic, {"make": int, "rate_hz": 1}, "pace", ("slow", None, ROWS)),
    (streaming.video_file, {}, "path", (None, 3, b"x.mp4")),
    (streaming.video_file, {"path": "x.mp4"}, "size", (8, "ab", (8, 0), (8.0, 8), (8,))),
    (streaming.video_file, {"path": "x.mp4"}, "pixels", ("rgb", None, ["gray"])),
    (streaming.video_file, {"path": "x.mp4"}, "open_timeout_s", NO_TIMES),
    (streaming.audio_file, {}, "path", (None, 3, b"x.wav")),
    (streaming.audio_file, {"path": "x.wav"}, "rate_hz", NO_COUNTS),
    (streaming.audio_file, {"path": "x.wav"}, "hop", NO_COUNTS),
    (streaming.open_video, {}, "where", (None, 0.5, b"x", ["x"])),
    (streaming.open_audio, {}, "where", (None, 0, b"x")),
    (streaming.camera, {}, "index", (-1, None, 0.5, True)),
    (streaming.camera, {}, "rate_hz", NO_RATES),
    (streaming.camera, {}, "on_event", (*NO_FUNCTIONS, waits)),
    (streaming.camera, {}, "retry", (3, "often", streaming.Backoff)),
    (streaming.microphone, {}, "name", (None, 0)),
    (streaming.microphone, {}, "hop", NO_COUNTS),
    (streaming.network, {}, "url", (None, 3, b"tcp://127.0.0.1:1")),
    (streaming.network, {"url": "tcp://127.0.0.1:1"}, "options", ("x", 3, {"x": 1}, [])),
    (streaming.network, {"url": "tcp://127.0.0.1:1"}, "uniform", (0.5, waits)),
    (streaming.Backoff, {}, "first_s", NO_RATES),
    (streaming.Backoff, {}, "factor", (*NO_NUMBERS, 0.5)),
    (streaming.Backoff, {}, "jitter", NO_SHARES),
    (streaming.Backoff, {}, "attempts", ("1", 0, 1.5, NAN, True)),
    (webrtc.PeerLimits, {}, "channels", NO_WHOLE),
    (webrtc.PeerLimits, {}, "connect_timeout_s", NO_RATES),
]

SINKS: list[Row] = [
    (webrtc.accept, {}, "offer", (None, 3, b"v=0")),
    (webrtc.accept, {"offer": "v=0"}, "limits", (3, webrtc.PeerLimits)),
    (streaming.Histogram().percentile, {}, "percent", (*NO_NUMBERS, -1, 101)),
    (streaming.audio_recorder, {}, "path", (None, 3, b"x.wav")),
    (streaming.audio_recorder, {"path": "x.wav"}, "rate_hz", NO_COUNTS),
    (streaming.audio_recorder, {"path": "x.wav"}, "most_silence_s", (*NO_NUMBERS, -1)),
    (streaming.audio_recorder, {"path": "x.wav"}, "times", ("both", None)),
    (streaming.video_recorder, {"path": "x.mp4"}, "draw", (*NO_FUNCTIONS, waits)),
    (streaming.video_recorder, {"path": "x.mp4"}, "codec", (None, 3)),
    (streaming.video_recorder, {"path": "x.mp4"}, "options", ("x", {"crf": 23})),
    (streaming.results_file, {}, "path", (None, 3)),
    (streaming.results_file, {"path": "x.csv"}, "row", (*NO_FUNCTIONS, waits)),
    (streaming.JpegWriter, {}, "quality", (*NO_WHOLE, 32)),
    (streaming.PictureServer, {}, "viewers", NO_COUNTS),
    (streaming.PictureServer, {}, "draw", (*NO_FUNCTIONS, waits)),
]

STAGES: list[Row] = [
    (streaming.Stage, {"call": nothing}, "capacity", NO_COUNTS),
    (streaming.Stage, {"call": nothing}, "concurrency", NO_COUNTS),
    (streaming.Stage, {"call": nothing}, "backlog", NO_WHOLE),
    (streaming.Stage, {"call": nothing}, "budget_ns", NO_NS),
    (streaming.Stage, {"call": nothing}, "priority", ("high", 2)),
    (streaming.Stage, {"call": nothing}, "prepare", (*NO_FUNCTIONS, waits)),
    (streaming.Stage, {"call": nothing}, "on_settled", (*NO_FUNCTIONS, waits)),
    (streaming.Graph, {}, "on_settled", (*NO_FUNCTIONS, waits)),
    (streaming.Graph, {}, "now", (None, 3, waits)),
    (streaming.Graph().source, {"source": SOURCE}, "name", (3, len)),
    (streaming.Graph().source, {"source": SOURCE}, "priority", (2,)),
    (stage_of("map"), {"call": nothing}, "concurrency", NO_COUNTS),
    (stage_of("map"), {"call": nothing}, "priority", ("high", 2)),
    (stage_of("map"), {"call": nothing}, "on_error", ("skip", None, 3)),
    (stage_of("batch"), {}, "size", NO_COUNTS),
    (stage_of("batch"), {"size": 2}, "wait_ns", (*NO_NS, -1)),
    (stage_of("window"), {}, "size", NO_COUNTS),
    (stage_of("window"), {"size": 2}, "hop", NO_COUNTS),
    (stage_of("rate"), {}, "rate_hz", NO_RATES),
    (stage_of("output"), {}, "capacity", NO_COUNTS),
]


class OpenNet(Net):
    """A network that takes any number of rows."""

    inputs = (Port("row", (0, 4), np.dtype(np.float32), 0.0, 0, 0, is_settled=False),)


POOL = memory.Pool.private(64)
RGB = memory.ImageFormat.RGB_888

OTHERS: list[Row] = [
    (memory.Pool.allocate, {}, "size", (*NO_WHOLE, 0)),
    (memory.Pool.image, {"format": RGB, "height": 8}, "width", (*NO_WHOLE, 0)),
    (memory.Pool.image, {"format": RGB, "height": 8, "width": 8}, "row_stride", ("24", 1.5, 0)),
    (memory.Pool.from_file, {}, "path", (None, 1, b"x", True)),
    (memory.Pool.from_fd, {"size": 8}, "fd", ("x", None, -1, True)),
    (POOL.array, {"dtype": np.uint8}, "shape", (3, "ab", (1.5,), None)),
    (POOL.array, {"shape": (4,)}, "dtype", ("word", 3)),
    (POOL.array, {"dtype": np.uint8, "shape": (4,)}, "offset", ("0", 0.5, None)),
    (POOL.region, {}, "offset", ("0", 0.5, None)),
    (batching.Batcher, {}, "net", ("file", None, Net)),
    (batching.Batcher, {"net": OpenNet()}, "max_rows", NO_COUNTS),
    (batching.Batcher, {"net": OpenNet()}, "window_us", (*NO_NUMBERS, -1)),
    (batching.Batcher, {"net": OpenNet()}, "when", ("never", None)),
    (ray.app, {}, "build", (None, "app")),
    (ray.app, {"build": print}, "max_queued", NO_COUNTS),
    (ray.device, {}, "name", (None, 3)),
    (ray.device, {"name": "litert-cpu"}, "cores", NO_COUNTS),
    (ray.device, {"name": "litert-cpu"}, "hang_after_s", (*NO_NUMBERS, -1)),
    (devices.keep_figures, {}, "figures", (None, "x", 3)),
    (devices.forget_verdicts, {}, "which", (None, "", 3, ["x"])),
]

DETECTOR: list[tuple[str, tuple[Any, ...]]] = [
    ("threshold", NO_SHARES),
    ("overlap", NO_SHARES),
    ("most", ("1", 1.5, -1, True)),
    ("names", NO_WORDS),
    ("outputs", NO_WORDS),
    ("fit", ("best", None)),
]


def cases() -> Iterator[Any]:
    """Each wrong value by itself."""
    micro: list[Row] = [
        (lambda **given: audio.MicroFrontend(audio.MicroFrontendConfig(**given)), {}, name, values)
        for name, values in MICRO_FRONTEND
    ]
    detector: list[Row] = [
        (vision.Detector, {"net": Net(), "head": vision.CornerHead()}, name, values)
        for name, values in DETECTOR
    ]
    for call, given, name, values in (
        *AUDIO,
        *micro,
        *HEADS,
        *VISION,
        *detector,
        *SOURCES,
        *SINKS,
        *STAGES,
        *OTHERS,
    ):
        where = getattr(call, "__qualname__", "MicroFrontendConfig").replace("<lambda>", "")
        for value in values:
            yield pytest.param(call, given, name, value, id=f"{where}-{name}-{told(value)}")


@pytest.mark.parametrize(("call", "given", "name", "value"), list(cases()))
def test_what_is_no_argument(
    call: Callable[..., Any], given: Mapping[str, Any], name: str, value: object
) -> None:
    key = "colors" if call is vision.draw and name == "color" else name
    with pytest.raises(InvalidArgument, match=name):
        call(**given, **{key: value})


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("now", "'now'"),
        (ROWS, "an array of float32 [2, 4]"),
        (waits, "the coroutine function waits"),
        (len, "the function len"),
        (object(), "of type object"),
        ("x" * 100, "of type str"),
    ],
)
def test_values_are_told_in_few_words(value: object, words: str) -> None:
    assert told(value) == words


def test_numbers_of_numpy_are_numbers_and_what_is_allowed_passes() -> None:
    for value in (0, 1, 0.5, np.float32(0.5), np.int64(1)):
        check_number("x", value, 0, 1)
    with pytest.raises(InvalidArgument, match="finite"):
        check_number("x", 10**400)
    assert words("names", ("a", "b")) == ("a", "b")
    assert words("names", []) == ()
    check_function("f", print, "a function")


ANCHORS = np.ones((1, 3, 2))

RIGHT: list[tuple[Callable[..., Any], Mapping[str, Any]]] = [
    (vision.Boxes.of, {"names": np.array(["cup", "cat"])}),
    (vision.Boxes.of, {"names": {0: "cup"}.values()}),
    (vision.Boxes.of, {"names": iter(["cup"])}),
    (vision.Detector, {"net": Net(), "head": vision.CornerHead(), "names": iter(["cup"])}),
    (vision.draw, {"picture": PICTURE.copy(), "boxes": BOXES, "colors": np.ones((2, 3), int)}),
    (vision.placement, {"width": 9, "height": 9, "into": (4, 4), "window": np.array([0, 0, 4, 4])}),
    (vision.prepare, {"picture": PICTURE, "net": PORT, "window": np.array([0, 0, 4, 4])}),
    (vision.AnchorHead, {"anchors": ROWS, "variances": np.ones(4)}),
    (vision.DistanceHead, {"cells": tuple(np.array([8, 16]))}),
    (vision.YoloGridHead, {"anchors": ANCHORS}),
    (vision.anchors_on_grids, {"size": (9, 9), "cells": np.array([8]), "sides": np.ones((1, 2))}),
    (vision.average_precisions, {"found": {0: BOXES}.values(), "truth": [BOXES]}),
    (streaming.camera, {"index": 0, "rate_hz": Fraction(30_000, 1001)}),
    (streaming.synthetic, {"make": int, "rate_hz": Fraction(30_000, 1001)}),
]


@pytest.mark.parametrize(("call", "given"), RIGHT)
def test_rows_are_rows_whatever_holds_them(
    call: Callable[..., Any], given: Mapping[str, Any]
) -> None:
    call(**given)


def test_a_window_of_an_array_is_that_of_a_tuple() -> None:
    window = np.array([1, 0, 5, 4])
    found = vision.placement(9, 9, (4, 4), window=window)  # type: ignore[arg-type]  # An array.
    assert found == vision.placement(9, 9, (4, 4), window=(1, 0, 5, 4))


def test_names_are_kept_once_they_were_read() -> None:
    boxes = vision.Boxes.of([[1, 2, 3, 4]], names=iter(["cup"]))  # type: ignore[arg-type]  # No list.
    assert boxes.names == ("cup",)


STREAM = experiments.Stream(
    name="one", arrivals=experiments.Periodic(10.0), cost=experiments.Constant(1.0)
)
WORKLOAD = experiments.Workload((STREAM,))


EXPERIMENTS: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (experiments.Periodic, {"period_ms": "10"}, "period_ms is '10', and must be a number"),
    (experiments.Constant, {"ms": None}, "ms is None, and must be a number"),
    (experiments.Constant, {"ms": True}, "ms is True, and must be a number"),
    (experiments.Steps, {"steps_ms": 3.0}, "steps_ms is 3.0, and must be a tuple"),
    (experiments.Histogram, {"edges_ms": 3, "counts": (1,)}, "edges_ms is 3"),
    (experiments.Histogram, {"edges_ms": (0, "1"), "counts": (1,)}, "edges_ms\\[1\\] is '1'"),
    (experiments.Workload, {"streams": STREAM}, "streams is .* tuple or list of Stream"),
    (experiments.simulate, {"workload": STREAM}, "workload is .*, and must be a Workload"),
    (experiments.simulate, {"workload": WORKLOAD, "record": 3}, "record is 3"),
    (experiments.offered_load, {"workload": WORKLOAD, "cores": 0}, "cores is 0"),
    (experiments.compare, {"before": WORKLOAD, "after": None}, "before is .* read_results"),
    (experiments.write_report, {"results": None, "folder": "x"}, "results is None"),
]


def test_files_of_a_workload_are_named_by_paths_too(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("time,stream\n0.1,one\n0.2,one\n")
    arrivals: Any = experiments.Trace(trace)  # type: ignore[arg-type]  # A path, not a str.
    workload = experiments.Workload((structs.replace(STREAM, arrivals=arrivals),))
    assert experiments.simulate(workload, cores=1, duration_ns=10**9).streams[0].submitted == 2


@pytest.mark.parametrize(("call", "given", "why"), EXPERIMENTS)
def test_what_is_no_experiment(call: Callable[..., Any], given: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        call(**given)


@pytest.mark.parametrize(
    ("changed", "where"),
    [
        ({"priority": "highest"}, "priority"),
        ({"arrivals": "often"}, "arrivals"),
        ({"cost": 3}, "cost"),
        ({"late": "never"}, "late"),
        ({"name": 3}, "name"),
    ],
)
def test_a_workload_made_by_a_program_is_held_to_what_a_file_is(
    changed: dict[str, Any], where: str
) -> None:
    stream = structs.replace(STREAM, **changed)
    with pytest.raises(ExperimentError, match=rf"streams\[0\]\.{where}"):
        experiments.simulate(experiments.Workload((stream,)), requests=3)


@pytest.mark.anyio
@pytest.mark.parametrize("given", [{"how": "reel"}, {"jobs": 0}, {"jobs": 1.5}, {"on_run": 3}])
async def test_ways_to_run_an_experiment_that_are_none(given: dict[str, Any]) -> None:
    experiment = experiments.Experiment(streams=(STREAM,), duration_s=0.1)
    with pytest.raises(InvalidArgument, match=next(iter(given))):
        await experiments.run(experiment, **given)
    whole: Any = WORKLOAD
    with pytest.raises(InvalidArgument, match="an Experiment, as read_experiment gives it"):
        await experiments.run(whole)


@pytest.mark.anyio
@pytest.mark.one_loop("Nothing is waited for.")
@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"path": 3}, "path is of type int"),
        ({"path": "http://10.0.0.5:7007"}, "neither the path of a socket nor an address"),
        ({"path": "x.socket", "hang_after_s": "10"}, "hang_after_s is '10'"),
        ({"path": "x.socket", "hang_after_s": NAN}, "hang_after_s is nan"),
        ({"path": "x.socket", "called": 3}, "called is 3"),
    ],
)
async def test_services_that_are_none(given: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        await nn.connect(**given)


@pytest.mark.anyio
@pytest.mark.one_loop("Nothing is waited for.")
@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"device": "litert-cpu", "path": "x.socket"}, "device is 'litert-cpu'"),
        ({"path": None}, "path is of type NoneType"),
        ({"path": "udp://0.0.0.0:7007"}, "neither the path of a socket nor an address"),
        ({"path": "x.socket", "max_priority": "low"}, "max_priority is 'low'"),
    ],
)
async def test_what_cannot_be_served(given: dict[str, Any], why: str) -> None:
    class Device:
        prepare_model = print

    with pytest.raises(InvalidArgument, match=why):
        await nn.serve(**{"device": Device(), **given})
