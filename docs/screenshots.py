"""Pictures of pages, by a browser: python docs/screenshots.py

The page of `hace serve --demo` after a click on a photo, on a screen and on a phone in dark colours; and of the page of a
study, the one that the site links, the first screen and the sunburst.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from selenium import webdriver

sys.path.append(str(Path(__file__).parent))
from hooks import example_report

from hace.lab.serve.demo import train_demo
from hace.lab.serve.predictor import Predictor
from hace.lab.serve.server import listening, make_app, make_server

IMAGES = Path(__file__).parent / "images"
CLICK = "document.querySelectorAll('.samples button')[{}].click()"
SLIDE = "const s = document.getElementById('sure'); s.value = {}; s.dispatchEvent(new Event('input'))"
TO_SUNBURST = "document.getElementById('sunburst').scrollIntoView()"
COLOURS = 128  # of a picture: fewer make a small file


@contextmanager
def demo_server() -> Iterator[tuple[str, int, int]]:
    """The address of the demo's server, and which samples get a true answer above the species at 90 and at 99%."""
    with tempfile.TemporaryDirectory() as folder, listening("127.0.0.1", 0) as sock:
        run, samples = train_demo(Path(folder))
        predictor = Predictor.from_run(run)
        images = [
            Image.open(io.BytesIO(sample.content)) for sample in samples if isinstance(sample.content, bytes)
        ]
        above = [predictor.hierarchy.path(sample.truth)[1:] for sample in samples]

        def vague(accuracy: float) -> list[int]:
            answers = predictor.predict(images, accuracy=accuracy).answers.ids
            return [i for i, answer in enumerate(answers) if answer in above[i][:1]]

        screen = vague(0.9)[0]
        phone = next(i for i in vague(0.99) if i != screen)
        app = make_app(predictor, title="Which creature is it?", samples=samples)
        server = make_server(app, log_level="error")
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{sock.getsockname()[1]}/", screen, phone
        server.should_exit = True
        thread.join(20)


def browser() -> Any:
    """A browser without a window."""
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))


def shot(
    driver: Any, name: str, width: int, height: int, address: str, *scripts: str, dark: bool = False
) -> None:
    """Write a picture of a page, after some scripts."""
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    colours = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [colours]})
    driver.get(address)
    for script in scripts:
        time.sleep(2)
        driver.execute_script(script)
    time.sleep(2)
    picture = Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(IMAGES / name, optimize=True)


def main() -> None:
    """Write all pictures."""
    driver = browser()
    try:
        with demo_server() as (address, screen, phone):
            shot(driver, "serve.png", 1080, 700, address, CLICK.format(screen), SLIDE.format(90))
            shot(
                driver, "serve-phone.png", 390, 838, address, CLICK.format(phone), SLIDE.format(99), dark=True
            )
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "report.html"
            page.write_text(example_report(), encoding="utf-8")
            shot(driver, "study-page.png", 1180, 680, page.as_uri())
            shot(driver, "study-sunburst.png", 1180, 784, page.as_uri(), TO_SUNBURST)
    finally:
        driver.quit()


if __name__ == "__main__":
    main()
