"""What the console's tests wait by: that something is not there yet is no failure, and is said once time is over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from selenium.common.exceptions import (
    ElementClickInterceptedException,
    JavascriptException,
    StaleElementReferenceException,
)
from selenium.webdriver.remote.webelement import WebElement

from tests.support import waiting
from tests.support.browser import Browser


class Element(WebElement):
    """A button. `refuses`: what its first clicks meet."""

    def __init__(self, text: str, refuses: list[Exception], *, enabled: bool = True) -> None:
        self._text, self._refuses, self._enabled = text, refuses, enabled
        self.clicks = 0

    @property
    def text(self) -> str:
        return self._text

    def is_displayed(self) -> bool:
        return True

    def is_enabled(self) -> bool:
        return self._enabled

    def click(self) -> None:
        if self._refuses:
            raise self._refuses.pop(0)
        self.clicks += 1


class Page:
    """In place of a driver: a page that is drawn step by step, one at each question."""

    def __init__(self, *steps: object) -> None:
        self._steps = list(steps)

    def _next(self) -> Any:
        step = self._steps.pop(0) if len(self._steps) > 1 else self._steps[0]
        if isinstance(step, Exception):
            raise step
        return step

    def execute_script(self, script: str, *_: object) -> Any:
        return ["what is seen"] if "innerText" in script else self._next()

    def find_elements(self, *_: object) -> Any:
        return self._next()


def page(*steps: object) -> Browser:
    return Browser(Page(*steps))


AWAY = JavascriptException("Cannot read properties of null (reading 'value')")


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time to wait in."""
    monkeypatch.setattr(waiting.time, "sleep", lambda _: None)
    clock = iter(range(10**6))
    monkeypatch.setattr(waiting.time, "monotonic", lambda: 50.0 * next(clock))


def test_an_element_that_is_not_there_yet_is_waited_for_by_script_by_place_and_by_click() -> None:
    looked = page(AWAY, AWAY, "typed")
    looked.comes_true(lambda: looked.run("return document.querySelector('textarea').value") == "typed")

    listed = page([], [], ["first", "second"])
    listed.comes_true(lambda: listed.all("li")[1] == "second")

    refusals: list[Exception] = [StaleElementReferenceException(), ElementClickInterceptedException()]
    other, wanted = Element("other", []), Element(" wanted\n", refusals)
    page([], [other], [other, Element("wanted", [], enabled=False)], [other, wanted]).click("button", "wanted")
    assert (other.clicks, wanted.clicks) == (0, 1)


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda of: of.comes_true(lambda: of.run("return 0")), r"it never came true \(.*reading 'value'"),
        (
            lambda of: of.comes_true(lambda: of.run("return 0"), what="a text"),
            r"^a text never .* the page: what is seen",
        ),
        (lambda of: of.shows("more"), "'more' in body never came true; the page: what is seen"),
        (lambda of: of.found(r"\d", "main"), r"\\d in main never came true; the page: what is seen"),
        (lambda of: of.click("button", "wanted", at=2), r"number 2 of button wanted never .*reading 'value'"),
    ],
)
def test_what_never_comes_is_named_with_the_last_error_and_what_is_seen(
    act: Callable[[Browser], object], says: str
) -> None:
    with pytest.raises(AssertionError, match=says):
        act(page(AWAY))


@pytest.mark.usefixtures("hurried")
def test_an_error_of_a_test_itself_is_none_of_a_page_that_is_not_there_yet() -> None:
    with pytest.raises(ZeroDivisionError):
        page("").comes_true(lambda: 1 / 0)
    with pytest.raises(TimeoutError, match="there is: half of it"):
        waiting.until(lambda: False, seen=lambda: "half of it")
