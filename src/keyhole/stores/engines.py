"""Which store engines there are: ours by name, others by the name of an entry point or as `module:Engine`.

An engine is anything that is called with StoreLimits, and with its options by name, and returns a StoreEngine. It is
imported when it is chosen: a server needs the libraries of the stores that it uses, and no others.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points

from keyhole.errors import InvalidConfiguration
from keyhole.installing import with_extra
from keyhole.stores.base import StoreEngine, StoreLimits

ENTRY_POINTS = "keyhole.stores"
OURS = {
    "lmdb": "keyhole.stores.lmdb.engine:LmdbEngine",
    "memory": "keyhole.stores.memory:limited_engine",
    "rocksdb": "keyhole.stores.rocksdb.engine:RocksdbEngine",
}


def make_engine(store: str, limits: StoreLimits, options: Mapping[str, object]) -> StoreEngine:
    """The engine of that name.

    Args:
        store: One of ours, the name of an entry point of the group `keyhole.stores`, or `module:Engine`.
        limits: Of each state.
        options: What that engine knows beside them.

    Raises:
        InvalidConfiguration: There is no store of that name, a library of its is missing, or it doesn't know an option.
        StoreFormat, StoreLocked, StoreFull: See StoreEngine.
    """
    factory = _factory(store)
    try:
        signature = inspect.signature(factory)
        known = [name for name, of in signature.parameters.items() if of.kind is of.KEYWORD_ONLY]
        if unknown := sorted(set(options) - set(known)):
            raise InvalidConfiguration(
                f"the store {store!r} has no option {', '.join(unknown)}; it has {', '.join(known) or 'none'}"
            )
        signature.bind(limits, **options)
    except (TypeError, ValueError) as error:
        raise InvalidConfiguration(
            f"the store {store!r} can't be made: {error}; an engine is called with StoreLimits, and with options by "
            "name (docs/stores.md)"
        ) from error
    return factory(limits, **options)


def _factory(store: str) -> Callable[..., StoreEngine]:
    found = _entry_point(store)
    try:
        factory: Callable[..., StoreEngine] = found.load()
    except ImportError as error:
        raise InvalidConfiguration(
            f"the store {store!r} ({found.value}) can't be imported: {error}; install what it needs "
            f"(for Keyhole's own {with_extra('server')})"
        ) from error
    except AttributeError as error:
        raise InvalidConfiguration(f"the store {store!r} ({found.value}) does not exist: {error}") from error
    return factory


def _entry_point(store: str) -> EntryPoint:
    if store in OURS:
        return EntryPoint(store, OURS[store], ENTRY_POINTS)
    others = entry_points(group=ENTRY_POINTS)
    if store in others.names:
        return others[store]
    module, _, name = store.partition(":")
    if module and name:
        return EntryPoint(store, store, ENTRY_POINTS)
    names = ", ".join(sorted({*OURS, *others.names}))
    raise InvalidConfiguration(
        f"unknown store {store!r}; the stores are {names}, and any other as module:Engine (docs/store-of-your-own.md)"
    )
