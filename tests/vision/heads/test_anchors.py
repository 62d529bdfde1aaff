"""Heads with anchors: the SSD encoding undone, and the anchors of a grid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import InvalidArgument
from nnasync.hal import Array
from nnasync.vision import (
    AnchorHead,
    Boxes,
    CornerHead,
    Detector,
    Head,
    Normalization,
    anchors_on_grids,
)
from tests import rigs

SIZE = (100, 200)
VARIANCES = np.array([0.1, 0.1, 0.2, 0.2])
shares = st.tuples(*[st.floats(0.1, 0.9)] * 2, *[st.floats(0.05, 0.9)] * 2)


def encoded(box: np.ndarray, anchor: np.ndarray) -> np.ndarray:
    """As training of SSD has it: center and sides of a box, seen from an anchor."""
    moves = (box[:2] - anchor[:2]) / anchor[2:]
    both: np.ndarray = np.concatenate([moves, np.log(box[2:] / anchor[2:])]) / VARIANCES
    return both


@given(shares, shares)
def test_what_was_encoded_is_decoded(box: tuple[float, ...], anchor: tuple[float, ...]) -> None:
    moves = encoded(np.array(box), np.array(anchor))[None].astype(np.float32)
    anchors = np.array([anchor], np.float32)
    x, y, w, h = np.array(box) * (200, 100, 200, 100)
    expected = [x - w / 2, y - h / 2, x + w / 2, y + h / 2]
    for order, turned in (("xywh", moves), ("yxhw", moves[:, [1, 0, 3, 2]])):
        head = AnchorHead(anchors, order=order)  # type: ignore[arg-type]  # one of the two
        (found,) = head.decode([turned, np.array([[0.1, 0.2, 0.7]])], SIZE, 0.5)
        assert [found.left, found.top, found.right, found.bottom] == pytest.approx(
            expected, abs=0.02
        )
        assert found.label == 1


def test_the_background_is_no_class() -> None:
    anchors = np.full((2, 4), 0.5, np.float32)
    moves, logits = np.zeros((1, 2, 4)), np.log([[[0.8, 0.1, 0.1], [0.2, 0.7, 0.1]]])
    (found,) = AnchorHead(anchors, scores="softmax").decode([moves, logits], SIZE, 0.5)
    assert found.label == 0
    assert found.score == pytest.approx(0.7)
    every = AnchorHead(anchors, scores="softmax", background=None)
    assert every.decode([moves, logits], SIZE, 0.5).labels.tolist() == [0, 1]


def test_anchors_are_in_the_middle_of_their_cells() -> None:
    anchors = anchors_on_grids((24, 40), (8, 16), ((10, (4, 2)), (20,)))
    assert anchors.shape == (3 * 5 * 2 + 2 * 3, 4)
    assert anchors[:3] * (40, 24, 40, 24) == pytest.approx(
        np.array([[4, 4, 10, 10], [4, 4, 4, 2], [12, 4, 10, 10]]), abs=1e-5
    )
    assert anchors[-1] == pytest.approx([2.5 / 3, 0.75, 0.5, 20 / 24])


@pytest.mark.parametrize("anchors", [[[0, 0, 1, 1]], np.zeros(4), np.zeros((2, 3))])
def test_what_are_no_anchors_is_refused(anchors: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"float32 array \[n, 4\]"):
        AnchorHead(anchors)


def test_other_numbers_of_anchors_are_refused() -> None:
    head = AnchorHead(np.zeros((3, 4), np.float32))
    with pytest.raises(InvalidArgument, match="the network moves 2"):
        head.decode([np.zeros((1, 2, 4)), np.zeros((1, 2, 2))], SIZE, 0.5)


@pytest.mark.anyio
@pytest.mark.one_loop("the numbers are the same on each")
async def test_a_public_face_detector_and_its_own_decoder_agree(shared: Path) -> None:
    """One file gives moves of anchors, the other decodes them by operations of its own."""
    av = pytest.importorskip("av", reason="PyAV comes with the extra `media`")
    sides = ((10, 16, 24), (32, 48), (64, 96), (128, 192, 256))
    anchors = AnchorHead(anchors_on_grids((240, 320), (8, 16, 32, 64), sides))
    files: dict[str, tuple[Head, tuple[str, ...]]] = {
        "version-RFB-320.onnx": (CornerHead(background=0), ("boxes", "scores")),
        "version-RFB-320_without_postprocessing.tflite": (anchors, ()),
    }
    found: list[Boxes] = []
    with av.open(str(shared / "models" / "images" / "image-285.jpeg")) as container:
        photo: Array = next(container.decode(video=0)).to_ndarray(format="rgb24")
    async with rigs.runtime() as runtime:
        for name, (head, outputs) in files.items():
            net = await runtime.compile(shared / "user_models" / name)
            detect = Detector(
                net,
                head,
                outputs=outputs,
                normalization=Normalization((127.0,), (128.0,)),
                fit="stretch",
                overlap=0.3,
            )
            found.append(await detect(photo))
            net.close()
    own, ours = found
    assert len(own) == 2
    assert ours.corners == pytest.approx(own.corners, abs=0.5)
    assert ours.scores == pytest.approx(own.scores, abs=1e-3)
