"""The values of states as classes of Python: each a msgspec.Struct, for `client.state(..., value=...)`. Pure."""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterable, Sequence

from keyhole.cli.codegen.written_names import Spelling, comment
from keyhole.model.state import StateDescriptor
from keyhole.model.type_names import TypeName, parsed

_UNNAMED = re.compile(r'["\\\x00-\x1f]')

_TypedName = tuple[str, TypeName, bool]
"""Its name, its type, and whether it may be null."""

_SIMPLE = {
    "boolean": "bool",
    "tinyint": "int",
    "smallint": "int",
    "int": "int",
    "bigint": "int",
    "float": "float",
    "double": "float",
    "string": "str",
    "binary": "bytes",
    "date": "_datetime.date",
    "timestamp": "_datetime.datetime",
    "timestamp_ntz": "_datetime.datetime",
    "decimal": "_decimal.Decimal",
}
# What an annotation in a class is looked up by first are the class's own fields.
_TAKEN = frozenset({"bool", "int", "float", "str", "bytes", "list", "dict", *dir(object)})


def python_types(application: str, states: Sequence[StateDescriptor]) -> str:
    """A module with a class for the values of each state, and its path as a constant."""
    module = _Module()
    parts = [part for state in states for part in module.state(state)]
    example = f"{module.constants[0]}, value={module.classes[0]}" if states else "..."
    return "\n".join(
        [
            f'"""Values of the states of {application}, as `keyhole codegen {application}` wrote them. Don\'t edit it.',
            "",
            f"    state = client.state({example})",
            '"""',
            "",
            "from __future__ import annotations",
            "",
            "import datetime as _datetime",
            "import decimal as _decimal",
            "from typing import Any as _Any",
            "",
            "import msgspec as _msgspec",
            *parts,
            "",
        ]
    )


class _Module:
    """What is written, and the names that are given out."""

    def __init__(self) -> None:
        self._names = Spelling(dir(builtins))
        self.constants: list[str] = []
        self.classes: list[str] = []

    def state(self, of: StateDescriptor) -> list[str]:
        """The lines of one state: its path, the structs in its values, and its class."""
        name = self._names.class_name(of.state)
        constant = self._names.constant(of.state)
        key = ", ".join(f"{column.name} {column.type}" for column in (*of.key, *of.map_key))
        fields = [(field.name, parsed(field.type), field.nullable) for field in of.value.fields]
        nested: list[str] = []
        about = f"A value of {of.path}, a {of.kind} state by {key}: schema version {of.value.version}."
        lines = self._class(name, comment(about), fields, nested)
        self.constants.append(constant)
        self.classes.append(name)
        return [*nested, *lines, "", "", f'{constant} = "{of.path}"']

    def _class(self, name: str, about: str, fields: Iterable[_TypedName], nested: list[str]) -> list[str]:
        spelling = Spelling(_TAKEN)
        lines = ["", "", f"class {name}(_msgspec.Struct, frozen=True):", f'    """{about}"""', ""]
        for field, kind, nullable in fields:
            if _UNNAMED.search(field):
                lines.append(f"    # left out, as msgspec lets no field have this name: {field!a}")
                continue
            attribute = spelling.attribute(field)
            annotation = self._type(kind, name, field, nested) + (" | None" if nullable else "")
            renamed = "" if attribute == field else f" = _msgspec.field(name={field!a})"
            lines.append(f"    {attribute}: {annotation}{renamed}")
        return lines

    def _type(self, of: TypeName, holder: str, field: str, nested: list[str]) -> str:
        """The annotation of a type. A struct in it is a class, which `nested` gets: it stands before its holder."""
        if of.kind == "array":
            return f"list[{self._type(of.parts[0], holder, field, nested)} | None]"
        if of.kind == "map":
            key, value = of.parts
            # A key that is a struct, an array or a map itself can't be one of Python's.
            found = "_Any" if key.parts else self._type(key, holder, field, nested)
            return f"dict[{found}, {self._type(value, holder, field, nested)} | None]"
        if of.kind == "struct":
            name = self._names.class_name(holder, field)
            fields = [(part_name, part, True) for part_name, part in zip(of.names, of.parts, strict=True)]
            nested += self._class(name, comment(f"A struct in {holder}: {field}."), fields, nested)
            return name
        return _SIMPLE[of.kind]
