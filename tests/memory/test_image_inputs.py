"""Images as inputs and outputs: read in place where that is possible, else copied once and counted.

A padded row has bytes behind its pixels that must never come out of a network.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import nnasync as nn
from nnasync._core.drivers.null import NullEngine
from nnasync._core.validation import validate_request
from nnasync._core.wire.messages import Launch, OfferMemory, PoolForm, encode
from nnasync.burst import BurstArguments
from nnasync.errors import BadState, GeneralFailure, InvalidArgument, ModelError
from nnasync.hal import Array, DataLocation, ExecutionConfig, OperandType, Request, RequestArgument
from nnasync.memory import IMAGE, ImageFormat, ImageLayout, Pool, statistics
from tests import rigs
from tests.memory.engines import need
from tests.memory.handles import dense
from tests.service.rig import served

pytestmark = [
    pytest.mark.one_loop("The loop has no part in it."),
    pytest.mark.anyio,
    pytest.mark.usefixtures("no_leaks"),
]

RGB, RGBA, YCBCR = ImageFormat.RGB_888, ImageFormat.RGBA_8888, ImageFormat.YCBCR_420
WIDTH, HEIGHT = 5, 6
WHOLE = RequestArgument(location=DataLocation(0, 0, 0))
PIXELS = WIDTH * HEIGHT * 3


def model(channels: int = 3, shape: tuple[int, ...] = ()) -> nn.Model:
    """Output y = max(x, 3), quantized."""
    builder = nn.ModelBuilder("picture")
    shape = shape or (1, HEIGHT, WIDTH, channels)
    x = builder.input("x", shape, type=OperandType.TENSOR_QUANT8_ASYMM, scale=0.5, zero_point=3)
    builder.output("y", builder.relu(x))
    return builder.build()


def picture(row_stride: int | None = None, format: ImageFormat = RGB, seed: int = 0) -> Pool:
    """An image of noise with 255 in the padding."""
    image = Pool.image(format, WIDTH, HEIGHT, row_stride=row_stride)
    image.view[:] = b"\xff" * image.size
    pixels = image.planes[0]
    pixels[...] = np.random.default_rng(seed).integers(0, 200, pixels.shape)
    return image


def right(image: Pool) -> Array:
    return np.maximum(image.planes[0], 3)[np.newaxis]


async def ran(net: nn.Net, how: str, image: Pool) -> Any:
    if how == "call":
        return await net(image)
    if how == "launch":
        with await net.launch(image) as launched:
            return await launched.result()
    async with net.burst() as burst:
        return await burst(image)


# padded: bytes copied of an image with 18 bytes a row (6 pixels), and with 32, which is no number
# of pixels
COPIES = {"nnasync-reference": 0, "litert-cpu": 0, "openvino-cpu": PIXELS}
"""Bytes copied of an image with padded rows."""


@pytest.mark.parametrize("how", ["call", "launch", "burst"])
@pytest.mark.parametrize("name", COPIES)
async def test_an_image_is_read_in_place_where_that_is_possible(name: str, how: str) -> None:
    need(name)
    async with rigs.runtime(name) as runtime:
        net = await runtime.compile(model())
        # Rows of 15 bytes, of 6 pixels, and of no whole number of pixels.
        for stride, copied in ((None, 0), (18, COPIES[name]), (32, COPIES[name]), (None, 0)):
            with picture(stride) as image:
                for seed in range(3):
                    image.planes[0][...] = np.random.default_rng(seed).integers(0, 200, (6, 5, 3))
                    before = statistics().copied_bytes
                    assert (await ran(net, how, image) == right(image)).all()
                    assert statistics().copied_bytes - before == copied


@pytest.mark.parametrize("name", COPIES)
async def test_an_image_stays_as_it_is_when_one_with_padding_follows(name: str) -> None:
    """What an engine copies itself it must not copy over memory of somebody else."""
    need(name)
    async with rigs.runtime(name) as runtime:
        net = await runtime.compile(model())
        with picture(None, seed=1) as dense_image, picture(18, seed=2) as padded:
            before = bytes(dense_image.view), bytes(padded.view)
            for _ in range(2):
                assert (await net(dense_image) == right(dense_image)).all()
                assert (await net(padded) == right(padded)).all()
            assert (bytes(dense_image.view), bytes(padded.view)) == before


async def test_an_engine_that_takes_no_padding_gets_a_copy() -> None:
    """As onnxruntime-cpu, and every engine that says nothing about it."""

    def compute(inputs: Any) -> list[Array]:
        return [np.maximum(inputs[0], 3)]

    engine = NullEngine(compute=compute)
    async with rigs.runtime(engine) as runtime:
        net = await runtime.compile(model())
        for stride, copied in ((None, 0), (18, PIXELS)):
            with picture(stride) as image:
                before = statistics().copied_bytes
                assert (await net(image) == right(image)).all()
                assert statistics().copied_bytes - before == copied


@pytest.mark.parametrize("stride", [None, 18])
async def test_onnxruntime(stride: int | None, tmp_path: Path) -> None:
    need("onnxruntime-cpu")
    files = pytest.importorskip("tests.importers.onnx.files")
    shape = (1, HEIGHT, WIDTH, 3)
    graph = files.message(
        [files.node("Identity", ["x"], ["y"])],
        [("x", files.UINT8, shape)],
        [("y", files.UINT8, shape)],
    )
    wrapped = pytest.importorskip("nnasync._core.importers.onnx").wrap(
        files.written(tmp_path, graph)
    )
    async with rigs.runtime("onnxruntime-cpu") as runtime:
        net = await runtime.compile(wrapped)
        with picture(stride) as image:
            before = statistics().copied_bytes
            assert (await net(image) == image.planes[0]).all()
            assert statistics().copied_bytes - before == (PIXELS if stride else 0)


async def test_four_channels_and_several_devices() -> None:
    """Plans that fall back, or have two forms, take what their parts take."""
    async with nn.open_runtime(options=rigs.POOL) as runtime:
        net = await runtime.compile(model(4))
        with picture(64, RGBA) as image:
            before = statistics().copied_bytes
            assert (await net(image) == right(image)).all()
            assert statistics().copied_bytes == before


async def test_through_a_service() -> None:
    async with served() as it, rigs.runtime(it.device) as runtime:
        net = await runtime.compile(model())
        for stride in (None, 18, 32):
            with picture(stride) as image:
                before = statistics().copied_bytes, it.device.link.connection.sent_bytes
                for how in ("call", "launch", "burst"):
                    assert (await ran(net, how, image) == right(image)).all()
                assert statistics().copied_bytes == before[0]
                assert it.device.link.connection.sent_bytes - before[1] < 2000


async def test_an_open_shape_takes_the_image_as_an_array() -> None:
    async with rigs.runtime() as runtime:
        net = await runtime.compile(model(shape=(1, 0, 0, 3)))
        with picture(18) as image, picture(None, YCBCR) as wrong:
            before = statistics().copied_bytes
            assert (await net(image) == right(image)).all()
            assert statistics().copied_bytes - before == PIXELS
            with pytest.raises(InvalidArgument, match="to_rgb"):
                await net(wrong)


async def test_what_is_no_input() -> None:
    async with rigs.runtime() as runtime:
        net = await runtime.compile(model())
        floats = await runtime.compile(rigs.doubler())
        gone = picture()
        gone.close()
        with (
            picture(None, YCBCR) as ycbcr,
            picture(None, RGBA) as rgba,
            Pool.image(RGB, 4, 4) as small,
            Pool.allocate(PIXELS) as plain,
        ):
            for how in ("call", "launch", "burst"):
                with pytest.raises(InvalidArgument, match=r"nobody converts unasked.*to_rgb"):
                    await ran(net, how, ycbcr)
                for wrong, text in ((rgba, "the image is"), (small, "the image is"), (plain, "no")):
                    with pytest.raises(InvalidArgument, match=text):
                        await ran(net, how, wrong)
                with pytest.raises(InvalidArgument, match="uint8"):
                    await ran(floats, how, small)
                with pytest.raises(BadState, match="closed"):
                    await ran(net, how, gone)
        with picture() as image:
            assert (await net(image) == right(image)).all()


# -- as the HAL has it


def on(source: Pool, target: Pool, **change: Any) -> Request:
    return Request(
        (msgspec.structs.replace(WHOLE, **change),),
        (RequestArgument(location=DataLocation(1, 0, 0)),),
        (source, target),
    )


@pytest.mark.parametrize("change", [{}, {"dimensions": (1, HEIGHT, WIDTH, 3)}])
@pytest.mark.parametrize("target_stride", [None, 19])
async def test_from_image_to_image(change: Any, target_stride: int | None) -> None:
    async with rigs.runtime() as runtime:
        prepared = await runtime.devices[0].prepare_model(model())
        with picture(32) as source, picture(target_stride) as target:
            request = on(source, target, **change)
            for run in (prepared.execute, prepared.execute_synchronously):
                target.planes[0][...] = 0
                before = statistics().copied_bytes
                await run(request)
                assert (target.planes[0] == right(source)).all()
                copied = statistics().copied_bytes - before
                assert copied == (PIXELS if target_stride else 0)
            padding = np.frombuffer(target.view, np.uint8).reshape(HEIGHT, -1)[:, WIDTH * 3 :]
            assert (padding == 255).all()


async def test_of_three_dimensions() -> None:
    async with rigs.runtime() as runtime:
        prepared = await runtime.devices[0].prepare_model(model(shape=(HEIGHT, WIDTH, 3)))
        with picture(32) as source, picture() as target:
            await prepared.execute(on(source, target))
            assert (target.planes[0] == right(source)).all()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"location": DataLocation(0, 0, PIXELS)}, "used whole"),
        ({"location": DataLocation(0, 1, 0)}, "used whole"),
        ({"dimensions": (1, WIDTH, HEIGHT, 3)}, "model asks for"),
        ({"dimensions": (1, 2**33, WIDTH, 3)}, "must be in"),
    ],
)
def test_places_in_an_image(change: Any, text: str) -> None:
    with picture() as source, picture() as target:
        validate_request(model(), on(source, target))
        with pytest.raises(InvalidArgument, match=text):
            validate_request(model(), on(source, target, **change))


def test_types_and_sizes_of_an_image() -> None:
    with picture() as source, picture() as target, picture(None, YCBCR) as ycbcr:
        for wrong in (on(ycbcr, target), on(source, ycbcr)):
            with pytest.raises(InvalidArgument, match="to_rgb"):
                validate_request(model(), wrong)
        with pytest.raises(InvalidArgument, match="the image is"):
            validate_request(model(shape=(1, 0, 0, 3)), on(source, target))
        with pytest.raises(InvalidArgument, match="TENSOR_FLOAT32 is not"):
            validate_request(rigs.doubler(), on(source, target))


class Foreign:
    """An image of which nobody here knows how it lies."""

    name = IMAGE
    size = PIXELS
    view = memoryview(bytearray(PIXELS))


async def test_a_foreign_image_fails_the_execution() -> None:
    async with rigs.runtime() as runtime, served() as it:
        for device in (runtime.devices[0], it.device):
            prepared = await device.prepare_model(model())
            with picture() as target:
                request = Request((WHOLE,), on(target, target).outputs, (Foreign(), target))
                with pytest.raises(GeneralFailure):
                    await prepared.execute(request)
            await prepared.close()


async def test_constants_are_never_images() -> None:
    async with rigs.runtime() as runtime, served() as it:
        with Pool.image(RGB, 64, 64) as image:
            wrong = dense().with_constants(image)
            for device in (runtime.devices[0], it.device):
                with pytest.raises(InvalidArgument, match="image"):
                    await device.prepare_model(wrong)
                with pytest.raises(InvalidArgument, match="image"):
                    await device.get_supported_operations(wrong)
            with pytest.raises(ModelError):
                await runtime.devices[0].prepare_model(wrong)


@pytest.mark.parametrize(
    "form",
    [
        PoolForm(IMAGE, PIXELS, 0, True),
        PoolForm("ashmem", PIXELS, 0, True, ImageLayout(RGB, WIDTH, HEIGHT, WIDTH * 3)),
        PoolForm(IMAGE, PIXELS + 1, 0, True, ImageLayout(RGB, WIDTH, HEIGHT, WIDTH * 3)),
        PoolForm(IMAGE, PIXELS, 0, True, ImageLayout(RGB, WIDTH, 2**40, WIDTH * 3)),
        PoolForm(IMAGE, PIXELS, 0, True, ImageLayout(RGB, -WIDTH, -HEIGHT, WIDTH * 3)),
        PoolForm(IMAGE, PIXELS, 1 << 40, True, ImageLayout(RGB, WIDTH, HEIGHT, WIDTH * 3)),
    ],
)
async def test_what_a_hostile_client_says_of_an_image(form: PoolForm) -> None:
    async with served() as it:
        prepared = await it.device.prepare_model(model())
        link = it.device.link
        with picture() as image:
            link.notify(OfferMemory(999, form), [image.fd])
        request = encode(BurstArguments((WHOLE,), (WHOLE,), (999,)))
        call = link.begin(lambda n: Launch(n, 1000, prepared.number, request, ExecutionConfig(), 0))
        with pytest.raises(GeneralFailure, match="cannot be used"):
            await link.wait(call)
        await prepared.close()
