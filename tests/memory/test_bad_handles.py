"""Memory that cannot be used: what devices say of it, in the same process and in another.

Constants are not supported and fail the preparation, inputs and outputs fail the execution, all
with GeneralFailure. After each of them the device still answers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnasync._core.drivers.service import isolate
from nnasync.burst import BurstController, LocalChannel, Outcome
from nnasync.errors import DeviceUnavailable, GeneralFailure
from nnasync.hal import BufferDesc, BufferRole, Memory
from nnasync.memory import Pool
from tests import rigs
from tests.memory.engines import ENGINES, need
from tests.memory.handles import BAD, SIZE, UNSENDABLE, Subject, dense, given, read_only
from tests.service.rig import served

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks")]

ISOLATED = "isolated reference"
SERVED = "served reference"
DEVICES = [rigs.REFERENCE, *ENGINES, SERVED, ISOLATED]
RUNS = ["execute", "execute_synchronously", "execute_fenced", "burst"]

Make = Callable[[Path], Memory]
bad = pytest.mark.parametrize("make", BAD, ids=lambda make: make.__name__)
on_all = pytest.mark.parametrize("name", DEVICES, indirect=True)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A device that is there; to skip a coroutine would end the loop that all of them share."""
    name: str = request.param
    if name in ENGINES:
        need(name)
    if name == "onnxruntime-cpu":
        pytest.importorskip("tests.importers.onnx.files")
        pytest.importorskip("nnasync._core.importers.onnx")
    return name


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """The loop has no part in it, and there are many combinations."""
    return "asyncio"


@pytest.fixture(scope="module")
async def isolated(anyio_backend: str) -> AsyncIterator[Any]:
    """One device for all tests, of which each leaves it able to compute."""
    device = await isolate(rigs.REFERENCE)
    pid = device.pid
    prepared = await device.prepare_model(dense().model)
    assert await is_right(prepared, dense())  # Now it has the threads that it keeps.
    await prepared.close()
    yield device
    assert device.pid == pid, "the process died on the way"
    await device.close()


@asynccontextmanager
async def opened(name: str, isolated: Any) -> AsyncIterator[Any]:
    """A device, in this process or behind a service that does not trust, or trusts, its client."""
    if name == ISOLATED:
        yield isolated
    elif name == SERVED:
        async with served() as it:
            yield it.device
    else:
        async with rigs.runtime(name) as runtime:
            yield runtime.device(name)


def subject_for(name: str, folder: Path) -> Subject:
    if name != "onnxruntime-cpu":
        return dense()
    files = import_module("tests.importers.onnx.files")
    row = np.arange(64, dtype=np.float32)[np.newaxis]
    graph = files.message(
        [files.node("Mul", ["x", "w"], ["y"])],
        [("x", files.FLOAT, row.shape)],
        [("y", files.FLOAT, row.shape)],
        {"w": row + 1},
    )
    wrap = import_module("nnasync._core.importers.onnx").wrap
    return Subject(wrap(files.written(folder, graph)), row, row * (row + 1), (False,))


async def run(prepared: Any, how: str, request: Any) -> None:
    if how == "burst":
        await over_burst(prepared, request)
        return
    result = await getattr(prepared, how)(request)
    if how == "execute_fenced":
        await result.fence


async def over_burst(prepared: Any, request: Any) -> None:
    """One execution on a burst of its own; raises what it is answered."""
    channels = LocalChannel(), LocalChannel()
    controller = BurstController(*channels)
    controller.attach(await prepared.configure_execution_burst(controller, *channels))
    outcomes: list[Outcome] = []
    try:
        controller.send(controller.encode(request), outcomes.append)
        await rigs.until(lambda: bool(outcomes))
    finally:
        controller.close(DeviceUnavailable("closed by the test"))
    if isinstance(outcomes[0], Exception):
        raise outcomes[0]


async def is_right(prepared: Any, subject: Subject) -> bool:
    """Whether the device still computes, on memory that it can use."""
    with Pool.allocate(SIZE) as source, Pool.blob(SIZE) as target:
        source.array(subject.x.dtype, subject.x.shape)[...] = subject.x
        found = target.array(subject.y.dtype, subject.y.shape)
        for how in RUNS:
            target.view[:] = bytes(target.size)
            await run(prepared, how, subject.request(source, target))
            if not np.allclose(found, subject.y):
                return False
        return True


@bad
@on_all
async def test_constants(name: str, make: Make, tmp_path: Path, isolated: Any) -> None:
    async with opened(name, isolated) as device:
        subject = subject_for(name, tmp_path)
        with given(make, tmp_path) as memory:
            model = subject.with_constants(memory)
            assert await device.get_supported_operations(model) == subject.supported
            with pytest.raises(GeneralFailure, match="pool 0 of the model"):
                await device.prepare_model(model)
        prepared = await device.prepare_model(subject.model)
        assert await is_right(prepared, subject)
        await prepared.close()


@bad
@on_all
async def test_inputs(name: str, make: Make, tmp_path: Path, isolated: Any) -> None:
    async with opened(name, isolated) as device:
        subject = subject_for(name, tmp_path)
        prepared = await device.prepare_model(subject.model)
        with given(make, tmp_path) as memory, Pool.allocate(SIZE) as target:
            for how in RUNS:
                with pytest.raises(GeneralFailure):
                    await run(prepared, how, subject.request(memory, target))
        assert await is_right(prepared, subject)
        await prepared.close()


@pytest.mark.parametrize("make", [*BAD, read_only], ids=lambda make: make.__name__)
@on_all
async def test_outputs(name: str, make: Make, tmp_path: Path, isolated: Any) -> None:
    async with opened(name, isolated) as device:
        subject = subject_for(name, tmp_path)
        prepared = await device.prepare_model(subject.model)
        with given(make, tmp_path) as memory, Pool.allocate(SIZE) as source:
            for how in RUNS:
                with pytest.raises(GeneralFailure):
                    await run(prepared, how, subject.request(source, memory))
        assert await is_right(prepared, subject)
        await prepared.close()


@pytest.mark.parametrize("name", [each for each in DEVICES if each != SERVED], indirect=True)
async def test_an_input_that_is_read_only_is_read(name: str, tmp_path: Path, isolated: Any) -> None:
    """But a service takes memory of strangers only if nobody can shrink it."""
    async with opened(name, isolated) as device:
        subject = subject_for(name, tmp_path)
        path = tmp_path / "input"
        prepared = await device.prepare_model(subject.model)
        path.write_bytes(subject.x.tobytes())
        with Pool.from_file(path) as source, Pool.allocate(SIZE) as target:
            request = subject.request(source, target)
            for factor in (1, 2):
                path.write_bytes((factor * subject.x).tobytes())
                await prepared.execute_synchronously(request)
                found = target.array(subject.y.dtype, subject.y.shape)
                assert np.allclose(found, factor * subject.y)
        await prepared.close()


@bad
@pytest.mark.parametrize("name", [rigs.REFERENCE, SERVED, ISOLATED], indirect=True)
async def test_copies_of_buffers(name: str, make: Make, tmp_path: Path, isolated: Any) -> None:
    """A copy to such memory fails and leaves the contents, one from it leaves none.

    Memory that a client cannot hand over leaves them as well: the service is not even asked.
    """
    is_asked = name == rigs.REFERENCE or make not in UNSENDABLE
    async with opened(name, isolated) as device:
        subject = dense()
        prepared = await device.prepare_model(subject.model)
        role, size = [BufferRole(0, 0)], subject.x.nbytes
        buffer = await device.allocate(BufferDesc(), [prepared], role, [])
        with Pool.allocate(size) as pool, given(make, tmp_path) as memory:
            pool.array(subject.x.dtype, subject.x.shape)[...] = subject.x
            await buffer.copy_from(pool)
            with pytest.raises(GeneralFailure):
                await buffer.copy_to(memory)
            await buffer.copy_to(pool)
            assert pool.array(subject.x.dtype, subject.x.shape).tolist() == subject.x.tolist()
            with pytest.raises(GeneralFailure):
                await buffer.copy_from(memory)
            if is_asked:
                with pytest.raises(GeneralFailure, match="not initialized"):
                    await buffer.copy_to(pool)
        await buffer.close()
        await prepared.close()


async def test_a_network_of_such_constants(tmp_path: Path) -> None:
    """The application is told what is wrong; nothing is compiled."""
    async with rigs.runtime() as runtime:
        for make in BAD:
            with given(make, tmp_path) as memory, pytest.raises(GeneralFailure, match="pool 0"):
                await runtime.compile(dense().with_constants(memory))
