"""Pictures of the live page for docs/images, taken in a headless Chromium.

    python -m scripts.live_pictures

The camera of that browser shows written digits on a wall, its microphone plays the demo's words.
"""

from __future__ import annotations

import argparse
import itertools
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from nnasync.vision import resized
from tests.cli.live.browser import Browser, open_browser
from tests.cli.live.media import write_microphone

ROOT = Path(__file__).resolve().parents[1]
SIZE = 480
WIDTH = 640
MARGIN = 12
DIGITS = 6
SHOTS = (
    ("live-desktop.png", 1280, False, 1.0),
    ("live-dark.png", 1280, True, 1.0),
    ("live-phone.png", 390, True, 1.5),
)
"""Name, width in CSS pixels, dark or not, pixels to one of CSS."""


def main() -> None:
    """Take all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument(
        "--seed",
        type=int,
        default=7,
        help="of the first scene that is tried; one with six digits is taken",
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, _server() as url:
        folder = Path(name)
        write_camera(folder / "camera.y4m", arguments.seed, frames=90)
        write_microphone(folder / "microphone.wav", seconds=20)
        paths = folder / "camera.y4m", folder / "microphone.wav", folder / "profile"
        with open_browser(*paths) as page:
            _use(page, url)
            for shot in SHOTS:
                take(page, arguments.out, *shot)


def write_camera(path: Path, seed: int, frames: int) -> None:
    """A scene with digits that a hand does not hold still, as a Y4M file of 30 a second."""
    sys.path.insert(0, str(ROOT / "scripts"))
    from training.detection_scenes import scene

    scenes = (scene(np.random.default_rng(number)) for number in itertools.count(seed))
    found = next(each for each in scenes if len(each.boxes) >= DIGITS)
    large = resized(found.image, (WIDTH + 2 * MARGIN,) * 2)
    middle = (found.boxes[:, 1].min() + found.boxes[:, 3].max()) / 2 / found.image.shape[0]
    top = min(max(round(middle * WIDTH - SIZE / 2), 0), WIDTH - SIZE)
    chroma = np.full(WIDTH * SIZE // 2, 128, np.uint8).tobytes()
    with path.open("wb") as file:
        file.write(f"YUV4MPEG2 W{WIDTH} H{SIZE} F30:1 Ip A1:1 C420jpeg\n".encode())
        for index in range(frames):
            angle = 2 * np.pi * index / frames
            x = MARGIN + round(MARGIN * np.sin(angle))
            y = top + MARGIN + round(MARGIN * np.sin(2 * angle))
            shown = np.ascontiguousarray(large[y : y + SIZE, x : x + WIDTH])
            file.write(b"FRAME\n" + shown.tobytes() + chroma)


@contextmanager
def _server() -> Iterator[str]:
    command = [sys.executable, "-m", "nnasync", "live", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"http://\S+", line):
                yield found[0]
                break
        process.terminate()


def _use(page: Browser, url: str) -> None:
    """Turn the camera on, add load, kill the driver once, and let the plots fill."""
    page.driver.get(url)
    page.until(lambda: page.text("#connection") == "connected")
    page.click("#use-camera")
    page.until(lambda: page.text("#sees")[:1].isdigit())
    page.click("#kill")
    page.until(lambda: "recognized again" in page.text("#log"))
    page.click("#load [data-value='1']")
    page.until(lambda: len(page.driver.find_elements("css selector", "#words li")) >= 5)
    page.until(lambda: page.driver.execute_script("return performance.now() > 25000"))


def take(page: Browser, folder: Path, name: str, width: int, is_dark: bool, scale: float) -> None:
    """A picture of the whole page, as wide as that."""
    driver = page.driver
    scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    size = {"width": width, "height": 900, "deviceScaleFactor": scale, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    size["height"] = driver.execute_script("return document.body.scrollHeight")
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    begun = driver.execute_script("return performance.now()")
    page.until(lambda: driver.execute_script("return performance.now()") > begun + 3000)
    page.until(lambda: page.text("#sees")[:1].isdigit())
    driver.save_screenshot(str(folder / name))


if __name__ == "__main__":
    main()
