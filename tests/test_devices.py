"""What is installed, and what programs say of devices."""

from __future__ import annotations

from pathlib import Path

import pytest

import nnasync as nn
from nnasync import devices
from nnasync._core.drivers import DRIVERS
from nnasync.device import Lowering
from nnasync.hal import PerformanceInfo
from tests.compilation.rig import FakeEngine, ManualClock, way
from tests.installing import install, installing
from tests.rigs import ROW, doubler, runtime

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop("What is installed is so on every loop.")]

HALF = PerformanceInfo(0.5, 0.5)


def test_installed_are_the_devices_of_a_runtime_that_names_none() -> None:
    async def names() -> list[str]:
        async with nn.open_runtime() as rt:
            return [device.name for device in rt.devices]

    found = devices.installed()
    there = [each.name for each in found if not each.absence]
    assert there == nn.run(names)
    assert there[-1] == devices.REFERENCE
    assert {each.name for each in found} == {name for name in DRIVERS if DRIVERS[name].computes}
    assert {each.source for each in found} == {"nnasync"}


def test_what_is_missing_says_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nnasync._core.drivers.is_importable", lambda package: False)
    there, *missing = devices.installed()
    assert there == devices.InstalledDevice(devices.REFERENCE, "nnasync")
    assert len(missing) == 3
    for each in missing:
        assert f"pip install 'nnasync[{DRIVERS[each.name].extra}]'" in each.absence


def test_devices_of_others_and_those_that_are_ignored(tmp_path: Path) -> None:
    install(tmp_path, {"acme-one": "acme:one", "null": "x:y"}, {})
    install(tmp_path, {"acme-one": "late:two"}, {}, name="nnasync-late")
    with installing(tmp_path):
        found = devices.installed()
    own = [each for each in found if each.name == "acme-one" and not each.absence]
    assert [each.source.partition(" ")[0] for each in own] == ["nnasync-acme"]
    ignored = {each.name: each.absence for each in found if "is ignored" in each.absence}
    assert set(ignored) == {"acme-one", "null"}
    assert "offers it too" in ignored["acme-one"]


def test_figures_are_kept_beside_those_of_other_devices(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NNASYNC_STATE_DIR", str(tmp_path))
    figures = {"TENSOR_FLOAT32": HALF, devices.RELAXED: HALF}
    assert devices.keep_figures({"null": figures}) == devices.state_folder() == str(tmp_path)
    devices.keep_figures({"another": figures})

    async def reported() -> dict[str, PerformanceInfo]:
        async with runtime("null") as rt:
            capabilities = await rt.device("null").get_capabilities()
            return devices.figures_in(capabilities, figures)

    assert nn.run(reported) == figures


def test_figures_that_cannot_be_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NNASYNC_STATE_DIR", str(tmp_path / "file" / "folder"))
    with pytest.raises(nn.GeneralFailure, match="cannot be written"):
        devices.keep_figures({"fake": {"TENSOR_FLOAT32": HALF}})


def test_a_pin_has_compile_use_that_lowering() -> None:
    engine = FakeEngine("fake", ManualClock(), way("plain"), way("wide", 2))

    async def main() -> None:
        async with runtime(engine) as rt:
            net = await rt.compile(doubler())
            device = rt.device("fake")
            pin = devices.lowering_pin(net.report(), device, Lowering("wide", 2))
            other = await rt.compile(doubler(), options=nn.CompileOptions(pin=pin))
            assert other.report().pin == pin
            assert engine.compiled[-1] == "wide*2"
            await other(ROW)

    nn.run(main)


def test_engines_are_imported_when_they_are_used() -> None:
    engine = devices.NullEngine("mine")
    assert devices.EngineDevice.__name__ == "EngineDevice"
    assert engine.name == "mine"
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        getattr(devices, "Nothing")  # noqa: B009


async def test_a_device_that_is_not_installed_says_what_brings_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nnasync._core.drivers.is_importable", lambda package: False)
    async with nn.open_runtime() as rt:
        with pytest.raises(nn.InvalidArgument, match=r"pip install 'nnasync\[litert\]'"):
            await rt.compile(doubler(), devices=["litert-cpu"])
        with pytest.raises(nn.InvalidArgument, match="there are: nnasync-reference$"):
            await rt.compile(doubler(), devices=["nothing"])
