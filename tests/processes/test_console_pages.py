"""The console in a real Chromium, beside a stack without Spark: colours, widths, keys, tokens, and servers that die."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from selenium.webdriver.common.keys import Keys

from tests.support import needs
from tests.support.browser import Browser, browser
from tests.support.console_stack import APPLICATION, BIG, HOSTILE, ConsoleStack, console_stack

SENSORS = f"#/state/{APPLICATION}/sensors"
HOURLY = f"#/state/{APPLICATION}/hourly"
ORDERS = f"#/state/{APPLICATION}/orders"
PAGES = {
    "#/": "sensors",
    "#/key-groups": "by status",
    f"#/epochs/{APPLICATION}/sensors": "Batch time, median",
    "#/sql": "One SELECT",
    "#/servers": "server-1",
    "#/events": "server-0 answers",
    SENSORS: "celsius",
    HOURLY: "List entries",
    ORDERS: "Until readers see an update",
    "#/state/nowhere/x": "no application 'nowhere'",
    "#/nothing": "There is no such page",
}
# A second each at least.
SIXTY_EPOCHS_SECONDS = 600.0
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 740}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, kafka: str) -> Iterator[ConsoleStack]:
    needs.chromium()
    with console_stack(tmp_path_factory.mktemp("console"), kafka) as made:
        yield made


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    needs.chromium()
    with browser() as made:
        yield made


@pytest.fixture
def page(stack: ConsoleStack, chromium: Browser) -> Browser:
    """The overview, and a console of the browser without complaints."""
    chromium.open("about:blank")  # else the page before goes on to complain
    chromium.look()
    chromium.complaints()
    chromium.open(stack.url)
    chromium.shows("live", ".live")
    return chromium


def test_each_page_can_be_read_in_light_and_dark_and_on_wide_and_narrow_screens(
    stack: ConsoleStack, page: Browser
) -> None:
    for path, text in PAGES.items():
        page.open(stack.url + path)
        page.shows(text, "main")
        backs = set()
        for screen in (WIDE, PHONE):
            for dark in (False, True):
                page.look(dark=dark, **screen)
                assert page.too_wide() == [], (path, screen, dark)
                assert page.pale() == [], (path, screen, dark)
                backs.add(page.run("return getComputedStyle(document.body).backgroundColor"))
        assert len(backs) == 2
        assert len(page.all("h1")) == 1
    # A state that there is not is a refusal, which browsers write down.
    assert [complaint for complaint in page.complaints() if "/states/nowhere/x" not in complaint] == []


def test_what_is_there_is_told_and_what_it_holds_is_text(stack: ConsoleStack, page: Browser) -> None:
    page.shows("Nothing is wrong: all 32 key groups owned", "main")
    page.open(stack.url + SENSORS)
    page.shows("Followed by\n1 server")
    page.shows("sensor string", ".lookup")
    page.type(".lookup input", "sensor-7")
    page.click(".lookup .primary")
    page.shows(HOSTILE, ".result")
    digits = page.found(r"^\d+$", ".result tr:nth-child(2) td")[0]
    assert BIG - 10_000 < int(digits) <= BIG  # no digit is lost
    assert page.all("main img") == []

    page.click(".result button", "Watch this key")
    page.shows("Watched keys")
    page.comes_true(lambda: page.all(".chart canvas"))
    first = page.found(r"^\d\S*$", ".rows .end .value")[0]
    page.comes_true(lambda: page.text(".rows .end .value") not in ("", first))

    def rows() -> tuple[int, bool]:
        """How many, and whether their keys are told: not where all are of one key."""
        return len(page.all(".result tbody tr")), "oslo" in page.text(".result tbody")

    page.open(stack.url + HOURLY)
    page.shows("city string", ".lookup")
    page.comes_true(lambda: len(page.all(".lookup input")) == 3)
    page.type(".lookup input", "oslo")
    page.type(".lookup input", "s/1", at=1)
    page.click(".lookup .primary")
    page.comes_true(lambda: rows() == (50, False))
    page.click(".result > button", "Next 50")
    page.comes_true(lambda: rows() == (60, False))
    page.click(".filter > button", "Browse all keys")  # here those of one
    page.comes_true(lambda: rows() == (50, True))
    page.click(".result > button", "Next 50")
    page.comes_true(lambda: rows() == (60, True))
    page.type(".lookup input", "yesterday", at=2)
    page.click(".lookup .primary")
    page.shows("key column hour is a timestamp: give a time like", ".result")
    refused = page.complaints()
    assert len(refused) == 1
    assert "400" in refused[0]


def test_entries_are_filtered_by_what_http_takes_and_a_filter_that_is_none_says_why(
    stack: ConsoleStack, page: Browser
) -> None:
    def filter_by(text: str, at: int = 0) -> None:
        page.type(".filter input", Keys.CONTROL, "a", Keys.NULL, text, Keys.ENTER, at=at)

    def rows() -> int:
        return len(page.all(".result tbody tr"))

    page.open(stack.url + HOURLY)
    page.shows("Filter", ".filter")
    filter_by("max < 5")  # of all keys
    page.comes_true(lambda: rows() == 10)
    page.shows("Where max < 5.", ".result")
    # Beside a long one, too, a short key is one line.
    lines = "const of = document.querySelector('.result tbody .value'); return [of.innerText, of.offsetHeight]"
    text, height = page.run(lines)
    assert (text, height < 30) == ("oslo", True)
    page.click("summary")
    page.shows('client.scan_all("console-weather", "hourly", where=field("max") < 5)', "pre")
    page.click(".code .choice button", "curl")
    page.shows("curl -G --data-urlencode 'where=max < 5'", "pre")
    page.click(".filter > button", "And…")
    filter_by(" max >= 4", at=1)
    page.comes_true(lambda: rows() == 2)
    page.shows("Where max < 5 and max >= 4.", ".result")
    page.type(".lookup input", "oslo")  # of one
    page.type(".lookup input", "s/1", at=1)
    page.click(".lookup .primary")
    page.comes_true(lambda: rows() == 2 and page.texts(".result th")[0] == "hour")
    page.shows("%5B%22oslo%22%2C%22s%2F1%22%5D?limit=100", "pre")
    filter_by("max > 1000")
    page.shows("No entry passes the filter.", ".result")
    filter_by("max < many")
    page.shows("VALUE_MISMATCH", ".result [role=alert]")
    page.shows("field 'max' is of type double: give a number like 1.5", ".result [role=alert]")
    filter_by("max between 1 and 2")
    page.shows("MALFORMED_REQUEST", ".result [role=alert]")
    page.shows("what follows field 'max' is no comparison", ".result [role=alert]")
    refused = page.complaints()
    assert len(refused) == 2
    assert all("400" in of for of in refused)
    # Of a state without map keys, too; more than a page of it is not there.
    page.open(stack.url + SENSORS)
    filter_by("celsius >= 38")
    page.comes_true(lambda: rows() == 2)
    assert page.complaints() == []


def test_a_query_is_written_run_and_refused(stack: ConsoleStack, page: Browser) -> None:
    def write(query: str) -> None:
        page.tab_to("textarea")
        page.press_with_control("a")
        page.press(query)

    page.open(stack.url + "#/sql")
    page.shows("One SELECT", "main")
    write("select count(*) n, max(big) b, max(name) t from ")
    page.click(".names button", f"{APPLICATION}/sensors")
    page.press_with_control(Keys.ENTER)
    page.shows("1 row", ".result")
    n, big, text = page.run("return [...document.querySelectorAll('.result td')].map(of => of.textContent)")
    assert (n, text) == ("40", HOSTILE)
    assert BIG - 10_000 < int(big) <= BIG  # no digit is lost
    page.shows(f"{APPLICATION}/sensors, epoch ", ".source")
    page.shows("the servers sent 40 entries, of", ".source")
    write("select * from range(1000)")
    page.press_with_control(Keys.ENTER)
    page.shows("The first 500 of 1,000 rows", ".result")
    assert page.complaints() == []
    write("selec")
    page.press_with_control(Keys.ENTER)
    page.shows("syntax error", ".result")
    assert len(page.complaints()) == 1
    page.open(stack.url + "#/")
    page.open(stack.url + "#/sql")
    page.comes_true(lambda: page.run("return document.querySelector('textarea').value") == "selec")


def test_all_of_it_is_used_with_the_keyboard_alone(stack: ConsoleStack, page: Browser) -> None:
    page.press(Keys.TAB)
    assert page.run("return document.activeElement.className") == "skip"
    page.press(Keys.ENTER)
    page.tab_to('main a[href$="/sensors"]')
    page.press(Keys.ENTER)
    page.shows("24 key groups", "main")

    page.tab_to(".cells button")
    page.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    page.shows("Key group 2: owned, owner server-", ".cell-told")
    page.press(Keys.END)
    page.shows("Key group 23: owned", ".cell-told")
    page.press(Keys.TAB)  # all the cells are one stop
    assert page.run("return document.activeElement.closest('.cells')") is None

    page.tab_to(".lookup input")
    page.press("sensor-3", Keys.ENTER)
    page.shows("celsius", ".result")
    page.tab_to("summary")
    page.press(Keys.ENTER)
    for language, text in (("curl", ":batchGet'"), ("gRPC", "keyhole.v1.Query/Get")):
        page.tab_to(f".code .choice button:nth-child({3 if language == 'gRPC' else 2})")
        page.press(Keys.SPACE)
        page.shows(text, "pre")

    page.press(Keys.HOME)
    before = page.run("return getComputedStyle(document.body).backgroundColor")
    page.open(stack.url)
    page.shows("live", ".live")
    page.tab_to(".tools button")
    page.press(Keys.ENTER, Keys.ENTER)  # light, then dark
    page.comes_true(lambda: page.run("return getComputedStyle(document.body).backgroundColor") != before)
    page.press(Keys.ENTER)
    page.comes_true(lambda: page.run("return getComputedStyle(document.body).backgroundColor") == before)
    assert page.complaints() == []


def test_how_far_the_copies_of_a_key_group_are_is_told_and_shown_as_a_colour_with_the_keyboard_alone(
    stack: ConsoleStack, page: Browser
) -> None:
    page.tab_to('nav a[href="#/key-groups"]')
    page.press(Keys.ENTER)
    page.shows("owned", ".legend")
    page.tab_to(".choice button:nth-child(3)")
    page.press(Keys.SPACE)
    page.shows("a copy is far behind", ".legend")
    page.comes_true(lambda: len(page.all(".cells .cell.by-lag")) == 32)  # also of what has no standby
    page.tab_to(f'.cells[aria-label$=" {APPLICATION}/sensors"] button')
    page.press(Keys.END, Keys.ARROW_LEFT)
    text = f'.card:has(a[href$="/{APPLICATION}/sensors"]) .cell-told'
    # Of its owner and of the one that follows it: what each has, and what it lacks.
    page.found(r"Key group 22: owned, owner server-\d, (copies are current|a copy is )", text)
    for role in ("owner", "standby"):
        has = r"epoch [\d,]+, .*as of [\d.]+ \w+ ago, [\d.]+ k?B in its store"
        page.found(rf"server-\d \({role}\): {has}", text)
    before = whole(page.found(r"\(owner\): epoch ([\d,]+)", text)[1])
    page.comes_true(lambda: whole(page.found(r"\(owner\): epoch ([\d,]+)", text)[1]) > before)
    page.tab_to(f'main a[href$="/{APPLICATION}/orders"]')
    page.press(Keys.ENTER)
    page.shows("Until readers see an update", "main")
    assert page.complaints() == []


def test_servers_and_events_are_read_with_the_keyboard_alone(stack: ConsoleStack, page: Browser) -> None:
    page.tab_to('nav a[href="#/servers"]')
    page.press(Keys.ENTER)
    page.shows("started ", "main")
    page.tab_to('main a[href$="/hourly"]')
    page.press(Keys.ENTER)
    page.shows("List entries", "main")
    page.tab_to('nav a[href="#/events"]')
    page.press(Keys.ENTER)
    page.shows("server-0 answers", "main")
    # Those that have made the states were the first to read their changelogs.
    page.shows("begins to restore it", ".timeline")
    page.found(r"server-\d has restored it, and owns \d+ key groups?: [\d.]+ \w+", ".timeline")
    page.found(r"server-\d has caught up, and follows \d+ key groups?: [\d.]+ \w+", ".timeline")
    page.tab_to('.timeline a[href$="/sensors"]')
    page.press(Keys.ENTER)
    page.shows("celsius", "main")
    assert page.complaints() == []


def whole(text: str) -> int:
    """A number as the pages write it."""
    return int(text.replace(",", ""))


def test_what_each_of_the_last_epochs_took_is_a_bar_that_is_told_in_its_parts(
    stack: ConsoleStack, page: Browser
) -> None:
    page.open(stack.url + "#/epochs")
    page.shows("hourly", ".queries")
    page.open(stack.url + f"#/epochs/{APPLICATION}/sensors")
    page.comes_true(lambda: len(page.all(".epoch")) >= 2)

    def newest() -> int:
        return whole(page.found(r"Epoch\s+([\d,]+)", "main")[1])

    def shown_epoch() -> int:
        return whole(page.found(r"Epoch ([\d,]+): ", ".cell-told")[1])

    # The page shows the last 60: how many there have been depends on the machine.
    before = newest()
    page.comes_true(lambda: newest() > before)  # the writer goes on
    page.tab_to(".epoch")
    page.press(Keys.HOME)
    first = shown_epoch()
    page.press(Keys.ARROW_RIGHT)
    page.comes_true(lambda: shown_epoch() > first)
    for part in ("Spark not told", "stage ", "commit ", "complete ", "run 1"):
        page.shows(part, ".cell-told")
    # Newer epochs push the bar out that has the keyboard: what is read stays, and the arrow keys go on from the oldest.
    page.press(Keys.HOME)
    held = shown_epoch()
    oldest = "return document.querySelector('.epoch').ariaLabel.split(':')[0].slice(6)"
    page.comes_true(lambda: whole(page.run(oldest)) > held, SIXTY_EPOCHS_SECONDS)
    assert shown_epoch() == held
    assert page.run("return document.activeElement.matches('.epoch')")
    page.press(Keys.ARROW_RIGHT)
    page.comes_true(lambda: shown_epoch() > held)
    page.press(Keys.TAB, Keys.ENTER)
    page.shows("Epoch", "main table")
    assert page.run("return [...document.querySelectorAll('.stack')].every(of => of.offsetHeight > 100)")
    page.open(stack.url + "#/epochs/nowhere/x")
    page.shows("no query 'x'")
    page.complaints()


def test_how_long_updates_took_until_readers_saw_them_is_a_histogram(stack: ConsoleStack, page: Browser) -> None:
    def updates() -> int:
        return whole((page.text("main .card .facts dd").split() or ["0"])[0])

    page.open(stack.url + ORDERS)
    page.shows("Until readers see an update", "main")
    page.comes_true(lambda: updates() >= 8)  # of the last minutes: two answers have come
    page.shows("at most ", "main .card .facts")
    lately = updates()
    since = ".card .choice button:nth-child(2)"
    page.click(since, "since the servers began")
    page.comes_true(lambda: page.all(f"{since}[aria-pressed=true]") and updates() > lately)
    assert len(page.all(".histogram li")) == 13
    assert page.run("return [...document.querySelectorAll('.column')].some(of => of.offsetHeight > 60)")
    # Its schema says by what else its rows are found.
    page.found(r"amount\s+bigint\s+sum\s*indexed", "main table")
    page.open(stack.url + SENSORS)
    page.shows("celsius", "main")
    assert page.all(".histogram") == []
    assert "indexed" not in page.text("main table")


def test_refused_reads_are_told_by_state_and_reason_as_they_come(stack: ConsoleStack, page: Browser) -> None:
    def refuse() -> None:
        asked = f"fetch('/v1/{APPLICATION}/sensors/sensor-1?min_epoch=99999999&timeout=1').then(() => arguments[0]())"
        page.driver.execute_async_script(asked)

    def counted() -> int:
        return whole(page.found(r"/\s*sensors\s+EPOCH_NOT_REACHED\s+([\d,]+)\s+[\d.]+ \w+ ago", ".refused table")[1])

    page.open(stack.url + "#/events")
    page.shows("Refused reads", ".refused")
    refuse()
    page.comes_true(lambda: page.all(".refused table"))
    before = counted()
    refuse()
    page.comes_true(lambda: counted() > before)
    assert all("sensor-1" in complaint for complaint in page.complaints())


def test_the_keys_that_are_read_most_are_told(stack: ConsoleStack, page: Browser) -> None:
    page.open(stack.url + HOURLY)
    page.shows("Hottest keys", ".hottest")
    # As a reader does, until it was in some samples.
    page.run(
        """const path = location.origin + arguments[0];
        const body = JSON.stringify({ keys: [['oslo', 's/1', '2026-11-27T03:00:00Z']] });
        const ask = () => fetch(path, { method: 'POST', body })
          .then(() => { if (!document.querySelector('.hottest .track')) setTimeout(ask, 60); });
        ask();""",
        f"/v1/{APPLICATION}/hourly:batchGet",
    )
    page.found(r"oslo\s*/\s*s/1\s*/\s*2026-11-27T03:00:00\+00:00\s+[\d.]+ %", ".hottest .rows")
    page.comes_true(lambda: page.run("return document.querySelector('.hottest .track > span').offsetWidth > 5"))
    assert page.complaints() == []


def test_a_tab_that_nobody_looks_at_asks_for_nothing(page: Browser) -> None:
    # A request that is under way then is given up, and counted a moment later.
    hidden = page.run(
        """Object.defineProperty(document, "visibilityState", { value: "hidden", configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
        return performance.now();"""
    )
    # Two turns of the pages' own clock: a fixed time, as nothing is to come.
    page.driver.execute_async_script("setTimeout(arguments[0], 4500)")
    assert page.asked_since(hidden) == 0
    page.run("delete document.visibilityState; document.dispatchEvent(new Event('visibilitychange'));")
    page.comes_true(lambda: page.asked_since(hidden) > 0)


def test_with_tokens_each_sees_what_the_policy_allows(stack: ConsoleStack, page: Browser) -> None:
    page.open(stack.secured_url)
    page.shows("This proxy wants a bearer token")
    page.type(".token input", "wrong", Keys.ENTER)
    page.shows("The proxy does not take this token")
    # As a person does: what a driver empties without a key comes back when the page is drawn again.
    page.type(".token input", Keys.CONTROL, "a", Keys.NULL, stack.token("reader"), Keys.ENTER)
    page.shows("hourly", "main")
    assert "sensors" not in page.text("main")
    page.open(stack.secured_url + HOURLY)  # this tab keeps it
    page.shows("That needs the verb scan on this state")
    page.open(stack.secured_url + SENSORS)
    page.shows("Your token may not see it")
    assert page.run("return localStorage.length + document.cookie.length") <= 1  # the colours alone
    page.click(".tools button", "Forget token")
    page.shows("This proxy wants a bearer token")
    page.type(".token input", stack.token("operator"), Keys.ENTER)
    page.shows("Copies", "main")
    page.click(".tools button", "Forget token")
    page.shows("This proxy wants a bearer token")
    assert page.run("return sessionStorage.length") == 0


def test_what_is_shown_is_told_to_be_old_where_only_a_states_page_or_the_key_groups_can_not_be_asked_for(
    stack: ConsoleStack, page: Browser
) -> None:
    for path, shown in ((SENSORS, "celsius"), ("#/key-groups", "by status")):
        page.open(stack.url + path)
        page.shows(shown, "main")
        page.comes_true(lambda: page.all(".cell"))
        page.comes_true(lambda: page.all(".problem") == [])
        page.run(
            """window.asking = window.fetch;
            window.fetch = (path, how) => /states|key-groups/.test(path)
                ? Promise.resolve(new Response('{"detail": "it has too much to do"}', { status: 503 }))
                : window.asking(path, how);"""
        )
        page.shows("it has too much to do", ".outdated")
        page.shows("Shown is what was said at", ".outdated")
        assert page.all(".loaded.stale .cell")
        page.shows("live", ".live")  # the overview is
        page.run("window.fetch = window.asking")
        page.comes_true(lambda: page.all(".outdated") == [])
        assert page.all(".loaded .cell")
        assert page.all(".stale") == []
    page.complaints()


def test_servers_and_proxy_that_die_are_told_of_and_it_recovers_by_itself(stack: ConsoleStack, page: Browser) -> None:
    """The writer goes on, and gives the key groups of a dead server to the other one; so it may be short."""
    page.open(stack.url + SENSORS)
    page.shows("owned", ".legend")
    page.comes_true(lambda: len(page.all(".cell.s-owned")) >= 24)
    page.shows("0 changes since ", ".owners")
    assert len(page.all(".spans span")) == 1
    stack.kill("server-1")
    page.comes_true(lambda: len(page.all(".spans span")) >= 2)  # its key groups go to the other one
    page.run("location.hash = '#/'")
    page.shows("server-1", ".troubles")
    page.shows("The client proxy can't reach it", ".troubles")
    page.run("location.hash = '#/events'")
    page.shows("server-1 was lost", "main")
    page.shows("server-1 → ", "main")
    page.run(f"location.hash = '{HOURLY}'")
    page.comes_true(
        lambda: page.all(".cell.s-nobody") or page.all(".cell.s-waiting") or "server-0" in page.text("main")
    )

    stack.kill("proxy")
    page.shows("The client proxy is away.")
    page.shows("not connected", ".live")
    page.shows("Shown is what it said at", ".problem")
    assert page.all("main.stale")
    stack.start("proxy")
    page.shows("live", ".live")
    page.comes_true(lambda: page.all(".problem") == [])

    stack.start("server-1")
    page.run("location.hash = '#/'")
    page.comes_true(lambda: "server-1" in page.text("main") and "can't reach" not in page.text("main"))
