"""The values of states as TypeScript has them, read over HTTP and JSON (docs/clients-reference.md). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from keyhole.cli.codegen.written_names import Spelling, comment, in_quotes, property_name
from keyhole.model.state import StateDescriptor
from keyhole.model.type_names import TypeName, parsed

_FLOAT = 'number | "NaN" | "Infinity" | "-Infinity"'
_WHOLE = "Whole"
_SIMPLE = {
    "boolean": "boolean",
    "tinyint": _WHOLE,
    "smallint": _WHOLE,
    "int": _WHOLE,
    "bigint": _WHOLE,
    "float": _FLOAT,
    "double": _FLOAT,
    "string": "string",
    "binary": "string",
    "date": "string",
    "timestamp": "string",
    "timestamp_ntz": "string",
    "decimal": "string",
}
_OWN = ("Answer", "Entries", "Source", "States", "Whole", "Array", "Record")
_HEAD = """\
/** Who answered, and as of when. */
export interface Source {
  server: string;
  role: "owner" | "standby";
  epoch: number;
  commit_time: string | null;
  watermark: string | null;
  as_of: string | null;
  staleness_seconds: number | null;
  lag_epochs: number;
  staged_epoch: number | null;
  unconfirmed: boolean;
  generation: number;
  assignment_version: number;
}

/** Of GET /v1/APPLICATION/STATE/KEY. */
export interface Answer<Value> {
  found: boolean;
  value: Value | null;
  source: Source;
}

/** Of a scan. `next` is what to pass as `from` for those that follow. */
export interface Entries<MapKey, Value> {
  entries: { map_key: MapKey; value: Value }[];
  next: MapKey | null;
  source: Source;
}
"""


def typescript_types(application: str, states: Sequence[StateDescriptor]) -> str:
    """A module with an interface for the values of each state, and one that has them by their paths.

    Whole numbers are `Whole`: a number, which beyond 2^53 loses digits, or a string where `integers=text` is asked for.
    """
    names = Spelling(_OWN)
    parts: list[str] = []
    paths = []
    for state in states:
        name = names.class_name(state.state)
        key = ", ".join(f"{column.name} {column.type}" for column in (*state.key, *state.map_key))
        about = f"A value of {state.path}, a {state.kind} state by {key}: schema version "
        fields = [(field.name, parsed(field.type), field.nullable) for field in state.value.fields]
        parts += ["", f"/** {comment(about + str(state.value.version))}. */"]
        parts += [f"export interface {name}<Whole = number> {{", *_properties(fields, "  "), "}"]
        paths.append(f"  {in_quotes(state.path)}: {name}<Whole>;")
    return "\n".join(
        [
            f"// Values of the states of {application}, as `keyhole codegen {application} --language typescript`",
            "// wrote them. Don't edit it.",
            "// Whole numbers beyond 2^53 lose digits: ask with integers=text, and give string for Whole.",
            "",
            _HEAD.rstrip(),
            *parts,
            "",
            "/** Values by the path of their state. */",
            "export interface States<Whole = number> {",
            *paths,
            "}",
            "",
        ]
    )


def _properties(fields: Iterable[tuple[str, TypeName, bool]], indent: str) -> list[str]:
    return [
        f"{indent}{property_name(name)}: {_type(of, indent)}{' | null' if nullable else ''};"
        for name, of, nullable in fields
    ]


def _type(of: TypeName, indent: str) -> str:
    if of.kind == "array":
        return f"Array<{_type(of.parts[0], indent)} | null>"
    if of.kind == "map":
        key, value = of.parts
        return f"Array<[{_type(key, indent)}, {_type(value, indent)} | null]>"
    if of.kind == "struct":
        fields = [(name, part, True) for name, part in zip(of.names, of.parts, strict=True)]
        return "\n".join(["{", *_properties(fields, f"{indent}  "), f"{indent}}}"])
    return _SIMPLE[of.kind]
