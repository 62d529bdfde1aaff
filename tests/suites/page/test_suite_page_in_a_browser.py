"""The page of a suite in a real browser: it sorts, fits a phone, opens what is folded for paper."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from nnasync.suites import SuiteFigure, write_page
from tests.cli.live import browser
from tests.cli.live.browser import Browser, open_browser
from tests.suites.samples import result, row

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(browser.missing()), reason=browser.missing() or "there is one"),
]

LATENCIES = (9.5, 1000.0, 80.25)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """The page of three devices and one that has no figures, from the disk."""
    folder = tmp_path_factory.mktemp("page")
    rows = [
        replace(row(device=str(value)), figures=(SuiteFigure("latency", value, "ms"),))
        for value in LATENCIES
    ]
    rows.append(replace(row(device="none", subject="long" * 40), figures=()))
    old = [replace(each, figures=(SuiteFigure("latency", 1.0, "ms"),)) for each in rows]
    write_page(result(*rows), folder / "page.html", result(*old))
    with open_browser(folder / "profile") as found:
        found.driver.get((folder / "page.html").as_uri())
        yield found


def devices(opened: Browser) -> list[str]:
    rows = "document.querySelectorAll('#all-rows tbody tr')"
    found = opened.driver.execute_script(f"return [...{rows}].map(row => row.cells[1].textContent)")
    return [str(each) for each in found]


def test_a_click_on_a_head_sorts_and_another_turns_it(opened: Browser) -> None:
    """Numbers by their value, not by their digits; what has none is last."""
    head = "#all-rows th:nth-child(5)"
    opened.click(head)
    assert devices(opened) == ["9.5", "80.25", "1000.0", "none"]
    opened.click(head)
    assert devices(opened) == ["1000.0", "80.25", "9.5", "none"]
    assert opened.complaints() == []


def test_it_fits_a_phone(opened: Browser) -> None:
    opened.driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True},
    )
    width = opened.driver.execute_script("return document.documentElement.scrollWidth")
    assert width == 390


def test_what_is_folded_opens_for_paper(opened: Browser) -> None:
    asked = "return document.querySelector('details.prints').open"
    script = opened.driver.execute_script
    assert script(asked) is False
    opened.driver.execute_cdp_cmd("Page.printToPDF", {})
    assert script(asked) is True


def test_tables_of_six_devices_fit_a_desktop(opened: Browser, tmp_path: Path) -> None:
    """With the names, intervals and verdicts that a benchmark has."""
    means = ("latency mean", "compilation without cache mean", "compilation to cache mean")
    names = ("latency p50", "latency p95", "first compilation", "cache", "largest error")
    long = [SuiteFigure(name, 123.456, "ms", 112.345, 134.567, is_worse=True) for name in means]
    long += [SuiteFigure(name, 123.456, "ms") for name in names]
    devices = ("nnasync-reference", "litert-cpu", "openvino-cpu", "onnxruntime-cpu", "auto")
    text = "litert-cpu (xnnpack-products, 2 threads); random inputs"
    rows = [
        replace(row(subject="mobilenet", device=device), text=text, figures=tuple(long))
        for device in (*devices, "litert-cpu (plain kernels)")
    ]
    write_page(result(*rows), tmp_path / "wide.html")
    size = {"width": 1240, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    opened.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    opened.driver.get((tmp_path / "wide.html").as_uri())
    script = (
        "return [...document.querySelectorAll('.scroll')].map(e => [e.scrollWidth, e.clientWidth])"
    )
    widths = opened.driver.execute_script(script)
    assert widths
    assert [inner for inner, outer in widths if inner > outer] == []
