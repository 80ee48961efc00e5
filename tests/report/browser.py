"""A headless Chromium, driven through selenium, with what the tests ask a page."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("selenium")
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
THERE = PROGRAM is not None and DRIVER is not None
needed = pytest.mark.skipif(
    not THERE and "KDISSECT_CI" not in os.environ, reason="no Chromium (apt install chromium chromium-driver)"
)
"""For tests that look at a page; in CI a missing browser is a failure, not a skip."""


class Page:
    """A page in a window."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, path: Path, scheme: str = "light", width: int = 1280, height: int = 900) -> Page:
        """Load a report and wait until its charts are drawn."""
        self.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.command("Emulation.setDeviceMetricsOverride", **size)
        self.driver.get(path.resolve().as_uri())
        end = time.monotonic() + 60
        while self.run("return document.documentElement.dataset.ready") != "yes":
            assert time.monotonic() < end, f"the page was never ready: {self.messages()}"
            time.sleep(0.05)
        return self

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page and return what it returns."""
        return self.driver.execute_script(script, *arguments)

    def command(self, name: str, **arguments: Any) -> Any:
        """A command of the browser's own protocol."""
        return self.driver.execute_cdp_cmd(name, arguments)

    def messages(self) -> list[str]:
        """What the console has said since it was asked last."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def choose(self, control: str, value: str | bool) -> None:
        """Set a choice of a figure and wait for the drawing."""
        self.run(
            """const [name, value] = arguments, one = document.querySelector(`[data-control="${name}"]`);
            if (one.type === "checkbox") one.checked = value; else one.value = value;
            one.dispatchEvent(new Event(one.type === "search" ? "input" : "change"));""",
            control,
            value,
        )
        time.sleep(0.3)


@contextmanager
def browser(downloads: Path) -> Iterator[Page]:
    """A browser that saves downloads in a folder; it is ended with its processes."""
    options = webdriver.ChromeOptions()
    options.binary_location = PROGRAM or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        yield Page(driver)
    finally:
        driver.quit()
