"""The console's pages in a Chromium while they move: how soon they show something, and what an open one leaks.

Beside two state servers, two client proxies and states that are written once a second. It needs Chromium and its
driver.

uv run python -m benchmarks.console [--seconds 600] [--every 30] [--opens 10]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

from keyhole.local.jars import JarSet, default_cache_dir, fetch
from keyhole.local.java import find_java
from keyhole.local.kafka import LocalKafka
from tests.support.browser import Browser, browser
from tests.support.console_stack import APPLICATION, ConsoleStack, console_stack

PAGES = {"overview": "#/", "state": f"#/state/{APPLICATION}/sensors"}
# Asks of each frame whether what a person came for is there: the states, from an answer of the proxy.
_SHOWN = """
window.shownAt = 0;
const look = () => {
  if (document.querySelector(".live") && document.querySelector("main a[href*='/state/']")) {
    window.shownAt = performance.now();
  } else requestAnimationFrame(look);
};
requestAnimationFrame(look);
"""


def main() -> None:
    """Prints a line of JSON for the opening of the overview, one for each look, and one for what has grown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--every", type=float, default=30.0)
    parser.add_argument("--opens", type=int, default=10)
    options = parser.parse_args()
    java, jars = find_java(os.environ), fetch(JarSet.KAFKA, default_cache_dir(os.environ))
    with ExitStack() as ending:
        directory = Path(ending.enter_context(tempfile.TemporaryDirectory()))
        kafka = ending.enter_context(LocalKafka(directory / "kafka", jars, java))
        stack = ending.enter_context(console_stack(directory, kafka.bootstrap_servers))
        open_pages = {name: ending.enter_context(browser()) for name in PAGES}
        print(json.dumps({"overview_shown_ms": opened(open_pages["overview"], stack, options.opens)}), flush=True)
        for name, path in PAGES.items():
            show(open_pages[name], stack, path)
        looks: dict[str, list[dict[str, float]]] = {name: [] for name in PAGES}
        began = time.monotonic()
        while (seconds := time.monotonic() - began) < options.seconds + options.every:
            for name, page in open_pages.items():
                found = look(page, stack)
                looks[name].append(found)
                print(json.dumps({"page": name, "seconds": round(seconds), **found}), flush=True)
            time.sleep(options.every)
        for name, of in looks.items():
            print(json.dumps({"page": name, "grew": grown(of)}), flush=True)


def opened(page: Browser, stack: ConsoleStack, opens: int) -> dict[str, float]:
    """Milliseconds from the navigation until the overview's states are there, each time with an empty cache."""
    page.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _SHOWN})
    page.driver.execute_cdp_cmd("Network.setCacheDisabled", {"cacheDisabled": True})
    took = []
    for _ in range(opens):
        page.open(stack.url)
        page.comes_true(lambda: page.run("return window.shownAt"))
        took.append(float(page.run("return window.shownAt")))
    page.driver.execute_cdp_cmd("Network.setCacheDisabled", {"cacheDisabled": False})
    return {"least": round(min(took)), "median": round(statistics.median(took)), "most": round(max(took))}


def show(page: Browser, stack: ConsoleStack, path: str) -> None:
    """The page, which moves from then on: on that of a state a key is watched, and drawn."""
    page.open(stack.url + path)
    page.shows("live", ".live")
    if "/state/" in path:
        page.type(".lookup input", "sensor-7")
        page.click(".lookup .primary")
        page.click(".result button", "Watch this key")
        page.comes_true(lambda: page.all(".chart canvas"))


def look(page: Browser, stack: ConsoleStack) -> dict[str, float]:
    """What the page holds once its garbage is gone, and the connections that its browser has with the proxy."""
    page.driver.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
    page.driver.execute_cdp_cmd("Performance.enable", {})
    metrics: Any = page.driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    by_name = {metric["name"]: metric["value"] for metric in metrics}
    return {
        "heap_kb": round(by_name["JSHeapUsedSize"] / 1000),
        "nodes": by_name["Nodes"],
        "listeners": by_name["JSEventListeners"],
        "documents": by_name["Documents"],
        "connections": connections(page, stack),
        "entries": page.run("return performance.getEntriesByType('resource').length"),
    }


def connections(page: Browser, stack: ConsoleStack) -> int:
    """How many of the browser's are open to the proxy's HTTP port."""
    port = stack.proxy_ports[1]
    family = psutil.Process(page.driver.service.process.pid).children(recursive=True)
    open_ones = [
        of for process in family for of in process.net_connections("tcp") if of.status == psutil.CONN_ESTABLISHED
    ]
    return sum(bool(of.raddr) and of.raddr.port == port for of in open_ones)


def grown(looks: list[dict[str, float]]) -> dict[str, list[float]]:
    """Of each figure the median of the first third of the looks, and that of the last one."""
    third = max(len(looks) // 3, 1)
    return {
        name: [statistics.median(look[name] for look in part) for part in (looks[:third], looks[-third:])]
        for name in looks[0]
    }


if __name__ == "__main__":
    main()
