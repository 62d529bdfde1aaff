"""Inputs and outputs of types of vendor extensions, of which only the size is known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import nnasync as nn
from nnasync import errors, hal
from nnasync._core.drivers.null import NullEngine
from nnasync._core.engine_device import EngineDevice
from nnasync._core.execution import net as nets
from nnasync._core.service import Limits
from nnasync.engine import (
    BoundCall,
    CacheFiles,
    EngineBase,
    Given,
    Lowering,
    Plan,
    StopFlag,
    Target,
)
from nnasync.extensions import encode, plain, sized
from nnasync.hal import (
    Array,
    DataLocation,
    DeviceType,
    ExecutionPreference,
    Extension,
    ExtensionNameAndPrefix,
    ExtensionOperandType,
    Model,
    Operand,
    OperandLifeTime,
    Operation,
    Request,
    RequestArgument,
    StatePair,
    Subgraph,
)
from nnasync.memory import Pool
from tests import rigs
from tests.service.rig import served

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop("Types are the same on every loop.")]

NAME = "org.vendor.thing"
PIXEL, COUNT, WORD, REVERSE = 7, 1, 9, 0
THING = Extension(
    NAME,
    (
        ExtensionOperandType(PIXEL, True, 3),
        ExtensionOperandType(COUNT, False, 8),
        ExtensionOperandType(WORD, True, 4),
    ),
)
PIXELS = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
REVERSED = PIXELS[:, :, ::-1]


def model_of(
    *kinds: tuple[int, hal.Shape], prefix: int = 1, type: int | None = None, name: str = NAME
) -> Model:
    """One operation: each input (type, dimensions), with the bytes of its elements reversed."""
    inputs = [
        Operand(
            encode(prefix, kind) if type is None else type,
            shape,
            number_of_consumers=1,
            lifetime=OperandLifeTime.SUBGRAPH_INPUT,
            name=f"in{number}",
        )
        for number, (kind, shape) in enumerate(kinds)
    ]
    outputs = [
        msgspec.structs.replace(
            each,
            number_of_consumers=0,
            lifetime=OperandLifeTime.SUBGRAPH_OUTPUT,
            name=f"out{number}",
        )
        for number, each in enumerate(inputs)
    ]
    first, second = tuple(range(len(kinds))), tuple(range(len(kinds), 2 * len(kinds)))
    operation = Operation(encode(prefix, REVERSE), first, second)
    main = Subgraph((*inputs, *outputs), (operation,), first, second)
    entries = (ExtensionNameAndPrefix(name, prefix),)
    return Model(main, extension_name_to_prefix=entries, name="reversal")


class Mirror(EngineBase):
    """An engine of one operation of an extension: the bytes of each element in reverse order."""

    type = DeviceType.ACCELERATOR
    version = "1"
    concurrency = 0
    capabilities = NullEngine().capabilities

    def __init__(self, name: str = "mirror", extension: Extension = THING) -> None:
        self.name = name
        self.extensions = (extension,)

    def supported_operations(self, model: Model) -> list[bool]:
        return [hal.is_extension(operation.type) for operation in model.main.operations]

    def compile(self, model: Model, preference: ExecutionPreference) -> Plan:
        return _Plan()


class _Plan(Plan):
    def bind(self, inputs: Sequence[Array | None], outputs: Sequence[Target]) -> _Call:
        return _Call(inputs, outputs)

    def trim(self) -> None:
        pass


class _Call(BoundCall):
    def __init__(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        self.ends = list(zip(inputs, outputs, strict=True))

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        for source, target in self.ends:
            mirrored = source.reshape(-1).view(np.uint8).reshape(source.size, -1)[:, ::-1]
            target[...] = np.ascontiguousarray(mirrored).view(source.dtype).reshape(source.shape)
        return True

    def rewind(self) -> None:
        pass


def prepared_of(device: Any) -> list[Any]:
    """The models of a device that are prepared and not closed."""
    return [each for each in device._all_prepared() if each._bindings.plan is not None]


PICTURE = ((PIXEL, (2, 2)),)


@pytest.mark.parametrize("options", [rigs.POOL, rigs.INLINE], ids=["worker", "inline"])
async def test_a_call_with_a_vendors_type(options: nn.Options) -> None:
    async with rigs.runtime(Mirror(), options=options) as runtime:
        net = await runtime.compile(model_of(*PICTURE))
        (port,) = net.inputs
        assert (port.shape, port.dtype) == ((2, 2), np.dtype("V3"))
        result = await net(PIXELS.view("V3").reshape(2, 2))
        assert (result.shape, result.dtype) == ((2, 2), np.dtype("V3"))
        assert result.view(np.uint8).reshape(2, 2, 3).tolist() == REVERSED.tolist()
        with pytest.raises(
            errors.InvalidArgument,
            match=r"'in0' has elements of 1 bytes \(uint8\), should have 3: .* as '\|V3'",
        ):
            await net(PIXELS)
        with pytest.raises(errors.InvalidArgument, match=r"'in0' has elements of 8 bytes"):
            await net([[1, 2], [3, 4]])


async def test_arrays_of_the_same_size_are_taken_and_scalars_too() -> None:
    async with rigs.runtime(Mirror()) as runtime:
        net = await runtime.compile(model_of((WORD, (3,)), (COUNT, ())))
        words = np.array([1, 2, 3], "<u4")
        found, count = await net(words, np.int64(5))
        assert found.view(">u4").tolist() == [1, 2, 3]
        assert count.shape == ()
        assert count.view(">i8") == 5


async def test_every_way_of_execution() -> None:
    x = PIXELS.view("V3").reshape(2, 2)

    def pixels(array: Any) -> Any:
        return np.ascontiguousarray(array).view(np.uint8).reshape(2, 2, 3).tolist()

    async with rigs.runtime(Mirror()) as runtime:
        net = await runtime.compile(model_of(*PICTURE))
        first = await net.launch(x)
        second = await net.launch(first.outputs, wait_for=[first.fence])
        await second.fence
        assert pixels(second.outputs[0].array) == PIXELS.tolist()
        async with net.burst() as burst:
            assert pixels(await burst(x)) == REVERSED.tolist()
        async with await runtime.allocate(net.input_role(0)) as buffer:
            await buffer.write(x)
            assert pixels(await net(buffer)) == REVERSED.tolist()


async def test_states_of_a_vendors_type_begin_as_zero() -> None:
    model = msgspec.structs.replace(model_of((PIXEL, (1,)), (WORD, (1,))), state=(StatePair(1, 1),))
    async with rigs.runtime(Mirror()) as runtime:
        net = await runtime.compile(model)
        assert len(net.inputs) == 1
        async with net.burst() as burst:
            found = await burst(np.frombuffer(b"abc", "V3"))
            assert found.tobytes() == b"cba"
            assert {key: value.tobytes() for key, value in (await burst.state()).items()} == {
                "in1": bytes(4)
            }


async def test_the_model_of_a_network_can_be_stored_and_compiled_again() -> None:
    async with rigs.runtime(Mirror()) as runtime:
        model = model_of(*PICTURE)
        net = await runtime.compile(model)
        assert net.model == model
        assert msgspec.msgpack.encode(net.model.main) == msgspec.msgpack.encode(model.main)
        again = await runtime.compile(net.model)
        assert again.inputs == net.inputs


async def test_open_dimensions_are_given_by_the_request() -> None:
    async with rigs.runtime(Mirror()) as runtime:
        device = runtime.devices[0]
        prepared = await device.prepare_model(model_of((PIXEL, (0,))))
        pool = Pool.allocate(64)
        pool.array(np.uint8, (6,))[...] = list(b"abcdef")
        ends = RequestArgument(location=DataLocation(0, 0, 6), dimensions=(2,))
        out = RequestArgument(location=DataLocation(0, 32, 6), dimensions=(2,))
        await prepared.execute(Request((ends,), (out,), (pool,)))
        assert pool.array(np.uint8, (6,), 32).tobytes() == b"cbafed"
        short = RequestArgument(location=DataLocation(0, 0, 5), dimensions=(2,))
        with pytest.raises(errors.InvalidArgument, match="has 5 bytes, but takes 6"):
            await prepared.execute(Request((short,), (out,), (pool,)))
        unknown = RequestArgument(location=DataLocation(0, 0, 6))
        with pytest.raises(errors.InvalidArgument, match="must be given and known here"):
            await prepared.execute(Request((unknown,), (out,), (pool,)))


@pytest.mark.parametrize("trusts", [True, False], ids=["isolated", "service"])
async def test_in_a_process_of_its_own(trusts: bool, no_leaks: None) -> None:
    async with (
        served(Mirror(), limits=Limits(), trusts=trusts) as it,
        nn.open_runtime(devices=[it.device], options=rigs.POOL) as runtime,
    ):
        net = await runtime.compile(model_of(*PICTURE))
        result = await net(PIXELS.view("V3").reshape(2, 2))
        assert result.view(np.uint8).reshape(2, 2, 3).tolist() == REVERSED.tolist()
        async with net.burst() as burst:
            result = await burst(PIXELS.view("V3").reshape(2, 2))
        assert result.view(np.uint8).reshape(2, 2, 3).tolist() == REVERSED.tolist()
        async with await runtime.allocate(net.input_role(0)) as buffer:
            await buffer.write(PIXELS.view("V3").reshape(2, 2))
            assert (await net(buffer)).view(np.uint8).tolist() == REVERSED.reshape(2, 6).tolist()
        with pytest.raises(errors.NNError, match=r"input 0, operand 0: its size is not known"):
            await runtime.compile(model_of((8, (2, 2))))


async def test_a_type_that_nobody_describes_is_refused_by_name() -> None:
    async with rigs.runtime(Mirror()) as runtime:
        device = runtime.devices[0]
        text = r"input 0, operand 0: its size is not known: mirror describes no operand type 8 of"
        with pytest.raises(errors.GeneralFailure, match=text):
            await device.prepare_model(model_of((8, (2,))))
        with pytest.raises(errors.GeneralFailure, match=text):
            await runtime.compile(model_of((8, (2,))))
        assert prepared_of(device) == []
        assert runtime.statistics().nets == 0


@pytest.mark.parametrize(
    ("entry", "shape", "match"),
    [
        (ExtensionOperandType(5, False, 8), (2,), r"is a scalar, and it has dimensions \[2\]"),
        (ExtensionOperandType(5, True, 2**31), (2,), "an element has 2147483648 bytes"),
        (ExtensionOperandType(5, True, 2**20), (2**20,), "and all of it 1099511627776"),
    ],
)
def test_sizes_that_cannot_be(entry: ExtensionOperandType, shape: hal.Shape, match: str) -> None:
    with pytest.raises(errors.GeneralFailure, match=match):
        sized(model_of((5, shape)), [Extension(NAME, (entry,))], "it")


def test_models_of_other_types_are_left_alone() -> None:
    model = rigs.doubler()
    assert sized(model, [THING], "it") is model
    assert plain(model) is model
    known = sized(model_of(*PICTURE, prefix=5), [THING], "it")
    assert known == model_of(*PICTURE, prefix=5)
    assert hal.byte_size(known.main.operands[0].type, (2, 2)) == 12
    assert not hal.has_dtype(plain(known).main.operands[0].type)


async def test_what_fails_after_the_preparation_leaks_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*given: object) -> None:
        raise MemoryError("no slots")

    monkeypatch.setattr(nets, "Slots", broken)
    async with rigs.runtime() as runtime:
        with pytest.raises(MemoryError, match="no slots"):
            await runtime.compile(rigs.doubler())
        device = runtime.devices[0]
        assert isinstance(device, EngineDevice)
        assert prepared_of(device) == []


OTHER = Extension(NAME, (ExtensionOperandType(PIXEL, True, 4), *THING.operand_types[1:]))


async def test_devices_that_disagree_disable_an_extension() -> None:
    engines = (Mirror("left"), Mirror("right", OTHER))
    async with rigs.runtime(*engines, rigs.REFERENCE) as runtime:
        text = r"'org\.vendor\.thing' is disabled: left and right describe its operand types"
        with pytest.raises(errors.InvalidArgument, match=text):
            await runtime.compile(model_of(*PICTURE))
        with pytest.raises(errors.InvalidArgument, match=text):
            await runtime.compile(model_of(*PICTURE), devices=["left"])
        net = await runtime.compile(rigs.doubler())
        assert (await net(rigs.ROW)).tolist() == (2 * rigs.ROW).tolist()
        assert all(prepared_of(runtime.device(name)) == [] for name in ("left", "right"))


async def test_devices_that_agree_in_another_order_do_not() -> None:
    same = Extension(NAME, THING.operand_types[::-1])
    async with rigs.runtime(Mirror("left"), Mirror("right", same)) as runtime:
        net = await runtime.compile(model_of(*PICTURE))
        assert (await net(PIXELS.view("V3").reshape(2, 2))).shape == (2, 2)


async def test_a_device_given_to_a_compilation_alone_counts_as_well() -> None:
    async with (
        rigs.runtime(Mirror("right", OTHER)) as others,
        rigs.runtime(Mirror("left")) as runtime,
    ):
        net = await runtime.compile(model_of(*PICTURE))
        net.close()
        with pytest.raises(errors.InvalidArgument, match="left and right describe"):
            await runtime.compile(model_of(*PICTURE), devices=["left", _Foreign(others.devices[0])])


class _Foreign:
    """A device of somebody else, which the runtime knows by its methods alone."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Keeping(Mirror):
    """The same engine, which keeps its plans."""

    cache_files = (1, 0)

    def serialize(self, plan: Plan) -> CacheFiles:
        return CacheFiles((b"mirror",))

    def deserialize(self, files: CacheFiles, lowering: Lowering | None) -> Plan:
        return _Plan()


async def test_what_comes_out_of_the_cache_has_sizes_too(tmp_path: Path) -> None:
    hits = []
    for _ in range(2):
        async with rigs.runtime(Keeping()) as runtime:
            net = await runtime.compile(model_of(*PICTURE), cache_dir=tmp_path)
            hits.append(net.report().cache_hit)
            result = await net(PIXELS.view("V3").reshape(2, 2))
            assert result.view(np.uint8).reshape(2, 2, 3).tolist() == REVERSED.tolist()
    assert hits == [False, True]


async def test_a_disabled_extension_is_not_recalled_either(tmp_path: Path) -> None:
    async with rigs.runtime(Keeping("left")) as runtime:
        net = await runtime.compile(model_of(*PICTURE), cache_dir=tmp_path)
        nn.save(net.model, tmp_path / "reversal.nnm")
        net.close()
    async with rigs.runtime(Keeping("left"), Mirror("right", OTHER)) as runtime:
        with pytest.raises(errors.InvalidArgument, match="left and right describe"):
            await runtime.compile(tmp_path / "reversal.nnm", cache_dir=tmp_path / "cache")
        assert prepared_of(runtime.device("left")) == []
