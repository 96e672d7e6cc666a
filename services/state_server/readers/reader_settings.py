"""The settings of the reader processes of one server: whether it can have any, and what each of them is given. Pure."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path

from keyhole.config import StateServerConfig
from keyhole.errors import InvalidConfiguration
from keyhole.rpc.processes.cores import process_count
from keyhole.rpc.processes.divided_limits import divided
from keyhole.stores.choices import read_choices

_SHARED = "lmdb"
_DIVIDED = (
    "max_lookup_calls",
    "max_caller_lookup_calls",
    "max_lookup_keys_per_second",
    "max_caller_lookup_keys_per_second",
)


def reader_count(config: StateServerConfig) -> int:
    """How many processes answer lookups, the server's own included.

    Raises:
        InvalidConfiguration: There can't be several: of the stores, of the system, or as there is no lookup port.
    """
    if config.reader_processes == 1:
        return 1
    asked = f"{config.PREFIX}READER_PROCESSES is {config.reader_processes}"
    alone = f"set {config.PREFIX}READER_PROCESSES=1"
    if sys.platform != "linux":
        raise InvalidConfiguration(f"{asked}, and readers need Linux: {alone}")
    if not config.lookups:
        raise InvalidConfiguration(
            f"{asked}, and readers answer by the lookup port alone: set {config.PREFIX}LOOKUPS, or {alone}"
        )
    choices = read_choices(Path(config.stores)) if config.stores else ()
    other = next((store for store in (config.store, *(of.store for of in choices)) if store != _SHARED), None)
    if other is not None:
        raise InvalidConfiguration(
            f"{asked}, and readers can read the store {_SHARED!r} alone, not {other!r}: {alone}, or keep all states in "
            f"{_SHARED!r}"
        )
    return process_count(config.reader_processes)


def share_of(config: StateServerConfig, count: int) -> StateServerConfig:
    """The settings of one of `count` processes: of each limit of callers its part, rounded up. 0 stays no limit."""
    return divided(config, _DIVIDED, count)


def environ_of(config: StateServerConfig, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that is to have these settings, whatever this one has them from."""
    others = {name: value for name, value in environ.items() if not name.startswith(config.PREFIX)}
    return others | {config.PREFIX + of.name.upper(): _spelled(getattr(config, of.name)) for of in _given(config)}


def _given(config: StateServerConfig) -> list[dataclasses.Field[object]]:
    return [of for of in dataclasses.fields(config) if getattr(config, of.name) != of.default]


def _spelled(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
