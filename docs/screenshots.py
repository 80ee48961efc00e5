"""Makes the pictures of README and docs from a recorded capture: the first screen as SVG (by rich), the report as PNG.

    python docs/screenshots.py            writes docs/images/
    python docs/screenshots.py FOLDER     writes there

The report's pictures need Chromium (apt install chromium chromium-driver) and selenium; without them they are left out.
"""

from __future__ import annotations

import base64
import io
import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI

import kdissect
from kdissect.cli.printing import screen

ROOT = Path(__file__).resolve().parents[1]
CAPTURE = "captures/k4_session_eviction.pcap"
"""A broker whose session slots are taken by one client: the report has something to say about it."""
LATE = "captures/stories/slow_consumer.pcap.zst"
"""A consumer group that gets its records seconds late."""
COLUMNS = 100
WIDTH, HEIGHT = 1200, 860
"""Of the report's pictures, in pixels."""
SHOTS = {"report.png": (CAPTURE, "light", "findings"), "report_dark.png": (CAPTURE, "dark", "latencies"),
         "report_sessions.png": (CAPTURE, "light", "fetch-sessions"),
         "report_deliveries.png": (LATE, "light", "records")}  # fmt: skip
"""Files, with the capture, the colour scheme and the section that they show."""


def terminal(target: Path) -> None:
    """The first screen as an SVG without fonts from elsewhere."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(f"[bold]$[/] kdissect {CAPTURE}")
    for line in screen.render(kdissect.open(ROOT / CAPTURE).summary(), [CAPTURE], COLUMNS):
        console.print(line)
    picture = console.export_svg(title="kdissect", theme=MONOKAI, unique_id="screen")
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    target.write_text("\n".join(line.rstrip() for line in picture.splitlines()) + "\n")


def report(folder: Path) -> bool:
    """The report's pictures; False where there is no browser."""
    driver_path = shutil.which("chromedriver")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if driver_path is None or program is None:
        return False
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=Service(driver_path))
    try:
        with tempfile.TemporaryDirectory() as aside:
            for name, (capture, scheme, section) in SHOTS.items():
                page = Path(aside) / "report.html"
                kdissect.open(ROOT / capture).report(page, named=capture)
                media = [{"name": "prefers-color-scheme", "value": scheme}]
                driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
                size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
                driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
                driver.get(page.as_uri())
                end = time.monotonic() + 60
                while driver.execute_script("return document.documentElement.dataset.ready") != "yes":
                    if time.monotonic() > end:
                        raise TimeoutError("the report was never drawn")
                    time.sleep(0.05)
                if section != "findings":
                    jump = "document.getElementById(arguments[0]).scrollIntoView({behavior: 'instant'})"
                    driver.execute_script(jump, section)
                    time.sleep(0.3)
                shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
                (folder / name).write_bytes(base64.b64decode(shot["data"]))
    finally:
        driver.quit()
    return True


def main(arguments: list[str]) -> None:
    """Write all pictures into the folder given, docs/images when none is."""
    folder = Path(arguments[0]) if arguments else ROOT / "docs" / "images"
    folder.mkdir(parents=True, exist_ok=True)
    terminal(folder / "first_screen.svg")
    if not report(folder):
        sys.stderr.write(f"no Chromium and chromedriver on the PATH: only first_screen.svg in {os.fspath(folder)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
