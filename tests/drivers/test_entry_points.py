"""Devices of third parties: found, made, named, left out."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

import nnasync as nn
from nnasync._core import drivers
from nnasync._core.drivers import default_devices, driver_facts, foreign_devices, foreign_offers
from nnasync._core.drivers.entry_points import DriverOffer, make, offers
from nnasync.errors import DeviceUnavailable, GeneralFailure, InvalidArgument
from tests.installing import install, installing

MODULE = """
from nnasync._core.drivers.null import NullEngine
from nnasync.errors import DeviceUnavailable

KNOWN_GAPS = {"hard_*": "too hard"}
calls = []

def one():
    calls.append("one")
    return NullEngine("acme-one")

def two():
    return NullEngine("acme-two")

class Outside:
    name = "acme-outside"
    async def prepare_model(self, model):
        raise NotImplementedError

def unlucky():
    raise ValueError("no luck today")

def leaving():
    raise SystemExit(3)

def without_hardware():
    raise DeviceUnavailable("no such card")

def number():
    return 7

def a_class():
    return NullEngine

def with_argument(argument):
    return NullEngine("acme")
"""


@contextmanager
def offering(folder: Path, entry_points: Mapping[str, str]) -> Iterator[None]:
    install(folder, entry_points, {"acme": MODULE})
    with installing(folder):
        yield


def names_of(*wanted: str) -> list[str]:
    async def main() -> list[str]:
        async with nn.open_runtime(devices=wanted or None) as runtime:
            return [device.name for device in runtime.devices]

    return nn.run(main)


def test_found_by_default_between_ours_and_the_reference(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with offering(tmp_path, {"acme-two": "acme:two", "acme-one": "acme:one"}):
        *ours, reference = default_devices()
        assert names_of() == [*ours, "acme-one", "acme-two", reference]
    assert caplog.records == []
    assert names_of() == [*ours, reference]


def test_found_by_name(tmp_path: Path) -> None:
    with offering(tmp_path, {"acme-two": "acme:two", "acme-one": "acme:one"}):
        assert names_of("acme-two", "nnasync-reference") == ["acme-two", "nnasync-reference"]
        with pytest.raises(
            InvalidArgument, match=r"no device 'acme'; there are: .*, acme-one, acm"
        ):
            names_of("acme")


def test_ours_are_opened_without_looking_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def look() -> tuple[DriverOffer, ...]:
        raise AssertionError("nobody asked for a third party's device")

    monkeypatch.setattr(drivers, "offers", look)
    assert names_of("null", "nnasync-reference") == ["null", "nnasync-reference"]


def test_a_factory_is_called_when_its_device_is_wanted_and_not_before(tmp_path: Path) -> None:
    with offering(tmp_path, {"acme-one": "acme:one", "acme-two": "acme:two"}):
        assert names_of("null") == ["null"]
        foreign_offers()
        assert "acme" not in sys.modules
        assert names_of("acme-two") == ["acme-two"]
        assert sys.modules["acme"].calls == []
        assert names_of("acme-one") == ["acme-one"]
        assert sys.modules["acme"].calls == ["one"]


BAD = {
    "unlucky": (GeneralFailure, r"acme:unlucky\) failed: ValueError: no luck today"),
    "leaving": (GeneralFailure, r"acme:leaving\) failed: SystemExit: 3"),
    "missing": (GeneralFailure, r"acme:missing\) failed: AttributeError"),
    "with_argument": (GeneralFailure, "failed: TypeError"),
    "number": (InvalidArgument, "must return an engine or a device, not int"),
    "a_class": (InvalidArgument, "must return an engine or a device, not NullEngine"),
    "two": (InvalidArgument, "calls itself 'acme-two'; the two names must be the same"),
    "without_hardware": (DeviceUnavailable, "no such card"),
}


@pytest.mark.parametrize("factory", BAD)
def test_what_cannot_be_made_is_left_out_or_an_error_if_named(
    factory: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kind, text = BAD[factory]
    with offering(tmp_path, {"acme": f"acme:{factory}", "acme-one": "acme:one"}):
        with pytest.raises(kind, match=rf"device acme of nnasync-acme 1\.0 .*{text}") as raised:
            names_of("acme")
        assert (raised.value.__cause__ is None) == (kind is InvalidArgument)
        assert caplog.records == []
        assert list(foreign_devices(None)) == ["acme-one"]
    warned = [record.getMessage() for record in caplog.records if record.levelno > logging.INFO]
    assert len(warned) == (kind is not DeviceUnavailable)
    assert all("nnasync-acme 1.0" in line for line in warned)


@pytest.mark.parametrize("target", ["no_such_module:factory", "acme", "not a target", ""])
def test_entry_points_that_name_nothing(target: str, tmp_path: Path) -> None:
    with offering(tmp_path, {"acme": target}):
        assert foreign_devices(None) == {}
        if offers():
            with pytest.raises(GeneralFailure, match="device acme of nnasync-acme"):
                foreign_devices(["acme"])


def test_names_that_are_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    install(tmp_path, {"acme-one": "late:two"}, {}, name="nnasync-late")
    with offering(tmp_path, {"acme-one": "acme:one", "litert-cpu": "acme:one", "null": "x:y"}):
        found, ignored = foreign_offers()
        assert {name: offer.target for name, offer in found.items()} == {"acme-one": "acme:one"}
        assert [line.split(": ")[-1] for _, line in ignored] == [
            "nnasync-acme 1.0 offers it too",
            "nnasync has a device of this name",
            "nnasync has a device of this name",
        ]
        assert list(foreign_devices(None)) == ["acme-one"]
        assert sorted(record.getMessage() for record in caplog.records) == sorted(
            line for _, line in ignored
        )


def test_a_device_that_is_no_engine(tmp_path: Path) -> None:
    with offering(tmp_path, {"acme-outside": "acme:Outside"}):
        made = foreign_devices(None)["acme-outside"]
    assert made is not None
    assert made.name == "acme-outside"


def test_a_device_for_another_process_is_not_made_here(tmp_path: Path) -> None:
    with offering(tmp_path, {"acme-outside": "acme:Outside", "acme-broken": "acme:nothing"}):
        for wanted in (None, ["acme-outside", "acme-broken"]):
            found = foreign_devices(wanted, apart=["acme-broken"])
            assert sorted(found) == ["acme-broken", "acme-outside"]
            assert found["acme-broken"] is None


def test_metadata_that_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(**wanted: str) -> None:
        raise ValueError("a distribution without a name")

    monkeypatch.setattr("importlib.metadata.entry_points", broken)
    with offering(tmp_path, {"acme-one": "acme:one"}):
        assert foreign_devices(None) == {}
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        with pytest.raises(GeneralFailure, match="a distribution without a name"):
            foreign_devices(["acme-one"])


def test_what_a_driver_says_of_itself(tmp_path: Path) -> None:
    assert driver_facts("null").target == "nnasync._core.drivers.null:NullEngine"
    with offering(tmp_path, {"acme-one": "acme:one", "acme-no": "no_such_module:factory"}):
        assert driver_facts("acme-one").known_gaps == {"hard_*": "too hard"}
        with pytest.raises(GeneralFailure, match="No module named 'no_such_module'"):
            driver_facts("acme-no")
    with pytest.raises(InvalidArgument, match="no device 'acme-one'"):
        driver_facts("acme-one")


def test_an_offer_is_made_by_itself() -> None:
    made = make(DriverOffer("null", "nnasync._core.drivers.null:NullEngine", "somebody 1.0"))
    assert made.name == "null"


@pytest.mark.anyio
async def test_a_factory_may_be_named_where_nothing_is_installed(tmp_path: Path) -> None:
    (tmp_path / "loose.py").write_text(
        "from nnasync._core.drivers.null import NullEngine\n"
        "def make(): return NullEngine('loose-one')\n"
        "def nothing(): return 5\n"
    )
    with installing(tmp_path):
        async with nn.open_runtime(devices=["loose:make", "nnasync-reference"]) as runtime:
            assert [each.name for each in runtime.devices] == ["loose-one", "nnasync-reference"]
        for target, told in {
            "loose:nothing": "must return an engine or a device, not int",
            "loose:missing": "device loose:missing failed: AttributeError",
            "no_such_module_here:make": "No module named 'no_such_module_here'",
            "loose:": "device loose: failed",
        }.items():
            with pytest.raises((InvalidArgument, GeneralFailure), match=told):
                async with nn.open_runtime(devices=[target]):
                    pass
