"""Values of a file that would take more memory than they may are refused before an engine runs."""

from __future__ import annotations

import pytest

from nnasync._core.formats.value_sizes import check_model, check_value
from nnasync._core.model import ModelBuilder
from nnasync.errors import ModelError


def test_a_value_may_take_four_times_the_file_and_some() -> None:
    check_value("it", (4, 2), (512 << 20) + 4 * 100, 100)
    with pytest.raises(ModelError, match=r"it of shape \[4, 2\] takes 536871313 bytes"):
        check_value("it", (4, 2), (512 << 20) + 4 * 100 + 1, 100)


@pytest.mark.parametrize(("rows", "is_legal"), [(1 << 10, True), (1 << 14, False)])
def test_operands_of_a_model(rows: int, is_legal: bool) -> None:
    m = ModelBuilder()
    x = m.input("x", (rows, rows))
    m.output("y", m.relu(x))
    model = m.build()
    if is_legal:
        check_model(model, 0)
    else:
        with pytest.raises(ModelError, match="operand 0 of shape"):
            check_model(model, 0)
