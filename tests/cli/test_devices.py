"""`nnasync devices`."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from nnasync import devices as public
from nnasync._core import drivers
from nnasync._core.drivers import DRIVERS, Driver, is_installed
from nnasync.cli import devices, main
from nnasync.cli.text import milliseconds, table
from tests.installing import install, installing

MODULE = """
from nnasync._core.drivers.null import NullEngine

def good():
    return NullEngine("acme-good")

def bad():
    raise ValueError("no luck today")

def odd():
    engine = NullEngine("acme-odd")
    engine.version = ""
    return engine
"""


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--json"]) == 0
    told = {device["name"]: device for device in msgspec.json.decode(capsys.readouterr().out)}
    reference = told["nnasync-reference"]
    assert reference["type"] == "CPU"
    assert reference["version"]
    assert (reference["feature_level"], reference["hal_version"]) == (30, "1.3")
    assert set(reference["cache_files"]) == {"model", "data"}
    assert reference["performance"]["TENSOR_FLOAT32"]["exec_time"] > 0


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices"]) == 0
    identities, head, ratios, *others = capsys.readouterr().out.rstrip("\n").split("\n\n")
    line = next(line for line in identities.splitlines() if line.startswith("nnasync-reference"))
    assert re.fullmatch(
        r"nnasync-reference +CPU +\S+ +30 \(HAL 1\.3\) +\d+ model, \d+ data +\S.* +nnasync", line
    )
    assert head == "time of an operation, as ratio to the reference's:"
    line = next(line for line in ratios.splitlines() if line.startswith("nnasync-reference"))
    assert line.split() == ["nnasync-reference", *["1.00"] * 9, "1", "by", "definition"]
    assert max(map(len, [*identities.splitlines(), *ratios.splitlines()])) < 120
    estimates = [each for each in others if each.startswith("estimates: round constants, until")]
    shown = [name for name in DRIVERS if DRIVERS[name].extra and is_installed(name)]
    assert len(estimates) == bool(shown)
    assert len(others) - len(estimates) == any(not is_installed(name) for name in DRIVERS)
    for name in shown:
        line = next(line for line in ratios.splitlines() if line.startswith(name))
        assert line.split()[-1] == "estimates"


def test_a_device_that_was_measured_is_not_estimated() -> None:
    device = {"name": "some", "source": "nnasync", "calibrated": True, "performance": {}}
    assert devices._ratios([device]).split("\n")[-1].endswith("measured here")
    foreign = {**device, "source": "acme 1.0", "calibrated": False}
    assert devices._ratios([foreign]).split("\n")[-1].endswith("as it states")


def test_devices_that_are_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = Driver("nnasync._core.drivers.litert:LiteRTEngine", "no_such_package", "litert")
    known = {name: driver for name, driver in DRIVERS.items() if is_installed(name)}
    for module in (drivers, public):
        monkeypatch.setattr(module, "DRIVERS", known | {"litert-cpu": missing})
    entry_points = {
        "acme-good": "acme:good",
        "acme-bad": "acme:bad",
        "acme-odd": "acme:odd",
        "null": "acme:good",
    }
    install(tmp_path, entry_points, {"acme": MODULE})
    with installing(tmp_path):
        assert main(["devices"]) == 0
        text = capsys.readouterr().out
        assert main(["devices", "--json"]) == 0
        told = {each["name"]: each for each in msgspec.json.decode(capsys.readouterr().out)}
    *_, away = text.split("\n\n")
    assert [line.strip() for line in away.splitlines()] == [
        "not there:",
        "device acme-bad of nnasync-acme 1.0 (acme:bad) failed: ValueError: no luck today",
        told["acme-odd"]["reason"],
        "device litert-cpu needs no_such_package, which is not installed: "
        "pip install 'nnasync[litert]'",
        "device null of nnasync-acme 1.0 (acme:good) is ignored: nnasync has a device of this name",
    ]
    assert "acme-odd says its version is" in told["acme-odd"]["reason"]
    assert told["acme-good"]["source"] == "nnasync-acme 1.0"
    assert told["acme-good"]["version"] == "1"
    assert told["litert-cpu"]["status"] == "NOT_INSTALLED"
    assert told["acme-bad"]["status"] == told["acme-odd"]["status"] == "UNUSABLE"
    assert {frozenset(each) for each in told.values()} == {frozenset(told["nnasync-reference"])}


def test_table_is_aligned_and_wrapped() -> None:
    text = table(("name", "n"), [("a, b, c, d", "1"), ("x", "22")], wide=5)
    assert text.splitlines() == ["name   n", "-----  --", "a, b,  1", "c, d", "x      22"]


def test_milliseconds() -> None:
    assert milliseconds(1_234_567) == "1.235 ms"
    assert milliseconds(12_345_678) == "12.3 ms"
