"""A real Chromium, as a person uses it: pages, keys, colours and widths."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from selenium import webdriver
from selenium.common.exceptions import (
    ElementClickInterceptedException,
    ElementNotInteractableException,
    JavascriptException,
    NoSuchElementException,
    SessionNotCreatedException,
    StaleElementReferenceException,
)
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

# At one moment, and in one question: an element of a list may be drawn anew before it is asked for its text.
_SEEN = """
return [...document.querySelectorAll(arguments[0])]
  .filter((of) => of.checkVisibility({ visibilityProperty: true }))
  .map((of) => of.innerText.trim());
"""

# What is asked for is not there yet, or is being drawn anew: of the page, of an element, of a list of them.
_NOT_YET = (
    ElementClickInterceptedException,
    ElementNotInteractableException,
    IndexError,
    JavascriptException,
    NoSuchElementException,
    StaleElementReferenceException,
)
_STARTS = 3


class Browser:
    """One tab, whose page draws itself when answers come: `shows`, `found`, `click`, `type`, `tab_to` and `comes_true`
    wait. All else is of this very moment.
    """

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def look(self, *, dark: bool = False, width: int = 1280, height: int = 900) -> None:
        """As a person with this screen, and this choice of colours in the operating system, sees it."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        # The browser answers before the page has heard of it.
        heard = "return [innerWidth, matchMedia('(prefers-color-scheme: dark)').matches]"
        self.comes_true(lambda: self.run(heard) == [width, dark], what=f"a screen of {width}, dark: {dark}")

    def open(self, url: str) -> None:
        """From anew, also where only what is behind # differs."""
        self.driver.get("about:blank")
        self.driver.get(url)

    def run(self, script: str, *arguments: object) -> Any:
        """The value of JavaScript's `return`."""
        return self.driver.execute_script(script, *arguments)

    def all(self, selector: str) -> list[WebElement]:
        """The elements that are there now, to be counted: each may be drawn anew before it is used."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        """What is seen of each of them now."""
        return self.run(_SEEN, selector)

    def text(self, selector: str = "body") -> str:
        """What is seen of all of them now."""
        return "\n".join(self.texts(selector))

    def shows(self, text: str, selector: str = "body") -> None:
        """Waits until it is seen."""
        self.comes_true(lambda: text in self.text(selector), what=f"{text!r} in {selector}")

    def found(self, pattern: str, selector: str) -> re.Match[str]:
        """Waits until something like it is seen."""
        matches: list[re.Match[str]] = []

        def seen() -> bool:
            matches.extend(re.finditer(pattern, self.text(selector)))
            return bool(matches)

        self.comes_true(seen, what=f"{pattern} in {selector}")
        return matches[0]

    def comes_true(self, condition: Callable[[], object], seconds: float = LONG_SECONDS, what: str = "it") -> None:
        """Waits for it. Where it asks for what is not there yet, as by an error in JavaScript, it is not true yet."""
        last: list[BaseException | None] = [None]

        def true() -> object:
            try:
                met = condition()
            except _NOT_YET as error:
                last[0] = error
                return False
            last[0] = None
            return met

        try:
            until(true, seconds, 0.05)
        except TimeoutError:
            why = f" ({type(last[0]).__name__}: {str(last[0]).partition(chr(10))[0]})" if last[0] else ""
            raise AssertionError(f"{what} never came true{why}; the page: {self.text()}") from last[0]

    def click(self, selector: str, text: str = "", at: int = 0) -> None:
        """Clicks one of the elements, once it is there and can be clicked.

        Args:
            text: Only those that show just this.
            at: Which one of them.
        """
        self._with(selector, text, at, lambda element: element.click())

    def type(self, selector: str, *keys: str, at: int = 0) -> None:
        """Types into one of the elements, likewise."""
        self._with(selector, "", at, lambda element: element.send_keys(*keys))

    def _with(self, selector: str, text: str, at: int, act: Callable[[WebElement], None]) -> None:
        def done() -> bool:
            element = [of for of in self.all(selector) if not text or of.text.strip() == text][at]
            if not (element.is_displayed() and element.is_enabled()):
                return False
            act(element)
            return True

        self.comes_true(done, what=f"number {at} of {selector} {text}".rstrip())

    def press(self, *keys: str) -> None:
        """Keys, one after the other, wherever the focus is."""
        ActionChains(self.driver).send_keys(*keys).perform()

    def press_with_control(self, key: str) -> None:
        """The same of one key while Ctrl is held."""
        ActionChains(self.driver).key_down(Keys.CONTROL).send_keys(key).key_up(Keys.CONTROL).perform()

    def tab_to(self, wanted: str, most: int = 60) -> None:
        """Presses Tab until the focus is on an element that the selector names; waits until there is one."""
        self.comes_true(lambda: self.all(wanted), what=wanted)
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

    def asked_since(self, moment: float) -> int:
        """How many requests it has begun since then, of those that have ended. `moment`: by `performance.now()`."""
        begun = "return performance.getEntriesByType('resource').filter(of => of.startTime > arguments[0]).length"
        return int(self.run(begun, moment))


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
    driver = _started(options)
    driver.set_script_timeout(LONG_SECONDS)
    try:
        yield Browser(driver)
    finally:
        driver.quit()


def _started(options: webdriver.ChromeOptions) -> webdriver.Chrome:
    """Its driver waits a minute for a Chromium to start, which may be too short on a busy machine: then once more."""
    environ = {**os.environ, "NO_PROXY": "127.0.0.1"}
    for left in reversed(range(_STARTS)):
        try:
            return webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver") or "", env=environ))
        except SessionNotCreatedException:
            if not left:
                raise
    raise AssertionError("the last one returns or raises")
