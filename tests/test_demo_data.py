"""The demo's clips and networks: complete, consistent, and right often enough.

The networks run on the reference kernels, every frame and every hop of the committed clips.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from nnasync import vision
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.model import load_nnm
from nnasync._core.workers import StopFlag
from nnasync.cli import demo_data
from nnasync.cli.recognition import (
    NONE,
    Word,
    WordDecoder,
    digit_accuracy,
    word_accuracy,
)
from nnasync.hal import Array, ExecutionPreference, Model, Operand, StatePair
from tests import rigs

av = pytest.importorskip("av", reason="the clips are decoded with PyAV: the extra `media`")

HOP = 160
SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"


class Stepper:
    """A model bound to arrays of its own, its state carried from run to run."""

    def __init__(self, model: Model) -> None:
        self.inputs = [np.zeros(o.dimensions, np.float32) for o in operands(model, "inputs")]
        self.outputs = [np.zeros(o.dimensions, np.float32) for o in operands(model, "outputs")]
        self._state = model.state
        plan = ReferenceEngine().compile(model, ExecutionPreference.SUSTAINED_SPEED)
        self._call = plan.bind(self.inputs, self.outputs)
        self._stop = StopFlag()

    def __call__(self, x: Array) -> Array:
        self.inputs[0][...] = x.reshape(self.inputs[0].shape)
        assert self._call.run(self._stop)
        for pair in self._state:
            self.inputs[pair.input][...] = self.outputs[pair.output]
        return self.outputs[0].copy()


def operands(model: Model, side: str) -> list[Operand]:
    main = model.main
    indexes = main.input_indexes if side == "inputs" else main.output_indexes
    return [main.operands[index] for index in indexes]


def pictures() -> Iterator[Array]:
    with av.open(str(demo_data.path("digits.mp4"))) as container:
        for frame in container.decode(video=0):
            yield frame.to_ndarray(format="gray")


def sound() -> Array:
    with av.open(str(demo_data.path("words.flac"))) as container:
        parts = [frame.to_ndarray()[0] for frame in container.decode(audio=0)]
    return np.concatenate(parts)


def hear(network: Stepper, samples: Array) -> list[Word]:
    decoder = WordDecoder()
    hops = samples.reshape(-1, HOP).astype(np.float32) / 32768
    events = [decoder.feed(number, network(hop)) for number, hop in enumerate(hops)]
    return [event for event in events if event is not None]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Keep matrix products on one thread, as a device's workers do."""
    with threadpool_limits(1):
        yield


@pytest.fixture(scope="module")
def heard(one_thread: None) -> list[Word]:
    return hear(Stepper(load_nnm(demo_data.path("words.nnm"))), sound())


@pytest.fixture(scope="module")
def video() -> Array:
    return np.stack(list(pictures()))


def test_unknown_file_is_refused_by_name() -> None:
    with pytest.raises(FileNotFoundError, match=r"no-such\.nnm.*digits\.nnm"):
        demo_data.path("no-such.nnm")


def test_video_has_a_label_for_every_frame(video: Array) -> None:
    truth = demo_data.video_truth()
    assert video.shape == (len(truth.labels), 64, 64)
    assert video.dtype == np.uint8
    assert len(truth.labels) == 60 * truth.fps
    assert set(truth.labels) == set(range(NONE + 1))


def test_sound_is_a_minute_and_its_words_follow_one_another() -> None:
    truth = demo_data.words_truth()
    samples = sound()
    assert samples.dtype == np.int16
    assert len(samples) == 60 * truth.rate
    assert {word.label for word in truth.words} == set(range(10))
    assert len(truth.names) == 10
    assert all(0 <= word.start < word.end <= len(samples) for word in truth.words)
    assert all(a.end < b.start for a, b in itertools.pairwise(truth.words))


def test_words_are_louder_than_the_pauses() -> None:
    samples = sound().astype(float)
    spoken = np.zeros(len(samples), bool)
    for word in demo_data.words_truth().words:
        spoken[word.start : word.end] = True
    assert (samples[spoken] ** 2).mean() > 5 * (samples[~spoken] ** 2).mean()


@pytest.mark.parametrize("name", ["digits", "digits_large"])
def test_digit_networks_map_a_picture_to_probabilities(name: str) -> None:
    model = load_nnm(demo_data.path(f"{name}.nnm"))
    (image,), (scores,) = operands(model, "inputs"), operands(model, "outputs")
    assert (image.name, image.dimensions) == ("image", (1, 64, 64, 1))
    assert (scores.name, scores.dimensions) == ("scores", (1, NONE + 1))
    result = Stepper(model)(np.full((64, 64), 0.5))
    assert result.sum() == pytest.approx(1, abs=1e-5)
    assert (result >= 0).all()


def test_word_network_carries_its_state() -> None:
    model = load_nnm(demo_data.path("words.nnm"))
    inputs, outputs = operands(model, "inputs"), operands(model, "outputs")
    assert (inputs[0].name, inputs[0].dimensions) == ("hop", (1, HOP))
    assert (outputs[0].name, outputs[0].dimensions) == ("scores", (1, NONE + 1))
    assert model.state == tuple(StatePair(n, n) for n in range(1, len(inputs)))
    assert all(inputs[p.input].dimensions == outputs[p.output].dimensions for p in model.state)
    network = Stepper(model)
    noise = np.random.default_rng(0).normal(0, 0.1, (3, HOP))
    first, *_ = [network(hop) for hop in noise]
    assert np.array_equal(network.inputs[1][0, -HOP:], noise[-1].astype(np.float32))
    assert not np.array_equal(network(noise[0]), first)


@pytest.mark.parametrize(("name", "every"), [("digits", 1), ("digits_large", 10)])
def test_digits_are_seen_frame_by_frame(name: str, every: int, video: Array) -> None:
    network = Stepper(load_nnm(demo_data.path(f"{name}.nnm")))
    seen = {n: int(network(image / 255).argmax()) for n, image in enumerate(video[::every])}
    assert digit_accuracy(seen, demo_data.video_truth().labels[::every]) >= 0.97


def test_words_are_heard(heard: list[Word]) -> None:
    assert word_accuracy(heard, demo_data.words_truth().words) >= 0.9


def test_a_track_without_words_is_heard_as_such() -> None:
    noise = np.random.default_rng(4).normal(0, 500, 10 * 16_000).astype(np.int16)
    assert hear(Stepper(load_nnm(demo_data.path("words.nnm"))), noise) == []


@pytest.mark.anyio
@pytest.mark.one_loop("the network is the same on each")
async def test_digits_are_found_and_read_in_scenes_that_training_never_saw(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    fresh = importlib.import_module("training.detection_scenes").scenes(770_001, 40)
    truth = [vision.Boxes.of(scene.boxes, labels=scene.labels) for scene in fresh]
    async with rigs.runtime() as runtime:
        net = await runtime.compile(demo_data.path("detector.nnm"))
        detect = demo_data.digit_detector(net, threshold=0.05)
        found = [await detect(scene.image) for scene in fresh]
        names = {box.label: box.name for boxes in found for box in boxes}
    assert vision.mean_average_precision(found, truth) >= 0.9
    assert vision.mean_average_precision(found[1:], truth[:-1]) < 0.1
    assert names == {digit: str(digit) for digit in range(10)}
    assert demo_data.path("detector.nnm").stat().st_size <= 1_000_000


@pytest.mark.anyio
@pytest.mark.one_loop("the network is the same on each")
async def test_digits_of_a_clip_are_found_read_and_followed() -> None:
    truth = demo_data.scene_truth()
    tracker, found, things = vision.Tracker(), [], vision.Boxes.of()
    async with rigs.runtime() as runtime:
        net = await runtime.compile(demo_data.path("detector.nnm"))
        detect = demo_data.digit_detector(net)
        with av.open(str(demo_data.path("scene.mp4"))) as container:
            for number, frame in enumerate(container.decode(video=0)):
                if number % 4 == 0:
                    found.append(await detect(frame))
                    things = tracker.update(found[-1], number * 1_000_000_000 // truth.fps)
    boxes = [vision.Boxes.of(frame, labels=truth.labels) for frame in truth.boxes[::4]]
    assert vision.mean_average_precision(found, boxes) >= 0.95
    assert sorted(int(box.name) for box in things) == sorted(truth.labels)
    assert things.identities is not None
    assert set(things.identities) == set(range(len(truth.labels)))


def test_the_same_events_under_other_names_are_wrong(heard: list[Word]) -> None:
    renamed = [Word((event.label + 1) % 10, event.hop, event.score) for event in heard]
    assert word_accuracy(renamed, demo_data.words_truth().words) < 0.1
