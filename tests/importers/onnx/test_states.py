"""Shapes and states of ONNX files: dimensions that become known, and outputs that are fed back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import nnasync as nn
from nnasync.errors import InvalidArgument, ModelError
from tests.importers.onnx.files import FLOAT, INT64, Port, message, node, written

BATCHED: list[Port] = [("x", FLOAT, ("batch", 2)), ("state", FLOAT, ("batch", 2))]
OUTPUTS: list[Port] = [("y", FLOAT, ("batch", 2)), ("stateN", FLOAT, ("a", "b"))]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A sum of all that came, behind a product that is the identity."""
    nodes = [
        node("Einsum", ["x", "eye"], ["v"], equation="ij,jk->ik"),
        node("Add", ["v", "state"], ["stateN"]),
        node("Tanh", ["stateN"], ["y"]),
    ]
    eye = np.eye(2, dtype=np.float32)
    return written(tmp_path, message(nodes, BATCHED, OUTPUTS, {"eye": eye}))


def test_a_dimension_that_becomes_known_is_known_wherever_it_is_named(path: Path) -> None:
    model = nn.load(path, shapes={"x": (3, 2)})
    shapes = [o.dimensions for o in model.main.operands if o.name in ("x", "state", "y")]
    assert shapes == [(3, 2)] * 3
    open_again = nn.load(path, shapes={"x": (None, 2)})
    assert open_again.main.operands[0].dimensions == (0, 2)


def test_shapes_that_contradict_the_file(path: Path) -> None:
    for shapes, reason in (
        ({"x": (1, 3)}, "input 'x' has shape .None, 2., not .1, 3."),
        ({"y": (1, 3)}, "output 'y' has shape .None, 2., not .1, 3."),
        ({"z": (1,)}, "has no input 'z', only state, x"),
        ({"x": (1, 2), "state": (2, 2)}, "gives 'batch' the sizes 1 and 2"),
    ):
        with pytest.raises(InvalidArgument, match=reason):
            nn.load(path, shapes=shapes)


@pytest.mark.anyio
async def test_a_guessed_state_is_carried_by_a_burst(path: Path) -> None:
    model = nn.load(path, shapes={"x": (1, 2)}, state="guess")
    async with nn.open_runtime() as runtime:
        net = await runtime.compile(model)
        assert [port.name for port in (*net.inputs, *net.outputs)] == ["x", "y"]
        one = np.full((1, 2), 0.25, np.float32)
        async with net.burst() as burst:
            got = [await burst(one) for _ in range(3)]
        for times, result in enumerate(got, 1):
            np.testing.assert_allclose(result, np.tanh(one * times), rtol=1e-5)
        await net.close()


def test_a_state_must_have_a_size_and_a_guess_is_told(path: Path) -> None:
    with pytest.raises(ModelError, match=r"input 'state' has open dimensions.*shapes="):
        nn.load(path, state="guess")
    found = nn.describe(path)
    assert found.guessed_states == (("stateN", "state"),)
    assert "stateN is named like the next state: state={'stateN': 'state'}" in str(found)


@pytest.mark.anyio
async def test_a_voice_detector_keeps_its_state(shared: Path) -> None:
    """The stream of a public model, fed by hand on ONNX Runtime."""
    path = shared / "user_models" / "silero_vad_16k_op15.onnx"
    model = nn.load(path, shapes={"input": (1, 576)}, state="guess")
    session = pytest.importorskip("onnxruntime").InferenceSession(path)
    state, rate = np.zeros((2, 1, 128), np.float32), np.array(16000, np.int64)
    rng = np.random.default_rng(0)
    async with nn.open_runtime() as runtime:
        net = await runtime.compile(model)
        async with net.burst() as burst:
            for _ in range(3):
                sound = rng.standard_normal((1, 576)).astype(np.float32) / 4
                got = await burst(sound, np.array([16000], np.int32))
                feeds = {"input": sound, "state": state, "sr": rate}
                wanted, state = session.run(None, feeds)
                np.testing.assert_allclose(got, wanted, atol=1e-4)
        await net.close()


@pytest.mark.anyio
async def test_an_output_whose_shape_no_inference_finds_may_be_given_one(tmp_path: Path) -> None:
    """As in detectors of speech, whose branches hide it."""
    ports: list[Port] = [*BATCHED, ("size", INT64, (2,))]
    nodes = [
        node("Add", ["x", "state"], ["stateN"]),
        node("Reshape", ["stateN", "size"], ["y"]),
    ]
    path = written(tmp_path, message(nodes, ports, [("y", FLOAT, ("c", "d")), OUTPUTS[1]]))
    shapes, size, one = {"x": (1, 2)}, np.array([2, 1]), np.ones((1, 2), np.float32)
    async with nn.open_runtime() as runtime:
        open_net = await runtime.compile(nn.load(path, shapes=shapes, state="guess"))
        async with open_net.burst() as burst:
            with pytest.raises(InvalidArgument, match="find them: y"):
                await burst(one, size)
        model = nn.load(path, shapes={**shapes, "y": (2, 1)}, state="guess")
        net = await runtime.compile(model)
        async with net.burst() as burst:
            for times in (1, 2, 3):
                assert (await burst(one, size)).tolist() == [[times], [times]]
