"""Links to servers that come and go, and to one that does not answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import ClassVar

import pytest

from keyhole.coordinator import fleet as fleet_module
from keyhole.coordinator.fleet import Fleet
from keyhole.errors import DeadlineExceeded, KeyholeError, ServerLost
from keyhole.protocol.membership import Sighting
from keyhole.protocol.receipts import Target
from tests.support.states import target
from tests.support.waiting import LONG_SECONDS, until

# In place of the two seconds that a server is waited for.
ASK_SECONDS = 1.0


class FakeLink:
    """A server at an address: it answers, hangs, or is not there."""

    made: ClassVar[dict[str, FakeLink]] = {}

    def __init__(self, address: str, credentials: object = None) -> None:
        self.address = address
        self.responsive = True
        self.hangs = self.is_gone = self.closed = False
        self.patience = ASK_SECONDS
        self.goes_on = threading.Event()
        self.asked = 0
        FakeLink.made[address] = self

    def describe(self) -> Sighting:
        self.asked += 1
        if self.is_gone:
            raise ServerLost("refused")
        if self.hangs:
            self.goes_on.wait(self.patience)
            self.responsive = False
            raise DeadlineExceeded("no answer")
        self.responsive = True
        return Sighting(Target(self.address.split(":")[0], self.address, "1"))

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def addresses() -> set[str]:
    return {"a:7410", "b:7410"}


@pytest.fixture
def fleet(addresses: set[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    monkeypatch.setattr(fleet_module, "ServerLink", FakeLink)
    monkeypatch.setattr(FakeLink, "made", {})
    made = Fleet(lambda: addresses)
    yield made
    made.close()


def test_servers_are_seen_as_soon_as_their_addresses_are_known(fleet: Fleet, addresses: set[str]) -> None:
    assert set(fleet.observe()) == {"a", "b"}
    addresses.add("c:7410")
    assert set(fleet.observe()) == {"a", "b", "c"}


def test_one_whose_address_is_not_known_any_more_counts_while_it_answers(fleet: Fleet, addresses: set[str]) -> None:
    fleet.observe()
    addresses.remove("b:7410")
    assert set(fleet.observe()) == {"a", "b"}
    link = FakeLink.made["b:7410"]
    link.is_gone = True
    assert set(fleet.observe()) == {"a"}
    assert link.closed
    assert fleet.observe()
    assert link.asked == 3, "nobody asks it any more"


def test_one_that_does_not_answer_is_told_apart_from_one_that_is_gone(fleet: Fleet) -> None:
    fleet.observe()
    assert fleet.silent() == []
    FakeLink.made["a:7410"].hangs = True
    FakeLink.made["b:7410"].is_gone = True
    fleet.observe()
    assert fleet.silent() == ["a:7410"]
    FakeLink.made["a:7410"].hangs = False
    FakeLink.made["a:7410"].goes_on.set()
    until(lambda: "a" in fleet.observe())
    assert fleet.silent() == []


def test_one_that_does_not_answer_is_waited_for_once(fleet: Fleet) -> None:
    fleet.observe()
    link = FakeLink.made["a:7410"]
    link.hangs = True
    begun = time.monotonic()
    assert set(fleet.observe()) == {"b"}
    assert time.monotonic() - begun >= ASK_SECONDS
    link.patience = LONG_SECONDS  # who waits for it fails
    begun = time.monotonic()
    for _ in range(5):
        assert set(fleet.observe()) == {"b"}
    assert time.monotonic() - begun < LONG_SECONDS
    link.goes_on.set()


def test_one_that_answers_again_counts_again(fleet: Fleet) -> None:
    fleet.observe()
    link = FakeLink.made["a:7410"]
    link.hangs = True
    fleet.observe()
    link.hangs = False
    assert set(fleet.observe()) == {"b"}  # it is asked, but not waited for
    until(lambda: link.responsive)
    assert set(fleet.observe()) == {"a", "b"}


def test_a_question_of_another_kind_does_not_wait_for_it_either(fleet: Fleet) -> None:
    fleet.observe()
    links = [fleet.link(Target(name, f"{name}:7410", "1")) for name in "ab"]
    links[0].responsive = False
    answers = fleet.ask("Confirm", {link.address: (link, lambda: "yes") for link in links})
    assert answers["b:7410"] == "yes"
    assert isinstance(answers["a:7410"], ServerLost)


def test_errors_of_single_calls_are_results(fleet: Fleet) -> None:
    def fails() -> str:
        raise ServerLost("gone")

    results = fleet.each({"well": lambda: "done", "ill": fails})
    assert results["well"] == "done"
    assert isinstance(results["ill"], KeyholeError)


def test_a_link_is_made_for_a_server_that_was_never_seen(fleet: Fleet) -> None:
    assert fleet.link(target("x")).address == "x:7410"
