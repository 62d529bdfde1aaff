"""What the readers of pages have: models, pictures, cameras, clients, services.

Each is a generator, which stops for the next block of its page to run: what it does before gives
the block what it needs, and what it does after checks what came of it.
"""

from __future__ import annotations

import functools
import wave
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from nnasync import experiments, streaming
from nnasync.conformance import hal_suite
from nnasync.streaming import Item, synthetic
from nnasync.vision import Boxes
from tests.documents.pages import PICTURE, REFERENCE, Page
from tests.documents.readers_of_applications import of_ray_and_others, with_models_to_serve
from tests.documents.readers_of_devices import with_services
from tests.documents.readers_of_streams import with_cameras
from tests.importers.tflite_files import T, floats

Reader = Callable[[Page], Iterator[None]]
NO_BOXES = Boxes(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64))


def having(**things: Any) -> Reader:
    """A reader who has these things, and the model of detectors."""

    def reader(page: Page) -> Iterator[None]:
        page.write_detector()
        page.space.update(things)
        yield from ()

    return reader


def who_experiments(page: Page) -> Iterator[None]:
    """On ideal cores: to measure what calls cost here takes seconds."""
    ideal = functools.partial(experiments.Experiment, overheads="none")
    page.patch.setattr(experiments, "Experiment", ideal)
    yield
    assert len(page.space["results"].runs) == 4


def with_a_cache(page: Page) -> Iterator[None]:
    page.write_detector()
    page.space["model"] = "detector.tflite"
    yield
    page.run("rt = await nn.open_runtime()")
    yield
    yield
    page.run("await rt.aclose()")


def of_fifteen_lines(page: Page) -> Iterator[None]:
    page.write_detector()
    hops = synthetic(lambda _: PICTURE, rate_hz=100, count=3, pace="fast")
    page.space.update(frame=PICTURE, microphone=_data_of(hops))
    yield


async def _data_of(items: Any) -> Any:
    async with items:
        async for item in items:
            yield item.data


def with_sound(page: Page) -> Iterator[None]:
    """One second of a tone, and a network for its features."""
    features = T("INT8", (1, 49 * 40), None, (0.1,), (-128,))
    page.write_tflite("micro_speech.tflite", features, "RELU")
    tone = np.sin(np.arange(16000) * 0.3).astype(np.float32)
    with wave.open(str(page.folder / "yes.wav"), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes((tone * 20000).astype("<i2").tobytes())
    fast = functools.partial(streaming.audio_file, pace="fast")
    page.patch.setattr(streaming, "audio_file", fast)
    yield
    page.space["item"] = Item(0, 1, tone[:160])
    yield


def with_onnx_runtime(page: Page) -> Iterator[None]:
    page.write_onnx("model.onnx")
    page.space["x"] = PICTURE
    page.run("import asyncio\nloop = asyncio.get_running_loop()\nawait asyncio.sleep(0)")
    yield
    np.testing.assert_allclose(page.space["y"], np.tanh(PICTURE), rtol=1e-6)


def with_a_device(page: Page) -> Iterator[None]:
    """One whose first group of checks is enough: the suite has tests of its own."""
    plan = functools.partial(hal_suite.SuitePlan, only="basics")
    page.patch.setattr(hal_suite, "SuitePlan", plan)
    page.run(f"rt = await nn.open_runtime()\ndevice = rt.device({REFERENCE!r})")
    yield
    assert page.space["report"].counts.passed > 0
    page.run("await rt.aclose()")


def who_looks(page: Page) -> Iterator[None]:
    """Of instruments, metrics and spans; ports are whichever are free."""
    from nnasync.tracing import endpoint

    page.write_tflite("model.tflite", floats(1, 4))
    page.space.update(frame=PICTURE, begun_ns=1, ended_ns=2)
    serve = endpoint.serve_metrics
    page.patch.setattr(endpoint, "serve_metrics", lambda source, port: serve(source))
    yield
    assert {"first frame", "frame 7"} <= {r.name for r in page.space["timeline"].records}
    assert (page.folder / "trace.json").stat().st_size > 100
    yield
    yield
    assert page.space["endpoint"].url.startswith("http://127.0.0.1:")
    yield
    yield


READERS: dict[str, Reader] = {
    "README.md": of_fifteen_lines,
    "docs/asgi.md": of_ray_and_others,
    "docs/audio.md": with_sound,
    "docs/caching.md": with_a_cache,
    "docs/coming_from.md": with_onnx_runtime,
    "docs/conformance.md": with_a_device,
    "docs/errors.md": having(),
    "docs/experiments.md": who_experiments,
    "docs/index.md": having(),
    "docs/policies.md": having(),
    "docs/scripts_and_notebooks.md": having(picture=PICTURE, hops=[PICTURE, PICTURE]),
    "docs/service.md": with_services,
    "docs/serving.md": with_models_to_serve,
    "docs/simulator.md": having(),
    "docs/streaming.md": with_cameras,
    "docs/tracing.md": who_looks,
    "docs/vision.md": having(item=Item(0, 1, None), boxes=NO_BOXES),
}
"""The reader of each page; other tests run the code of pages that are not here."""
