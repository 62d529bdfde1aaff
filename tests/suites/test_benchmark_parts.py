"""The parts of the benchmark: evaluators, comparison, times, pictures, lists."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnasync as nn
from nnasync._core.execution.ports import Port, Ports, ports_of
from nnasync.errors import InvalidArgument
from nnasync.hal import Array
from nnasync.suites import Better
from nnasync.suites.benchmark import (
    DataSequence,
    DataSet,
    DetectionPrecision,
    PhoneErrors,
    Score,
    SignalToNoise,
    SpeechDistortion,
    TimingRules,
    TopK,
    WordErrors,
    compared,
    random_data,
    read_model_list,
    subjects_in,
)
from nnasync.suites.benchmark.comparing import mcnemar
from nnasync.suites.benchmark.energy import consumed_joules, spent_joules
from nnasync.suites.benchmark.evaluators import edit_distance, rank_of, wilson
from nnasync.suites.benchmark.model_list import ListedModel, PictureFolder, subject_of
from nnasync.suites.benchmark.pictures import (
    central_square,
    labeled_pictures,
    picture_data,
    prepared,
    scaled_bilinearly,
    stated_normalization,
)
from nnasync.suites.benchmark.timing import BUCKETS, histogram, is_slower, latency_figures
from nnasync.vision import Boxes
from tests.importers.tflite.test_metadata import WHOLE, file_of, written

UINT8 = Port("image", (1, 2, 2, 3), np.dtype(np.uint8), 0.007812, 128, 0)
FLOAT = Port("image", (1, 2, 2, 3), np.dtype(np.float32), 0.0, 0, 0)


def ports(port: Port) -> Ports:
    return Ports((port,), (), (), ())


def row(*values: float) -> Array:
    return np.array([values], np.float32)


# -- evaluators


def test_equal_scores_rank_by_their_class() -> None:
    scores = row(1, 3, 3, 0)
    assert [rank_of(scores, label) for label in range(4)] == [2, 0, 1, 3]
    assert rank_of(row(float("nan"), 1), 0) == 2
    with pytest.raises(InvalidArgument, match="right class is 4, the network has 4"):
        rank_of(scores, 4)


def test_top_k_counts_shares_and_knows_what_is_expected() -> None:
    given = [(row(0, 1, 2, 3, 4, 5),)] * 10
    sequences = [DataSequence((row(0),), truth=np.array([n % 6])) for n in range(10)]
    evaluation = TopK().evaluate(sequences, given)
    assert [score.value for score in evaluation.scores] == [0.1, 0.2, 0.4, 0.6, 0.8]
    assert evaluation.faults == ()
    assert TopK(0.5).evaluate(sequences, given).faults == (
        "top 1 is 0.100 on 10 inputs; 0.500 is expected, give or take 0.05",
    )
    assert TopK(0.4).evaluate(sequences, given).faults == ()
    assert TopK().evaluate([DataSequence((row(0),))], given[:1]).scores == ()


@pytest.mark.parametrize(
    ("left", "right", "distance"),
    [("", "", 0), ("abc", "", 3), ("kitten", "sitting", 3), ("aab", "ab", 1), ("abc", "abc", 0)],
)
def test_edits(left: str, right: str, distance: int) -> None:
    codes = [list(map(ord, word)) for word in (left, right)]
    assert edit_distance(*codes) == edit_distance(*codes[::-1]) == distance


def test_phones_are_the_best_of_each_step_repetitions_included() -> None:
    steps = np.eye(3, dtype=np.float32)[[0, 0, 1, 2]][:, None]
    against_truth = DataSequence((steps,), truth=np.array([0, 1, 1, 2]))
    against_golden = DataSequence((steps,), (steps[[0, 2, 2, 3]],))
    found = PhoneErrors().evaluate([against_truth, against_golden], [(steps,), (steps,)])
    mean, largest = found.scores
    assert mean.items == (25.0, 25.0)
    assert (largest.name, largest.value) == ("largest phone error rate", 25.0)
    assert found.faults == ("sequence 1: phone error rate 25.0 % is above 5 %",)


def test_words() -> None:
    evaluator = WordErrors(lambda scores: scores.reshape(-1).astype(int).tolist())
    sequence = DataSequence((row(0),), truth=np.array([1, 2, 3, 4]))
    assert evaluator.evaluate([sequence], [(row(1, 3, 4),)]).scores[0].value == 25.0


def speech(amplitude: float, log_f0: float, voiced: float) -> Array:
    frames = np.zeros((2, 4, 49), np.float32)
    frames[..., 1:40] = amplitude
    frames[..., 0] = 100 * amplitude
    frames[..., 47], frames[..., 48] = log_f0, voiced
    return frames.reshape(2, 1, 196)


def test_speech_errors_are_roots_of_mean_squares() -> None:
    sequence = DataSequence((row(0),), (speech(0, 5, 1),))
    evaluator = SpeechDistortion()
    found = evaluator.evaluate([sequence], [(speech(5, 5.5, 1),)])
    assert [score.value for score in found.scores] == [5.0, 0.5]
    assert len(found.faults) == 2
    unvoiced = evaluator.evaluate([sequence], [(speech(3, 5.5, 0),)])
    assert [score.value for score in unvoiced.scores] == [3.0, 0.0]
    assert unvoiced.faults == ()
    scaled = SpeechDistortion(((7.0, 0.5),) * 196).evaluate([sequence], [(speech(5, 5.5, 1),)])
    assert [score.value for score in scaled.scores] == [2.5, 0.25]
    with pytest.raises(InvalidArgument, match="196 values, this one 1"):
        evaluator.evaluate([sequence], [(row(1),)])


def test_signals() -> None:
    right = DataSequence((row(0),), (row(3, 4),))
    evaluate = SignalToNoise().evaluate
    assert evaluate([right], [(row(3, 4.5),)]).scores[0].value == pytest.approx(20.0)
    assert evaluate([right], [(row(3, 4),)]).scores[0].value == 200.0
    assert evaluate([right], [(row(3, float("nan")),)]).scores[0].value == -200.0


def test_boxes() -> None:
    truth = DataSequence((row(0),), truth=np.array([[1, 0, 0, 10, 10], [2, 20, 20, 30, 30]]))
    evaluator = DetectionPrecision(lambda outputs: Boxes.of(outputs[0][:, 1:], labels=[1]))
    found = evaluator.evaluate([truth], [(np.array([[[0, 0, 0, 10, 9]]]),)])
    assert (found.scores[0].name, found.scores[0].value) == ("mAP@0.5", 0.5)


# -- comparison


def score(*items: float, better: Better = Better.MORE, margin: float = 0.0) -> Score:
    return Score("s", 0.0, items, better=better, margin=margin)


@pytest.mark.parametrize(
    ("lost", "won", "is_worse"), [(0, 0, False), (5, 0, False), (6, 0, True), (6, 4, False)]
)
def test_right_and_wrong_are_compared_by_mcnemar_too(lost: int, won: int, is_worse: bool) -> None:
    mine = [0.0] * lost + [1.0] * won + [1.0] * 30
    base = [1.0] * lost + [0.0] * won + [1.0] * 30
    verdict = compared(score(*mine), score(*base))
    assert verdict is not None
    assert verdict.is_worse is is_worse
    assert mcnemar(5, 0) == 1 / 32


def test_margins_directions_and_too_few_pairs() -> None:
    base = score(*range(10), better=Better.LESS)
    for shift, margin, is_worse in ((0.5, 0, True), (0.5, 0.6, False), (-0.5, 0, False)):
        mine = score(*(n + shift for n in range(10)), better=Better.LESS, margin=margin)
        verdict = compared(mine, base)
        assert verdict is not None
        assert verdict.loss == pytest.approx(shift)
        assert verdict.is_worse is is_worse
    few = compared(score(0, 0), score(1, 1))
    assert few is not None
    assert few.is_worse is None
    assert compared(score(1), score()) is None
    assert compared(score(float("nan")), score(1)) is None


def test_the_interval_of_a_share() -> None:
    low, high = wilson(0.5, 100)
    assert low == pytest.approx(0.404, abs=1e-3)
    assert high == pytest.approx(0.596, abs=1e-3)


# -- times


def test_rules_scale() -> None:
    rules = TimingRules().scaled(0.1)
    assert (rules.warm_up_s, rules.run_s, rules.data_limit_s) == (0.2, 1.0, 30.0)
    assert rules.compilations == 10
    for scale in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidArgument, match="positive number"):
            TimingRules().scaled(scale)


def test_histograms_hold_every_time() -> None:
    bars = histogram("latency", [0.001 * n for n in range(1, 100)])
    assert (len(bars.counts), sum(bars.counts)) == (BUCKETS, 99)
    assert bars.start == pytest.approx(1)
    assert bars.step == pytest.approx(98 / 31)
    assert bars.counts[-1] >= 1
    assert histogram("latency", [0.5, 0.5]).counts[0] == 2


def test_latencies_have_intervals_and_percentiles() -> None:
    times = [0.001, 0.002] * 50
    figures = {each.name: each for each in latency_figures("latency", times)}
    assert figures["latency mean"].value == pytest.approx(1.5)
    assert figures["latency p99"].value == pytest.approx(2)
    assert figures["latency deviation"].value == pytest.approx(0.5)
    assert is_slower([t * 1.5 for t in times], times)
    assert not is_slower(times, times)
    assert is_slower([1.0], times) is None
    assert latency_figures("latency", []) == ()


def test_no_time_is_below_zero_however_unsure_it_is() -> None:
    mean = latency_figures("latency", [0.001, 0.001, 1.0])[0]
    assert mean.low == 0
    assert mean.high is not None
    assert mean.high > mean.value


def test_energy_is_read_where_it_is_told(tmp_path: Path) -> None:
    assert consumed_joules(tmp_path) is None
    for package, micro in ((0, 5_000_000), (1, 1_000_000)):
        (tmp_path / f"intel-rapl:{package}").mkdir()
        (tmp_path / f"intel-rapl:{package}" / "energy_uj").write_text(f"{micro}\n")
    assert consumed_joules(tmp_path) == (5.0, 1.0)
    assert spent_joules((5.0, 1.0), (6.0, 3.0)) == 3.0
    assert spent_joules((5.0, 1.0), (1.0, 3.0)) is None
    assert spent_joules(None, (1.0,)) is None


# -- pictures


def test_white_stays_white_and_black_black() -> None:
    white = np.full((8, 8, 3), 255, np.uint8)
    assert set(prepared(white, UINT8, "inception").reshape(-1).tolist()) == {255}
    assert set(prepared(white * 0, UINT8, "inception").reshape(-1).tolist()) == {0}
    assert prepared(white, FLOAT, "inception").reshape(-1).tolist() == [1.0] * 12


def test_the_central_square() -> None:
    pixels = np.arange(16 * 20, dtype=np.uint8).reshape(16, 20, 1)
    square = central_square(pixels)
    assert square.shape == (14, 14, 1)
    assert square[0, 0] == pixels[1, 3]


def test_bilinear_scaling() -> None:
    pixels = np.array([[0, 100], [200, 60]], np.uint8)[..., None]
    assert scaled_bilinearly(pixels, (1, 1)).item() == 90
    assert scaled_bilinearly(pixels, (2, 2))[..., 0].tolist() == [[0, 100], [200, 60]]
    assert scaled_bilinearly(pixels, (2, 4))[0, :, 0].tolist() == [0, 25, 75, 100]


def png(value: int) -> bytes:
    """A picture of one gray, 4 by 4."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return len(data).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")

    rows = (b"\0" + bytes([value] * 4)) * 4
    head = (4).to_bytes(4, "big") * 2 + bytes([8, 0, 0, 0, 0])
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def test_folders_of_pictures_by_label(tmp_path: Path) -> None:
    pytest.importorskip("av", reason="pictures are decoded with PyAV: the extra `media`")
    for label, value in (("cat", 0), ("dog", 255)):
        (tmp_path / label).mkdir()
        (tmp_path / label / "1.png").write_bytes(png(value))
    (tmp_path / "dog" / "2.png").write_bytes(b"no picture")
    data = picture_data(labeled_pictures(tmp_path), ["dog", "cat"], ports(FLOAT))
    truths = [each.truth.tolist() for each in data.sequences if each.truth is not None]
    assert truths == [[1], [0]]
    assert [float(each.inputs[0].mean()) for each in data.sequences] == [-1.0, 1.0]
    assert data.notes == ("1 picture does not decode: dog/2.png",)
    with pytest.raises(InvalidArgument, match="1 labels are no class.* 'dog'"):
        picture_data(labeled_pictures(tmp_path), ["cat"], ports(FLOAT))


@pytest.mark.parametrize("kind", ["UINT8", "FLOAT32"])
def test_pictures_are_prepared_as_the_metadata_say(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("av", reason="pictures are decoded with PyAV: the extra `media`")
    model = file_of(tmp_path / "cats.tflite", written(WHOLE), kind)
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.png").write_bytes(png(200))
    listed = ListedModel(model.name, pictures=PictureFolder(".", preprocessing="network"))
    data = subject_of(listed, tmp_path).read_data(ports_of(nn.load(model)))
    real = (200 - 127.5) / 127.5
    wanted = round(real * 128 + 128) if kind == "UINT8" else real
    np.testing.assert_allclose(data.sequences[0].inputs[0], wanted, rtol=1e-6)
    assert stated_normalization(file_of(tmp_path / "plain.tflite", b"", kind)) is None


def test_folders_that_are_no_data(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="is no folder"):
        labeled_pictures(tmp_path / "none")
    with pytest.raises(InvalidArgument, match="has no pictures"):
        labeled_pictures(tmp_path)
    (tmp_path / "1.png").write_bytes(b"")
    with pytest.raises(InvalidArgument, match=r"1 pictures, such as 1\.png, have no label"):
        labeled_pictures(tmp_path)
    truth = tmp_path / "ground_truth.json"
    truth.write_text('[{"file": "2.png", "label": "cat"}]')
    with pytest.raises(InvalidArgument, match=r"labels of 1 pictures that are not there.*2\.png"):
        labeled_pictures(tmp_path)
    truth.write_text("{}")
    with pytest.raises(InvalidArgument, match="is no file of labels"):
        labeled_pictures(tmp_path)
    truth.write_text("[]")
    with pytest.raises(InvalidArgument, match="has no labels"):
        labeled_pictures(tmp_path)
    truth.unlink()
    (tmp_path / "ground_truth.txt").write_text("1.png,cat\n")
    assert [each.label for each in labeled_pictures(tmp_path)] == ["cat"]
    with pytest.raises(InvalidArgument, match="none of 1 pictures can be decoded"):
        picture_data(labeled_pictures(tmp_path), ["cat"], ports(FLOAT))


# -- lists


VALUES = Port("x", (1, 2), np.dtype(np.float32), 0.0, 0, 0)
BOTH = Ports((VALUES,), (VALUES,), (), ())


def test_a_list_in_toml(tmp_path: Path) -> None:
    np.arange(4, dtype="<f4").tofile(tmp_path / "in")
    (tmp_path / "list.toml").write_text(
        '[[models]]\nfile = "a/net.tflite"\nexpected_top1 = 0.5\n'
        'cases = [{inputs = ["in"], outputs = ["in"], class = 1}]\n'
    )
    (subject,) = read_model_list(tmp_path / "list.toml")
    assert (subject.name, subject.model) == ("net", tmp_path / "a" / "net.tflite")
    assert subject.evaluator == TopK(0.5)
    (sequence,) = subject.read_data(BOTH).sequences
    assert sequence.inputs[0].tolist() == sequence.golden[0].tolist() == [[[0, 1]], [[2, 3]]]
    assert sequence.truth is not None
    assert sequence.truth.tolist() == [1]


def test_a_list_of_the_originals(tmp_path: Path) -> None:
    np.arange(2, dtype="<f4").tofile(tmp_path / "in")
    np.ones(392, "<f4").tofile(tmp_path / "scales")
    models: list[dict[str, Any]] = [
        {
            "name": "tts",
            "modelFile": "tts_float",
            "baselineSec": 0.1,
            "inputOutputs": [{"input": "in", "outputs": ["in"]}],
            "evaluator": {"className": "MelCepLogF0", "outputMeanStdDev": "scales"},
        },
        {
            "name": "asr",
            "modelFile": "asr_float",
            "inputOutputs": [{"input": "in", "output": "in"}],
            "evaluator": {"className": "PhoneErrorRate"},
        },
    ]
    (tmp_path / "list.json").write_text(json.dumps({"models": models}))
    tts, asr = read_model_list(tmp_path / "list.json")
    assert tts.model == tmp_path / "tts_float.tflite"
    assert tts.evaluator == SpeechDistortion(((1.0, 1.0),) * 196)
    assert asr.evaluator == PhoneErrors()
    assert asr.read_data(BOTH).steps == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x", "is no list of models"),
        ('{"models": []}', "lists no models"),
        ('{"models": [{"file": "a", "evaluator": "best"}]}', r"models\[0\]\.evaluator"),
        ('{"models": [{"file": "a", "fil": 1}]}', "unknown field `fil`"),
        (
            '{"models": [{"modelFile": "a", "evaluator": {"className": "X"}}]}',
            r"Invalid enum value 'X'",
        ),
        ('{"models": [{"modelFile": "a", "inputOutputs": 1}]}', "is no list of models"),
        ('{"models": [{"modelFile": "a", "dataset": 1}]}', "is no list of models"),
    ],
)
def test_files_that_are_no_lists(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "list.json").write_text(text)
    with pytest.raises(InvalidArgument, match=told):
        read_model_list(tmp_path / "list.json")


@pytest.mark.parametrize("size", [0, 3, 12])
def test_files_of_half_steps(tmp_path: Path, size: int) -> None:
    (tmp_path / "in").write_bytes(bytes(size))
    (tmp_path / "list.json").write_text(
        '{"models": [{"file": "a", "cases": [{"inputs": ["in"]}]}]}'
    )
    (subject,) = read_model_list(tmp_path / "list.json")
    with pytest.raises(InvalidArgument, match=f"has {size} bytes; a step of x .* has 8"):
        subject.read_data(BOTH)


def test_places_of_models(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="has no models"):
        subjects_in(tmp_path)
    (tmp_path / "b.nnm").touch()
    (tmp_path / "a.onnx").touch()
    assert [each.name for each in subjects_in(tmp_path)] == ["a", "b"]
    assert [each.name for each in subjects_in(tmp_path / "b.nnm")] == ["b"]
    (tmp_path / "benchmark.toml").write_text('[[models]]\nfile = "c.nnm"\n')
    assert [each.name for each in subjects_in(tmp_path)] == ["c"]
    with pytest.raises(InvalidArgument, match="there is no file"):
        subjects_in(tmp_path / "none.nnm")
    with pytest.raises(InvalidArgument, match="neither a model"):
        subjects_in(tmp_path / "text.txt")


def test_random_data_fit_the_inputs() -> None:
    data = random_data(ports(UINT8))
    assert data.sequences[0].inputs[0].shape == (1, *UINT8.shape)
    assert data.sequences[0].inputs[0].dtype == np.uint8
    open_shape = Port("x", (0, 2), np.dtype(np.float32), 0.0, 0, 0, is_settled=False)
    with pytest.raises(InvalidArgument, match="'x' has the open shape"):
        random_data(ports(open_shape))


def test_a_share_of_the_data_is_spread_evenly() -> None:
    data = DataSet(tuple(DataSequence((row(n),)) for n in range(1000)))
    some = [int(each.inputs[0].item()) for each in data.sampled(0.1).sequences]
    assert some == list(range(0, 1000, 10))
    assert len(data.sampled(0.001).sequences) == 20
    assert data.sampled(3.0) == data
