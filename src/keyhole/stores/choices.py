"""Which states are kept in which store: a file that says so, and the engine that keeps to it.

    [[stores]]
    states = ["temperature-monitor/history_*", "*/clicks"]    # application/state, with *, ? and [...]
    store = "rocksdb"
    directory = "/var/lib/keyhole/history"
    limit_bytes = 200_000_000_000
    options = { block_cache_bytes = 536_870_912 }

The first entry with a pattern that fits counts; a state that fits none is kept as if there were no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

from keyhole.encoding.toml_text import decode_toml
from keyhole.errors import InvalidConfiguration
from keyhole.hints import ready
from keyhole.stores.base import Store, StoreEngine, StoreLimits
from keyhole.stores.engines import make_engine

VARIABLE = "KEYHOLE_STATE_SERVER_STORES"
# Has no files.
_WITHOUT_DIRECTORY = "memory"


class StoreChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of the file.

    Attributes:
        states: Patterns of application/state.
        store: See engines.make_engine.
        directory: Of this entry alone; the memory store has none.
        limit_bytes: The most that one state may take; None: as without the entry.
        options: What that store knows beside them.
    """

    states: tuple[str, ...]
    store: str
    directory: str = ""
    limit_bytes: int | None = None
    options: dict[str, Any] = {}

    def fits(self, application: str, state: str) -> bool:
        """Whether one of its patterns does."""
        for pattern in self.states:
            of_application, of_state = pattern.split("/")
            if fnmatchcase(application, of_application) and fnmatchcase(state, of_state):
                return True
        return False


@ready
class _ChoicesFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    stores: tuple[StoreChoice, ...]


def read_choices(path: Path) -> tuple[StoreChoice, ...]:
    """What the file says.

    Raises:
        InvalidConfiguration: It can't be read, or says what can't be; the message names the entry.
    """
    try:
        found = decode_toml(path.read_bytes(), _ChoicesFile).stores
    except OSError as error:
        raise InvalidConfiguration(f"{VARIABLE} is {str(path)!r}, which can't be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise InvalidConfiguration(f"{path} ({VARIABLE}): {error} (docs/stores.md shows such a file)") from error
    seen: set[str] = set()
    for number, choice in enumerate(found, start=1):
        wrong = _wrong(choice) or next((f"{p!r} is in it twice" for p in choice.states if p in seen), "")
        if wrong:
            raise InvalidConfiguration(f"{_entry(path, number)}: {wrong}")
        seen.update(choice.states)
    return found


def _entry(path: Path, number: int) -> str:
    return f"{path} ({VARIABLE}), entry {number}"


def _wrong(choice: StoreChoice) -> str:
    if not choice.states:
        return "states is empty; name those that it is for, as application/state"
    for pattern in choice.states:
        if len(parts := pattern.split("/")) != 2 or not all(parts):
            return f"{pattern!r} must be application/state; * stands for any name"
    if choice.limit_bytes is not None and choice.limit_bytes < 1:
        return f"limit_bytes is {choice.limit_bytes}; it must be 1 or more"
    if not choice.directory and choice.store != _WITHOUT_DIRECTORY:
        return f"the store {choice.store!r} needs a directory of its own"
    return ""


def chosen_engine(store: str, limits: StoreLimits, file: Path | None) -> StoreEngine:
    """The engine of a server.

    Args:
        store: Of the states that no entry of the file is for.
        limits: Of those; `bytes` also of entries that name none.
        file: None: there are no others.

    Raises:
        InvalidConfiguration: The file is wrong, names a store or an option that doesn't exist, or a directory twice.
        StoreFormat, StoreLocked, StoreFull: See StoreEngine.
    """
    choices = read_choices(file) if file is not None else ()
    if file is None:
        return make_engine(store, limits, {})
    _refuse_shared_directories(file, limits.directory, choices)
    engines = [make_engine(store, limits, {})]
    try:
        for number, choice in enumerate(choices, start=1):
            of_one = StoreLimits(Path(choice.directory), choice.limit_bytes or limits.bytes)
            engines.append(_make(choice, of_one, _entry(file, number)))
    except BaseException:
        for engine in engines:
            engine.close()
        raise
    return EngineByState(choices, engines[1:], engines[0])


def _make(choice: StoreChoice, limits: StoreLimits, entry: str) -> StoreEngine:
    try:
        return make_engine(choice.store, limits, choice.options)
    except InvalidConfiguration as error:
        raise InvalidConfiguration(f"{entry}: {error.message}") from error


def _refuse_shared_directories(file: Path, directory: Path, choices: Sequence[StoreChoice]) -> None:
    users = {directory.resolve(): "the states that no entry is for"}
    for number, choice in enumerate(choices, start=1):
        if not choice.directory:
            continue
        taken = Path(choice.directory).resolve()
        if taken in users:
            raise InvalidConfiguration(
                f"{_entry(file, number)}: {choice.directory} is the directory of {users[taken]}, too; give it its own"
            )
        users[taken] = f"entry {number}"


class EngineByState:
    """See base.StoreEngine. Each state is in the engine of the first choice that fits it.

    What another engine holds of a state stays there: a state that comes back to it goes on from what it finds, if its
    changelog still has all that came since.

    Args:
        choices: In the order in which they count.
        engines: One for each choice. They are closed with this one.
        other: Of the states that none fits; closed as well.
    """

    def __init__(self, choices: Sequence[StoreChoice], engines: Sequence[StoreEngine], other: StoreEngine) -> None:
        self._choices = list(zip(choices, engines, strict=True))
        self._other = other

    def open(self, application: str, state: str, topic_id: str) -> Store:
        return self._of(application, state).open(application, state, topic_id)

    def destroy(self, application: str, state: str) -> None:
        self._of(application, state).destroy(application, state)

    def close(self) -> None:
        for _, engine in self._choices:
            engine.close()
        self._other.close()

    def _of(self, application: str, state: str) -> StoreEngine:
        return next((engine for choice, engine in self._choices if choice.fits(application, state)), self._other)
