"""A headless Chromium whose camera and microphone are files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

T = TypeVar("T")

PATIENCE_S = 40
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--use-fake-ui-for-media-stream",
    "--use-fake-device-for-media-stream",
)


def missing() -> str:
    """Why there is no browser; empty where there is one."""
    absent = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    if not absent:
        return ""
    return f"no {' and no '.join(absent)}: apt-get install chromium chromium-driver"


class Browser:
    """One open page, as tests look at it."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def click(self, selector: str) -> None:
        """Click what a selector of CSS finds."""
        self.driver.find_element(By.CSS_SELECTOR, selector).click()

    def text(self, selector: str) -> str:
        """The text of what a selector finds."""
        return str(self.driver.find_element(By.CSS_SELECTOR, selector).text)

    def until(self, what: Callable[[], T]) -> T:
        """Wait until something is true, and return it."""
        wait: WebDriverWait[webdriver.Chrome] = WebDriverWait(self.driver, PATIENCE_S, 0.05)
        return wait.until(lambda _: what())

    def complaints(self) -> list[str]:
        """What the page or the browser complained of, other than lost connections."""
        entries = self.driver.get_log("browser")  # type: ignore[no-untyped-call]  # of selenium
        told = [str(entry["message"]) for entry in entries if entry["level"] == "SEVERE"]
        return [text for text in told if "ERR_CONNECTION" not in text]


@contextmanager
def open_browser(
    profile: Path, *, camera: Path | None = None, microphone: Path | None = None
) -> Iterator[Browser]:
    """A browser with an empty profile, and this camera (Y4M) and microphone (WAV)."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in _FLAGS:
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={profile}")
    if camera is not None:
        options.add_argument(f"--use-file-for-fake-video-capture={camera}")
    if microphone is not None:
        options.add_argument(f"--use-file-for-fake-audio-capture={microphone}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = Service(shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield Browser(driver)
    finally:
        driver.quit()
