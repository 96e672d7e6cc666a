"""The processes under attack, the attackers, and the good reader beside them."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import psutil

from keyhole import AsyncClient
from keyhole.errors import KeyholeError
from keyhole.local.ports import free_ports
from keyhole.local.processes import Child
from keyhole.security.credentials import PLAIN, Credentials
from tests.fuzz.attacks import ATTACKS, Attack
from tests.fuzz.http_attacks import HTTP_ATTACKS
from tests.fuzz.port_attacks import PORT_ATTACKS
from tests.support.tokens import make_tokens
from tests.support.waiting import LONG_SECONDS

_ATTACKERS = 6
_MEGABYTE = 1 << 20
_PARTS = {"a tenth": 0.1, "half": 0.5}
_GROWTH_MEGABYTES = 30
"""More in the second half of the time is growth: what the allocator keeps of the worst moment, it has kept by then."""
_POLICY = """
[[allow]]
who = ["token:job"]
verbs = ["write"]
states = ["app/*"]

[[allow]]
who = ["token:proxy"]
verbs = ["platform"]

[[allow]]
who = ["token:reader"]
verbs = ["read", "scan"]
states = ["*/*"]
"""


async def fuzz(seconds: float, seed: int, directory: Path) -> dict[str, Any]:
    """Runs it all: each attack once, however long that takes, and then any of them for so many seconds. Returns what is
    printed; `problems` is empty where nothing is wrong.
    """
    prepare(directory)
    reader = Credentials(tls=False, token_file=str(directory / "reader.token"))
    ports = Ports(*free_ports(6))
    children = [_start(f"tests.fuzz.{name}", ports, directory) for name in ("victim", "proxy")]
    targets = [f"127.0.0.1:{ports.server}", f"127.0.0.1:{ports.proxy}"]
    pages = [f"127.0.0.1:{port}" for port in (ports.http, ports.http, ports.proxy_metrics, ports.server_metrics)]
    lookups = [f"127.0.0.1:{ports.lookups}"]
    aimed = ((ATTACKS, targets), (HTTP_ATTACKS, pages), (PORT_ATTACKS, lookups))
    aims = {attack: at for attacks, at in aimed for attack in attacks}
    processes = [psutil.Process(child.pid) for child in children]
    problems: list[str] = []
    weights: dict[str, list[int]] = {}
    sent: Counter[str] = Counter()
    try:
        for target in targets:
            await _answers(target, reader)
        weights["at the beginning"] = _weigh(processes)
        await asyncio.gather(*(_attack_once(seed, attack, at, reader, sent) for attack, at in aims.items()))
        begun = time.monotonic()
        attackers = [
            asyncio.create_task(_attack(random.Random(f"{seed}-{number}"), aims, reader, begun + seconds, sent))
            for number in range(_ATTACKERS)
        ]
        good = asyncio.create_task(_read(targets, reader, begun + seconds))
        good_http = asyncio.create_task(_read_http(ports, directory, begun + seconds))
        for part in ("a tenth", "half"):
            await asyncio.sleep(begun + seconds * _PARTS[part] - time.monotonic())
            weights[f"after {part}"] = _weigh(processes)
        await asyncio.gather(*attackers)
        lookups, failed = await good
        requests, failed_requests = await good_http
        for target in targets:
            await _answers(target, reader)
        weights["at the end"] = _weigh(processes)
    except (TimeoutError, psutil.NoSuchProcess) as error:
        problems.append(f"a process ended, or does not answer: {error!r}")
        lookups, failed, requests, failed_requests = 0, Counter(), 0, Counter()
    finally:
        ended = [child.name for child in children if child.exit_code is not None]
        for child in children:
            child.terminate()
    problems += [f"{name} ended by itself" for name in ended]
    if "at the end" in weights:
        before, after = weights["after half"], weights["at the end"]
        problems += [
            f"{child.name} grew by {end - start} MB in the second half"
            for child, start, end in zip(children, before, after, strict=True)
            if end - start > _GROWTH_MEGABYTES
        ]
    problems += _bugs(directory)
    return {
        "seconds": seconds,
        "seed": seed,
        "sent": dict(sent),
        "good_lookups": lookups,
        "good_lookups_failed": dict(failed),
        "good_requests": requests,
        "good_requests_failed": dict(failed_requests),
        "megabytes_of_state_server_and_proxy": weights,
        "problems": problems,
    }


class Ports(NamedTuple):
    """Where the two listen."""

    server: int
    proxy: int
    http: int
    proxy_metrics: int
    server_metrics: int
    lookups: int


def _start(module: str, ports: Ports, directory: Path) -> Child:
    name = module.rpartition(".")[2]
    given = {f"FUZZ_{port.upper()}": str(number) for port, number in ports._asdict().items()}
    # As in the images.
    environ = {**os.environ, **given, "FUZZ_DIRECTORY": str(directory), "MALLOC_ARENA_MAX": "2"}
    return Child(name, [sys.executable, "-m", module], directory / f"{name}.log", environ)


async def _attack_once(seed: int, attack: Attack, aims: Sequence[str], reader: Credentials, sent: Counter[str]) -> None:
    chance = random.Random(f"{seed}-{attack.__name__}")
    await attack(chance, chance.choice(aims), reader)
    sent[attack.__name__] += 1


async def _attack(
    chance: random.Random,
    aims: Mapping[Attack, Sequence[str]],
    reader: Credentials,
    until: float,
    sent: Counter[str],
) -> None:
    while time.monotonic() < until:
        attack = chance.choice((*ATTACKS, *HTTP_ATTACKS, *PORT_ATTACKS))
        await attack(chance, chance.choice(aims[attack]), chance.choice((reader, reader, PLAIN)))
        sent[attack.__name__] += 1


async def _read(targets: list[str], reader: Credentials, until: float) -> tuple[int, Counter[str]]:
    answered, failed = 0, Counter[str]()
    async with (
        AsyncClient(targets[0], credentials=reader, timeout=LONG_SECONDS) as one,
        AsyncClient(targets[1], credentials=reader, timeout=LONG_SECONDS) as other,
    ):
        while True:  # on a slow machine once
            for client in (one, other):
                try:
                    assert (await client.get("app", "counts", "a")).value.n == 1.0
                    answered += 1
                except KeyholeError as error:
                    failed[error.reason] += 1
            if time.monotonic() >= until:
                return answered, failed
            await asyncio.sleep(0.02)


async def _read_http(ports: Ports, directory: Path, until: float) -> tuple[int, Counter[str]]:
    answered, failed = 0, Counter[str]()
    asked = [
        (f"http://127.0.0.1:{ports.http}/v1/app/counts/a", "reader"),
        (f"http://127.0.0.1:{ports.proxy_metrics}/metrics", "proxy"),
        (f"http://127.0.0.1:{ports.server_metrics}/metrics", "proxy"),
    ]
    tokens_of = {who: (directory / f"{who}.token").read_text().strip() for who in ("reader", "proxy")}
    # As many do: a connection of its own for each request.
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(LONG_SECONDS)) as session:
        while True:
            for url, who in asked:
                try:
                    async with session.get(url, headers={"Authorization": f"Bearer {tokens_of[who]}"}) as response:
                        await response.read()
                        if response.status == 200:
                            answered += 1
                        else:
                            failed[str(response.status)] += 1
                except (aiohttp.ClientError, TimeoutError) as error:
                    failed[type(error).__name__] += 1
            if time.monotonic() >= until:
                return answered, failed
            await asyncio.sleep(0.1)


async def _answers(target: str, reader: Credentials) -> None:
    async with (
        asyncio.timeout(LONG_SECONDS),
        AsyncClient(target, credentials=reader, timeout=LONG_SECONDS) as client,
    ):
        while True:
            try:
                if (await client.get("app", "counts", "a")).found:
                    return
            except KeyholeError:
                await asyncio.sleep(0.1)


def _weigh(processes: list[psutil.Process]) -> list[int]:
    return [process.memory_info().rss // _MEGABYTE for process in processes]


def _bugs(directory: Path) -> list[str]:
    """What no caller may bring about: errors that nobody expected."""
    return [
        f"{log.name} tells of a bug: {line[:2000]}"
        for log in sorted(directory.glob("*.log"))
        for line in [line for line in log.read_text(errors="replace").splitlines() if "unexpectedly" in line][:5]
    ]


def prepare(directory: Path) -> None:
    """Tokens, and what they may."""
    (directory / "tokens.toml").write_text(make_tokens(directory, "job", "proxy", "reader"))
    (directory / "policy.toml").write_text(_POLICY)
