"""What a value is in Python: an immutable row, and the immutable mapping that a map in it is. Pure."""

from __future__ import annotations

import functools
import keyword
import operator
import unicodedata
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType, NoneType
from typing import Any, TypeVar

import msgspec

from keyhole.hints import ready

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Row(msgspec.Struct, frozen=True, array_like=True, eq=False):
    """A value, or a struct in one: immutable; `row.field` and `row["field"]`.

    It iterates over its fields' names, as a dict does: `dict(row)` has names and values, `tuple(row)` the names alone.

    A field whose name is no plain Python name ("max(t)", "class", "_x"), or one that Row uses itself ("asdict"), can be
    had by `row["max(t)"]` only; see `attributes`. Equal to every row of the same names and values, whichever codec made
    it.
    """

    # The fields are those of the schema, which no type checker knows. Python calls it for what a row has not.
    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the value has no field {name!r}; it has {', '.join(self)}", name=name, obj=self)

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self, _names(self)[name])
        except KeyError:
            raise KeyError(f"the value has no field {name!r}; it has {', '.join(self)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(_names(self))

    def __len__(self) -> int:
        return len(_names(self))

    def keys(self) -> tuple[str, ...]:
        """The names of the fields: with it `dict(row)` is one level of `asdict`, and `f(**row)` works."""
        return tuple(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Row):
            return NotImplemented
        return tuple(self) == tuple(other) and _values(self) == _values(other)

    def __hash__(self) -> int:
        return hash(_values(self))

    def __repr__(self) -> str:
        return f"Row({', '.join(f'{name}={self[name]!r}' for name in self)})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Its class is made from a schema: the process that unpickles can't import it.
        return _unpickled, (tuple(self), _values(self))

    def asdict(self) -> dict[str, Any]:
        """The fields by name, structs in it included."""
        return {name: _plain(self[name]) for name in self}


class FrozenMap(Mapping[_Key, _Value]):
    """A mapping that can't be changed, in the order in which Spark stored its entries."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Mapping[_Key, _Value] | Iterable[tuple[_Key, _Value]] = ()) -> None:
        self._entries = MappingProxyType(dict(entries))

    def __getitem__(self, key: _Key) -> _Value:
        return self._entries[key]

    def __iter__(self) -> Iterator[_Key]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __hash__(self) -> int:
        return hash(frozenset(self._entries.items()))

    def __repr__(self) -> str:
        return f"FrozenMap({dict(self._entries)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenMap, (dict(self._entries),)


def row_class(fields: Iterable[tuple[str, Any]], *, version: int | None = None) -> type[Row]:
    """A Row with these fields (name, stored type), all of which may be None.

    Args:
        version: What msgspec expects before the fields when it decodes one; None: nothing.
    """
    given = list(fields)
    names = [name for name, _ in given]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"two fields have the name {twice!r}")
    own = attributes(names, frozenset(dir(Row)))
    made: Any = msgspec.defstruct(
        "Row",
        [(attribute, kind | None) for attribute, (_, kind) in zip(own, given, strict=True)],
        bases=(Row,),
        namespace={"__names__": MappingProxyType(dict(zip(names, own, strict=True)))},
        frozen=True,
        array_like=True,
        eq=False,
        forbid_unknown_fields=True,
        tag=version,
        # Of an array it is never written, but msgspec lets no attribute have the name: by default, "type".
        tag_field=None if version is None else "_",
    )
    return ready(made)


def field_values(rows: Sequence[Row | None], name: str) -> list[Any]:
    """One field of many rows; None of no row, and of a row that has no such field."""
    kinds = set(map(type, rows))
    if len(kinds) == 1 and (kind := kinds.pop()) is not NoneType:
        # The hot path of tables: all rows of a page are of one schema.
        attribute = kind.__dict__["__names__"].get(name)
        return [None] * len(rows) if attribute is None else list(map(operator.attrgetter(attribute), rows))
    return [None if row is None or name not in _names(row) else row[name] for row in rows]


def attributes(names: Sequence[str], taken: Container[str] = ()) -> list[str]:
    """The attributes in which a row has the columns of these names: the names, or else "_0", "_1", ... by their places.

    Python reads every name in a program as its NFKC form: a ligature of f and i, say, as the two letters. A column
    whose name is not in that form has it as its attribute, unless another column has, or would have, the same one.

    Args:
        taken: Names that mean something else in the row.
    """
    read = [unicodedata.normalize("NFKC", name) for name in names]
    mine = [
        name == form or (form not in names and read.count(form) == 1) for name, form in zip(names, read, strict=True)
    ]
    # No usable name begins as the substitutes do.
    return [
        form if usable and _usable(form) and form not in taken else f"_{place}"
        for place, (form, usable) in enumerate(zip(read, mine, strict=True))
    ]


def _usable(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("_")


def _names(row: Row) -> Mapping[str, str]:
    # Of the class: a field may be called "names".
    names: Mapping[str, str] = type(row).__dict__["__names__"]
    return names


def _values(row: Row) -> tuple[Any, ...]:
    return msgspec.structs.astuple(row)


def _plain(value: Any) -> Any:
    if isinstance(value, Row):
        return value.asdict()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value


@functools.lru_cache(maxsize=256)
def _class_of(names: tuple[str, ...]) -> type[Row]:
    return row_class((name, Any) for name in names)


def _unpickled(names: tuple[str, ...], values: tuple[Any, ...]) -> Row:
    return _class_of(names)(*values)
