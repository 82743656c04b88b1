"""A headless Chromium, and what tests ask of a page in it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
)  # fmt: skip
PATIENCE_S = 20


def why_not() -> str | None:
    """Why there is no browser; None if there is one."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium is not installed"
    if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
        return "Chromium and its driver are not installed (apt install chromium chromium-driver)"
    return None


class Browser:
    """One window, in which pages open at given sizes and colours."""

    def __init__(self, profile: Path) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        for flag in (*FLAGS, f"--user-data-dir={profile}", "--window-size=1280,900"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver: Any = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))

    def open(self, page: Path, *, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        wanted = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in wanted.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self.driver.get(page.as_uri())
        self.script("try { localStorage.clear() } catch {}")
        self.driver.refresh()
        self.until(lambda: self.canvas("scale"))

    def script(self, code: str, *args: Any) -> Any:
        return self.driver.execute_script(code, *args)

    def text(self, selector: str) -> str:
        return str(self.script("return document.querySelector(arguments[0])?.innerText ?? ''", selector))

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def canvas(self, name: str) -> str:
        """What the graph's canvas says of its view: scale, x, y, selected."""
        return str(self.script("return document.getElementById('graph')?.dataset[arguments[0]] ?? ''", name))

    def press(self, *keys: str) -> None:
        """Keys, to the element with the focus."""
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def click_node(self, i: int) -> None:
        """Click a node of the shown graph of kernels where it is drawn."""
        from selenium.webdriver.common.action_chains import ActionChains

        graph = self.data()["graphs"][-1]
        scale, left, top = (float(self.canvas(name)) for name in ("scale", "x", "y"))
        canvas = self.find("#graph")
        self.script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", canvas)
        size = self.script("return [arguments[0].clientWidth, arguments[0].clientHeight]", canvas)
        x, y = (
            round(n * scale + d - s / 2)
            for n, d, s in zip((graph["x"][i], graph["y"][i]), (left, top), size, strict=True)
        )
        ActionChains(self.driver).move_to_element_with_offset(canvas, x, y).click().perform()

    def data(self) -> Any:
        return json.loads(self.script("return document.getElementById('data').textContent"))

    def errors(self) -> list[str]:
        """What the console says since it was asked last."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def until(self, holds: Callable[[], object]) -> None:
        """Wait until something holds."""
        end = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < end, "the page did not get there"
            time.sleep(0.02)

    def close(self) -> None:
        self.driver.quit()
