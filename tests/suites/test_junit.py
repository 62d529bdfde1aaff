"""Results as JUnit XML, read again by another parser's rules."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest

from nnasync.suites import Standing, SuiteResult, SuiteRow, write_junit
from tests.suites.samples import result, row


def written(path: Path, found: SuiteResult) -> Xml.Element:
    write_junit(found, path)
    return Xml.fromstring(path.read_bytes())


def test_each_device_is_a_suite_with_its_cases(tmp_path: Path) -> None:
    rows = [row(), row(Standing.FAILURE, "words"), row(Standing.HANG, device="litert-cpu")]
    root = written(tmp_path / "junit.xml", result(*rows))
    assert root.tag == "testsuites"
    assert [suite.get("name") for suite in root] == ["benchmark on null", "benchmark on litert-cpu"]
    cases = [(case.get("classname"), case.get("name")) for case in root.iter("testcase")]
    assert cases == [
        ("nnasync.benchmark.null", "digits"),
        ("nnasync.benchmark.null", "words"),
        ("nnasync.benchmark.litert-cpu", "digits"),
    ]
    assert root[0].get("time") == "3.000"
    assert root[0].get("timestamp") == "2026-01-01T00:00:00"
    properties = {each.get("name"): each.get("value") for each in root[0].iter("property")}
    assert properties == {
        "command": "nnasync suite benchmark",
        "processor": "x",
        "nnasync": "1",
    }


@pytest.mark.parametrize(
    ("standing", "tag", "counts"),
    [
        (Standing.SUCCESS, None, ("1", "0", "0", "0")),
        (Standing.SKIPPED, "skipped", ("1", "0", "0", "1")),
        (Standing.FAILURE, "failure", ("1", "1", "0", "0")),
        (Standing.HANG, "error", ("1", "0", "1", "0")),
        (Standing.CRASH, "error", ("1", "0", "1", "0")),
    ],
)
def test_standings(
    tmp_path: Path, standing: Standing, tag: str | None, counts: tuple[str, ...]
) -> None:
    root = written(tmp_path / "junit.xml", result(row(standing)))
    names = ("tests", "failures", "errors", "skipped")
    assert tuple(root[0].get(name) for name in names) == counts
    assert tuple(root.get(name) for name in names) == (*counts[:3], None)
    (case,) = root.iter("testcase")
    assert [each.tag for each in case] == [*([tag] if tag else []), "system-out"]
    assert case.findtext("system-out") == "top_1: 0.9 (0.8 to 0.95)"
    if tag:
        assert case[0].get("message") == "off by 3 %"
        assert case[0].get("type") == standing.value
        assert "repeat: nnasync run digits.nnm\nfile: digits.nnm" in (case[0].text or "")


def test_a_partial_result_is_an_error(tmp_path: Path) -> None:
    root = written(tmp_path / "junit.xml", result(row(), is_partial=True))
    assert (root.get("tests"), root.get("errors")) == ("2", "1")
    (error,) = root.iter("error")
    assert error.text == "ended before its time: rows are missing"


def test_hostile_names_stay_within_their_attribute(tmp_path: Path) -> None:
    name = 'a"><testcase/>\x00\x1b[2J\ud800]]>&'
    hostile = SuiteRow(name, name, Standing.CRASH, 0.0, name)
    root = written(tmp_path / "junit.xml", result(hostile))
    (case,) = root.iter("testcase")
    assert case.get("name") == 'a"><testcase/>\ufffd\ufffd[2J\ufffd]]>&'
