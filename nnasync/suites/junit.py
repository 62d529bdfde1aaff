"""Results as JUnit XML, which CI systems show beside their builds.

There is no standard of it; what is written here is what the readers agree on: `testsuites` with one
`testsuite` for each device, whose `properties` say where it ran, and one `testcase` for each
subject. What a check found is a `failure`; what ended the work itself, a crash or a hang, is an
`error`; what was not tried is `skipped`. Figures are in `system-out`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as Xml

from nnasync.suites.files import replace_file
from nnasync.suites.results import Standing, SuiteFigure, SuiteResult, SuiteRow

_NOT_IN_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_TAGS = {
    Standing.SKIPPED: "skipped",
    Standing.FAILURE: "failure",
    Standing.HANG: "error",
    Standing.CRASH: "error",
}


def write_junit(result: SuiteResult, path: Path) -> None:
    """Write a result as JUnit XML; the file is whole or not there. Raises OSError.

    A run that was ended before its time has a test case more, an error that says so.
    """
    root = Xml.Element("testsuites", {"name": _text(f"nnasync {result.suite}")})
    devices = tuple(dict.fromkeys(row.device for row in result.rows))
    for device in devices:
        rows = [row for row in result.rows if row.device == device]
        _add_suite(root, result, _text(device), rows)
    if result.is_partial:
        _add_partial(root, result)
    _count(root, list(root))
    del root.attrib["skipped"]  # which only suites have
    root.set("time", f"{result.seconds:.3f}")
    Xml.indent(root)
    replace_file(path, Xml.tostring(root, "utf-8", xml_declaration=True) + b"\n")


def _add_suite(
    root: Xml.Element, result: SuiteResult, device: str, rows: Sequence[SuiteRow]
) -> None:
    suite = _suite(root, result, device)
    properties = Xml.SubElement(suite, "properties")
    told = {"command": result.command, **result.machine, **result.versions}
    for name, value in told.items():
        Xml.SubElement(properties, "property", {"name": _text(name), "value": _text(value)})
    for row in rows:
        _add_case(suite, result.suite, device, row)
    _count(suite, [suite])
    suite.set("time", f"{sum(row.seconds for row in rows):.3f}")


def _suite(root: Xml.Element, result: SuiteResult, device: str) -> Xml.Element:
    name = _text(f"{result.suite} on {device}" if device else result.suite)
    when = result.began_at.partition("+")[0]
    return Xml.SubElement(root, "testsuite", {"name": name, "timestamp": _text(when)})


def _add_case(suite: Xml.Element, name: str, device: str, row: SuiteRow) -> None:
    place = _text(f"nnasync.{name}.{device.replace('.', '_')}")
    told = {"classname": place, "name": _text(row.subject), "time": f"{row.seconds:.3f}"}
    case = Xml.SubElement(suite, "testcase", told)
    if tag := _TAGS.get(row.standing):
        findings = [
            _finding(*parts) for f in row.findings if (parts := (f.text, f.command, f.file))
        ]
        message = _text(row.text or (row.findings[0].text if row.findings else ""))
        mark = Xml.SubElement(case, tag, {"message": message, "type": row.standing.value})
        mark.text = "\n\n".join(filter(None, [message, *findings])) or None
    if row.figures:
        out = Xml.SubElement(case, "system-out")
        out.text = "\n".join(_figure(each) for each in row.figures)


def _add_partial(root: Xml.Element, result: SuiteResult) -> None:
    suite = _suite(root, result, "")
    case = {"classname": _text(f"nnasync.{result.suite}"), "name": "the whole of it", "time": "0"}
    message = "ended before its time: rows are missing"
    told = {"message": message, "type": "partial"}
    Xml.SubElement(Xml.SubElement(suite, "testcase", case), "error", told).text = message
    _count(suite, [suite])
    suite.set("time", "0")


def _count(parent: Xml.Element, suites: Sequence[Xml.Element]) -> None:
    """State how many cases there are and how they ended."""
    for name, tag in (
        ("tests", "testcase"),
        ("failures", "testcase/failure"),
        ("errors", "testcase/error"),
        ("skipped", "testcase/skipped"),
    ):
        parent.set(name, str(sum(len(suite.findall(tag)) for suite in suites)))


def _finding(text: str, command: str, file: str) -> str:
    lines = [text, f"repeat: {command}" if command else "", f"file: {file}" if file else ""]
    return _text("\n".join(filter(None, lines)))


def _figure(figure: SuiteFigure) -> str:
    told = f"{figure.name}: {figure.value:.6g} {figure.unit}".rstrip()
    if figure.low is not None and figure.high is not None:
        told += f" ({figure.low:.6g} to {figure.high:.6g})"
    return _text(told + (", worse than the baseline" if figure.is_worse else ""))


def _text(value: str) -> str:
    """Returns a text without characters that no XML may hold."""
    return _NOT_IN_XML.sub("\ufffd", value)
