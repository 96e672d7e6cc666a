"""A real Chromium, as a person uses it: pages, keys, colours and widths."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from tests.support.waiting import LONG_SECONDS, until

# Of each text of the page that is seen on one plain colour: how it stands out, by WCAG 2.
_CONTRASTS = """
const linear = v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const rgba = colour => {
  pen.clearRect(0, 0, 1, 1);
  pen.fillStyle = colour;
  pen.fillRect(0, 0, 1, 1);
  return pen.getImageData(0, 0, 1, 1).data;
};
const light = c => 0.2126 * linear(c[0]) + 0.7152 * linear(c[1]) + 0.0722 * linear(c[2]);
const back = element => {
  for (let at = element; at; at = at.parentElement) {
    const style = getComputedStyle(at);
    if (style.backgroundImage !== "none" || style.opacity !== "1") return null;
    const colour = rgba(style.backgroundColor);
    if (colour[3] === 255) return colour;
  }
  return null;
};
const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement;
  const box = element.getBoundingClientRect();
  if (!walker.currentNode.data.trim() || box.width < 2 || element.closest(".sr, .skip, script, noscript")) continue;
  const behind = back(element);
  if (!behind) continue;
  const [a, b] = [light(rgba(getComputedStyle(element).color)), light(behind)].sort((x, y) => y - x);
  const ratio = (a + 0.05) / (b + 0.05);
  if (ratio < 4.5) found.push(`${walker.currentNode.data.trim().slice(0, 40)}: ${ratio.toFixed(2)}`);
}
return found;
"""


class Browser:
    """One tab. What is asked for may still come: `until` waits for it."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def look(self, *, dark: bool = False, width: int = 1280, height: int = 900) -> None:
        """As a person with this screen, and this choice of colours in the operating system, sees it."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)

    def open(self, url: str) -> None:
        """From anew, also where only what is behind # differs."""
        self.driver.get("about:blank")
        self.driver.get(url)

    def run(self, script: str, *arguments: object) -> Any:
        """The value of JavaScript's `return`."""
        return self.driver.execute_script(script, *arguments)

    def all(self, selector: str) -> list[WebElement]:
        """The elements that are there now."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str = "body") -> str:
        """What is seen of all of them."""
        try:
            return "\n".join(element.text for element in self.all(selector))
        except StaleElementReferenceException:  # it was drawn anew meanwhile
            return ""

    def shows(self, text: str, selector: str = "body") -> None:
        """Waits until it is seen."""
        try:
            until(lambda: text in self.text(selector), LONG_SECONDS, 0.05)
        except TimeoutError:
            raise AssertionError(f"{text!r} is not seen in {selector}: {self.text(selector)}") from None

    def comes_true(self, condition: Callable[[], object]) -> None:
        """Waits for it."""
        try:
            until(condition, LONG_SECONDS, 0.05)
        except TimeoutError:
            raise AssertionError(f"it never came true; the page: {self.text()}") from None

    def press(self, *keys: str) -> None:
        """Keys, one after the other, wherever the focus is."""
        ActionChains(self.driver).send_keys(*keys).perform()

    def press_with_control(self, key: str) -> None:
        """The same of one key while Ctrl is held."""
        ActionChains(self.driver).key_down(Keys.CONTROL).send_keys(key).key_up(Keys.CONTROL).perform()

    def tab_to(self, wanted: str, most: int = 60) -> None:
        """Presses Tab until the focus is on an element that the selector names."""
        for _ in range(most):
            if self.run("return document.activeElement.matches(arguments[0])", wanted):
                return
            self.press(Keys.TAB)
        raise AssertionError(f"Tab does not come to {wanted}")

    def too_wide(self) -> list[str]:
        """What sticks out of the screen at its right."""
        return self.run(
            """if (document.documentElement.scrollWidth <= innerWidth) return [];
            return [...document.querySelectorAll("body *")]
              .filter((of) => of.getBoundingClientRect().right > innerWidth + 1)
              .map((of) => of.outerHTML.slice(0, 100));"""
        )

    def pale(self) -> list[str]:
        """Texts that stand out too little from what is behind them."""
        return self.run(_CONTRASTS)

    def complaints(self) -> list[str]:
        """What the browser has written into its console since it was asked last: errors, and what its rules refused."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]

    def asked(self) -> int:
        """How many requests the page has made."""
        return int(self.run("return performance.getEntriesByType('resource').length"))


@contextmanager
def browser() -> Iterator[Browser]:
    """A Chromium of its own, without a window; it speaks to loopback only."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in (
        "--headless=new",
        "--no-sandbox",  # root may not have it
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--no-proxy-server",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        "--disable-background-networking",
        "--disable-component-update",
        "--js-flags=--expose-gc",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(shutil.which("chromedriver") or "", env={**os.environ, "NO_PROXY": "127.0.0.1"})
    driver = webdriver.Chrome(options, service)
    try:
        yield Browser(driver)
    finally:
        driver.quit()
