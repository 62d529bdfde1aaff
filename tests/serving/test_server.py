"""The server without a front."""

from __future__ import annotations

import gc
import weakref

import pytest

from nnasync.serving import ServingError
from nnasync.serving.messages import InferRequest, InputTensor
from tests.serving.small_models import ident, served

pytestmark = pytest.mark.anyio


async def test_a_request_that_is_refused_is_let_go_of() -> None:
    """Without a collection: bodies may be large."""
    async with served(ident()) as server:
        request = InferRequest("ident", inputs=(InputTensor("x", "FP32", (1, 3), b"short"),))
        collects = gc.isenabled()
        gc.disable()
        try:
            gone: list[weakref.ref[BaseException]] = []
            for _ in range(2):
                try:
                    await server.infer(request)
                except ServingError as error:
                    gone.append(weakref.ref(error))
                    assert error.__cause__ is not error
            assert [each() for each in gone] == [None, None]
        finally:
            if collects:
                gc.enable()
