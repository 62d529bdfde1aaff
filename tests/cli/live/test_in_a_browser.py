"""The live page in a real browser, whose camera and microphone play the demo's clips."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nnasync.cli import demo_data
from tests.cli.live import browser, media
from tests.cli.live.browser import Browser

pytestmark = pytest.mark.skipif(bool(browser.missing()), reason=browser.missing() or "there is one")

WORDS = set(demo_data.words_truth().names)


class Server:
    """`nnasync live` as a process that can be ended and started again at the same address."""

    def __init__(self, state: Path) -> None:
        self._environment = os.environ | {"NNASYNC_STATE_DIR": str(state)}
        self._port = "0"
        self.url = ""
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "nnasync", "live", "--port", self._port]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, env=self._environment, text=True
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if found := re.search(r"http://127.0.0.1:(\d+)/", line):
                self.url, self._port = found[0], found[1]
                return
        raise AssertionError("the server ended before it served")

    def stop(self) -> int:
        self._process.send_signal(signal.SIGINT)
        self._process.communicate(timeout=30)
        return self._process.returncode


@pytest.fixture(scope="module")
def server(live_state: Path) -> Iterator[Server]:
    server = Server(live_state)
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def page(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """The page with its camera on, which has seen a digit."""
    folder = tmp_path_factory.mktemp("browser")
    camera, microphone = folder / "camera.y4m", folder / "microphone.wav"
    media.write_camera(camera, frames=60)
    media.write_microphone(microphone, seconds=6)
    with browser.open_browser(folder / "profile", camera=camera, microphone=microphone) as page:
        page.driver.get(server.url)
        page.until(lambda: page.text("#connection") == "connected")
        page.click("#use-camera")
        page.until(lambda: sees_a_digit(page))
        yield page
        assert page.complaints() == []


def sees_a_digit(page: Browser) -> bool:
    return page.text("#sees")[:1].isdigit()


def is_chosen(page: Browser, group: str, value: str) -> bool:
    """Whether a choice is what the server says, which it is in each tick."""
    script = "return document.querySelector(arguments[0]).getAttribute('aria-checked')"
    found = page.driver.execute_script(script, f"{group} [data-value='{value}']")
    return bool(found == "true")


def test_boxes_and_words_of_camera_and_microphone_are_on_the_page(page: Browser) -> None:
    page.until(lambda: page.text("#words li") in WORDS)
    assert page.text("#hears") in WORDS
    script = """
        const canvas = document.getElementById("scene");
        const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        return data.some((value, place) => place % 4 === 3 && value === 255);
    """
    page.until(lambda: sees_a_digit(page) and page.driver.execute_script(script))
    came, completed = (int(number) for number in re.findall(r"\d+", page.text(".account"))[:2])
    assert 0 < completed <= came


@pytest.mark.slow
def test_priority_deadline_and_load_are_changed_on_the_page(page: Browser) -> None:
    page.click("#stream-video [data-value='LOW']")
    page.click("#load [data-value='1']")
    page.until(lambda: "answers a second" in page.text("#load-rate"))
    script = """
        const slider = document.querySelector("#stream-video input");
        slider.value = 80;
        slider.dispatchEvent(new Event("input"));
    """
    page.driver.execute_script(script)
    page.until(lambda: page.text("#stream-video .deadline output") == "251 ms")
    assert is_chosen(page, "#stream-video", "LOW")
    page.click("#load [data-value='0']")
    page.until(lambda: page.text("#load-rate") == "")


def test_a_network_that_is_cut_comes_back(page: Browser) -> None:
    page.click("#network [data-value='cut']")
    page.until(lambda: "lost" in page.text("#network-lost"))
    page.click("#network [data-value='normal']")
    page.until(lambda: "video is back: nothing came for" in page.text("#log"))
    page.until(lambda: sees_a_digit(page))


def test_a_driver_that_is_killed_comes_back(page: Browser) -> None:
    page.until(lambda: "process" in page.text("#driver-state"))
    page.click("#kill")
    page.until(lambda: "was killed" in page.text("#log"))
    page.until(lambda: "pictures are recognized again" in page.text("#log"))
    assert "killed once" in page.text("#driver-state")


@pytest.mark.slow
def test_a_server_that_was_gone_is_connected_to_again(page: Browser, server: Server) -> None:
    assert server.stop() == 0
    page.until(lambda: page.driver.find_elements("css selector", "#connection[data-state=closed]"))
    server.start()
    page.until(lambda: page.text("#connection") == "connected")
    page.driver.execute_script("document.getElementById('sees').textContent = ''")
    page.until(lambda: sees_a_digit(page))
