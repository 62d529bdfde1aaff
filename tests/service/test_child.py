"""The process that is started for a device, before it serves."""

from __future__ import annotations

import msgspec
import pytest

import nnasync as nn
from nnasync._core.drivers.service.child import _environment

GIVEN = {"PATH": "/bin"}


def settings(options: nn.Options) -> str:
    return msgspec.json.encode(options).decode()


@pytest.mark.parametrize("told", ["{}", settings(nn.Options())])
def test_it_starts_no_threads_of_blas(told: str) -> None:
    assert _environment(told, GIVEN) == GIVEN | {"OPENBLAS_NUM_THREADS": "1"}


def test_what_the_user_says_of_blas_holds() -> None:
    given = GIVEN | {"OPENBLAS_NUM_THREADS": "3"}
    assert _environment("{}", given) == given
    assert _environment(settings(nn.Options(blas_threads=None)), GIVEN) == GIVEN
