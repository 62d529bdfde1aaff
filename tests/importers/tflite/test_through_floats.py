"""DIV of bytes, by hand: LiteRT's own kernel gives an end of the range for small quotients."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nnasync._core.importers.tflite import translate
from tests.importers.tflite.judge import reference
from tests.importers.tflite_files import Op, T, tflite_file


def test_quotients_of_bytes(tmp_path: Path) -> None:
    a, b, y = (T("UINT8", (1, 4), None, (scale,), (120,)) for scale in (0.05, 0.07, 0.11))
    path = tmp_path / "quotients.tflite"
    options = {"FusedActivationFunction": 0}
    path.write_bytes(
        tflite_file([a, b, y], [Op("DIV", (0, 1), (2,), "DivOptions", options)], [0, 1], [2])
    )
    given = [np.array([values], np.uint8) for values in ([123, 124, 255, 0], [224, 24, 130, 121])]
    (got,) = reference(translate(path), given)
    real = (given[0] - 120.0) * 0.05 / ((given[1] - 120.0) * 0.07) / 0.11 + 120
    np.testing.assert_array_equal(got, np.rint(real).clip(0, 255))
