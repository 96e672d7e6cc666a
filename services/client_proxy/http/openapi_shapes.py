"""What the OpenAPI document's requests and answers are made of: schemas, parameters, problems, a state for examples.

What code has elsewhere is taken from there: the descriptor's fields, the policies of staleness, the reasons. Pure.
"""

from __future__ import annotations

import inspect
import re
from http import HTTPStatus
from typing import Any

import msgspec

from keyhole.errors import CommitError, MachineError, by_reason
from keyhole.model.read import Role, Stale
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.rpc.http.problems import CONTENT_TYPE, http_status
from services.client_proxy.http.answers import descriptor_json
from services.client_proxy.http.requests import DEFAULT_ENTRIES, MOST_ENTRIES, MOST_SECONDS

_Json = dict[str, Any]

_EPOCH_BOUND = (1 << 63) - 1


def source(epoch: int = 7) -> _Json:
    """The source of an example's answers."""
    return {
        "server": "server-0",
        "role": "owner",
        "epoch": epoch,
        "commit_time": "2026-11-21T10:00:00+00:00",
        "watermark": None,
        "as_of": "2026-11-21T10:00:04.250000+00:00",
        "staleness_seconds": 0.4,
        "lag_epochs": 0,
        "staged_epoch": None,
        "unconfirmed": False,
        "generation": 1,
        "assignment_version": 1,
    }


def _described(state: str, kind: StateKind, key: str, fields: dict[str, str], map_key: str = "") -> StateDescriptor:
    return StateDescriptor(
        application="shop",
        state=state,
        query=state,
        kind=kind,
        key_groups=1 if kind is StateKind.BROADCAST else 16,
        key=(KeyColumn(key, KeyType.STRING),),
        value=ValueSchema(1, tuple(ValueField(name, of) for name, of in fields.items())),
        topic_id=f"the id of the topic of {state}",
        map_key=(KeyColumn(map_key, KeyType.DATE),) if map_key else (),
    )


TOTALS = _described("totals", StateKind.VALUE, "customer", {"orders": "bigint", "spent": "double"})
DAILY = _described("daily", StateKind.MAP, "customer", {"orders": "bigint"}, map_key="day")
RULES = _described("rules", StateKind.BROADCAST, "rule", {"from": "bigint"})
TOTALS_DESCRIPTOR, DAILY_DESCRIPTOR, RULES_DESCRIPTOR = (descriptor_json(one) for one in (TOTALS, DAILY, RULES))


def _docstring_parts(docstring: str) -> tuple[str, dict[str, str]]:
    """What a class's docstring says of it, and what it says of each attribute."""
    about, _, attributes = docstring.partition("Attributes:\n")
    named = re.findall(r"^    (\w+(?:, \w+)*): (.*(?:\n {8}.*)*)", attributes, re.MULTILINE)
    meanings = {name: " ".join(text.split()) for names, text in named for name in names.split(", ")}
    return " ".join(about.split()), meanings


def _of_classes(*kinds: type[Any]) -> _Json:
    """The schemas of what the answers hold whole, and of all that is in it. Every field is always there."""
    _, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    docstrings = {kind.__name__: inspect.getdoc(kind) or "" for kind in _with_all_in_them()}
    for name, schema in components.items():
        schema.pop("title", None)
        about, fields = _docstring_parts(docstrings.get(name, schema.get("description", "")))
        schema |= {"description": about} if about else {}
        if schema.get("type") == "object":
            schema["required"] = list(schema["properties"])
            for field, meaning in fields.items():
                schema["properties"][field] = {"description": meaning, **schema["properties"][field]}
    return components


def _with_all_in_them() -> tuple[type[Any], ...]:
    return (StateDescriptor, ValueSchema, ValueField, KeyColumn, KeyType, StateKind)


def _object(about: str, **properties: _Json) -> _Json:
    return {"type": "object", "description": about, "required": list(properties), "properties": properties}


def _ref(name: str) -> _Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _array(of: _Json) -> _Json:
    return {"type": "array", "items": of}


_MOMENT = {"type": "string", "format": "date-time"}
_MOMENT_OR_NULL = {"type": ["string", "null"], "format": "date-time"}
_WHOLE = {"type": "integer", "minimum": 0}
_GIVEN_VALUE = {"type": ["object", "null"], "description": "By field name; null where keys alone are asked for."}

SCHEMAS: _Json = {
    "Source": _object(
        "Who answered, and as of when.",
        server={"type": "string"},
        role={"type": "string", "enum": [str(role) for role in Role]},
        epoch={**_WHOLE, "description": "What the answer holds at least; 0: nothing was committed yet."},
        commit_time=_MOMENT_OR_NULL | {"description": "When the epoch was committed."},
        watermark=_MOMENT_OR_NULL | {"description": "Spark's bound on how late events may come."},
        as_of=_MOMENT_OR_NULL | {"description": "It holds all that was complete then; null: not known."},
        staleness_seconds={"type": ["number", "null"], "minimum": 0, "description": "How long ago as_of was."},
        lag_epochs=_WHOLE | {"description": "How many epochs the copy lacks, as far as it knows."},
        staged_epoch={
            "type": ["integer", "null"],
            "minimum": 1,
            "description": "Of consistency=latest: it also holds what is staged of this epoch. Null: all is committed.",
        },
        unconfirmed={"type": "boolean", "description": "A newer epoch may exist."},
        generation=_WHOLE,
        assignment_version=_WHOLE,
    ),
    "Answer": _object(
        "The answer to one key.",
        found={"type": "boolean"},
        value={"description": "Null where the key is absent; else an object by field name."},
        source=_ref("Source"),
    ),
    "Answers": _object("The answers, in the order of the keys.", answers=_array(_ref("Answer"))),
    "Entry": _object(
        "One entry of a key.",
        map_key={"description": "A text, number or boolean; an array where it has several columns."},
        value=_GIVEN_VALUE,
    ),
    "Entries": _object(
        "Entries, in the order of their map keys.",
        entries=_array(_ref("Entry")),
        next={
            "type": ["string", "null"],
            "description": "What to pass as from (as to, where descending) for those that follow; null: no more.",
        },
        source=_ref("Source"),
    ),
    "FoundEntry": {
        "type": "object",
        "description": "One of all keys of a state, or one entry of it.",
        "properties": {
            "key": {"description": "Of several columns an array."},
            "map_key": {"description": "Of a map or list state alone."},
            "value": _GIVEN_VALUE,
            "source": {"type": "integer", "minimum": 0, "description": "Which of sources gave it."},
        },
        "required": ["key", "value", "source"],
        "additionalProperties": False,
    },
    "FoundEntries": _object(
        "Some of all keys of a state, in order where that was asked for. Those of one key group are of one epoch.",
        entries=_array(_ref("FoundEntry")),
        next={
            "type": ["string", "null"],
            "description": "What to pass as after for those that follow; null: there are no more.",
        },
        sources=_array(_ref("Source")),
    ),
    "Figures": _object(
        "What was computed of entries. What one source has computed is of one epoch.",
        values={
            "type": "object",
            "description": "By the text of each aggregate; null: the field was null in all entries. Of top and bottom "
            "an array of FoundEntry. A sum beyond 64 bits, and any decimal, is a string.",
        },
        sources=_array(_ref("Source")),
    ),
    "Keys": _object(
        "The keys that are asked for.",
        keys=_array(
            {
                "description": "A text, a number, a boolean, an array of the columns, or an object of key and map_key.",
                "anyOf": [
                    {"type": ["string", "integer", "boolean", "array"]},
                    {**_object("One entry.", key={}, map_key={}), "additionalProperties": False},
                ],
            }
        ),
    )
    | {"additionalProperties": False},
    "States": _object("States that the caller may read.", states=_array(_ref("StateDescriptor"))),
    "Problem": _object(
        "A refusal, as RFC 9457 has it.",
        type={"type": "string", "format": "uri", "description": "urn:keyhole:reason: and the reason."},
        title={"type": "string"},
        status={"type": "integer"},
        detail={"type": "string", "description": "What is wrong and what to do; for a person."},
        reason={"type": "string", "description": "For a program: docs/errors.md has all. More may come."},
        retryable={"type": "boolean", "description": "The same request may succeed later."},
        facts={"type": "object", "additionalProperties": {"type": "string"}},
    ),
    **_of_classes(StateDescriptor),
}


def _parameter(name: str, place: str, about: str, schema: _Json) -> _Json:
    required = {"required": True} if place == "path" else {}
    return {"name": name, "in": place, "description": about, "schema": schema, **required}


_TEXT = {"type": "string"}
_SECONDS = {"type": "number", "exclusiveMinimum": 0}
_NAME = {"type": "string", "pattern": "^[^/:]+$"}
_SPELLED = "text as it is, numbers as in JSON, binary in hexadecimal digits, dates and times as in ISO 8601"

PARAMETERS: _Json = {
    one["name"]: one
    for one in (
        _parameter("application", "path", "The job's stable name.", _NAME),
        _parameter("state", "path", "The state's name.", _NAME),
        _parameter("key", "path", f"Of several columns a JSON array, or commas between them: {_SPELLED}.", _TEXT),
        _parameter("map_key", "query", "Of a map or list state: the entry that is asked for, spelled as a key.", _TEXT),
        _parameter(
            "from", "query", "The first map key of a scan; of all keys, figures and a watch the first key.", _TEXT
        ),
        _parameter(
            "to", "query", "The map key before which a scan ends; of all keys, figures and a watch the key.", _TEXT
        ),
        _parameter("prefix", "query", "Of a scan of all keys, of figures or of a watch: how the keys begin.", _TEXT),
        _parameter("map_from", "query", "Of a scan of all keys, or of figures: the first map key of each.", _TEXT),
        _parameter(
            "map_to", "query", "Of a scan of all keys, or of figures: the map key before which each ends.", _TEXT
        ),
        _parameter(
            "ordered",
            "query",
            "Of a scan of all keys: in the order of the keys, and so with descending.",
            {"type": "boolean", "default": False},
        ),
        _parameter(
            "limit",
            "query",
            "How many entries an answer has at most.",
            {"type": "integer", "minimum": 1, "maximum": MOST_ENTRIES, "default": DEFAULT_ENTRIES},
        ),
        _parameter("after", "query", "Of a scan of all keys: the next of the answer before.", _TEXT),
        _parameter(
            "where",
            "query",
            "What the entries of a scan or a watch must pass: `FIELD OP VALUE` with one of ==, !=, <, <=, >, >=, "
            "`FIELD in A,B`, `FIELD is null` or `FIELD is not null`. Given several times: all of it.",
            {"type": "array", "items": _TEXT},
        ),
        _parameter(
            "of",
            "query",
            "What is computed: count, count(FIELD), sum(FIELD), min(FIELD), max(FIELD), avg(FIELD), top(N,FIELD) or "
            "bottom(N,FIELD). May be given several times.",
            {"type": "array", "items": _TEXT},
        ),
        _parameter(
            "fields",
            "query",
            "Fields of the value, with commas between them or as a JSON array; no others come.",
            _TEXT,
        ),
        _parameter("keys_only", "query", "Keys, and null as values.", {"type": "boolean", "default": False}),
        _parameter("descending", "query", "Scan from the last entry down.", {"type": "boolean", "default": False}),
        _parameter(
            "stale",
            "query",
            "Whether a copy other than the confirmed owner's may answer.",
            {"type": "string", "enum": [str(policy) for policy in Stale], "default": str(Stale.WHEN_NEEDED)},
        ),
        _parameter(
            "max_staleness", "query", "The most seconds that as_of may be ago.", _SECONDS | {"maximum": 1 << 32}
        ),
        _parameter(
            "min_epoch",
            "query",
            "The answer holds this epoch or a later one.",
            {"type": "integer", "minimum": 0, "maximum": _EPOCH_BOUND, "default": 0},
        ),
        _parameter("snapshot", "query", "Begin with the rows that are there.", {"type": "boolean", "default": True}),
        _parameter("before", "query", "With what was there before.", {"type": "boolean", "default": False}),
        _parameter(
            "latest_only",
            "query",
            "A reader that is slow gets the last change of each key alone.",
            {"type": "boolean", "default": False},
        ),
        _parameter(
            "consistency",
            "query",
            "latest: also what is staged and not committed; without as_of and stale=always. "
            "snapshot: all keys of :batchGet as of one and the same epoch, whichever servers have them.",
            {"type": "string", "enum": ["committed", "latest", "snapshot"], "default": "committed"},
        ),
        _parameter(
            "as_of",
            "query",
            "The answer is as of this very epoch, which servers keep for a while; without min_epoch and max_staleness.",
            {"type": "integer", "minimum": 1, "maximum": _EPOCH_BOUND},
        ),
        _parameter(
            "timeout",
            "query",
            "How many seconds the answer may take; where it is not given, the proxy's setting.",
            _SECONDS | {"maximum": MOST_SECONDS},
        ),
        _parameter(
            "integers",
            "query",
            "How whole numbers of values and map keys come; text: as strings, for readers whose numbers are doubles.",
            {"type": "string", "enum": ["number", "text"], "default": "number"},
        ),
        _parameter("If-None-Match", "header", "The ETag of an answer that the reader has; of one value alone.", _TEXT),
    )
}


def problems() -> _Json:
    """By the status as text, the refusals that a request may be answered with, each with its reasons."""
    reasons: dict[int, list[str]] = {status: ["MALFORMED_REQUEST"] for status in (408, 413, 421)}
    for kind in by_reason().values():
        if not issubclass(kind, (CommitError, MachineError)):
            reasons.setdefault(http_status(kind("")), []).append(kind.reason)
    return {
        str(status): {
            "description": f"{HTTPStatus(status).phrase}: {', '.join(sorted(names))}",
            "content": {CONTENT_TYPE: {"schema": _ref("Problem")}},
            **({"headers": _RETRY_AFTER} if status in (429, 503, 504) else {}),
        }
        for status, names in sorted(reasons.items())
    }


CACHING = {
    "ETag": {"description": "Of the answer to one key: another one where it says anything new.", "schema": _TEXT},
    "Cache-Control": {
        "description": "max-age: until the next epoch is due. private: where the proxy asks who calls.",
        "schema": _TEXT,
    },
}
"""What the answer to one key may be kept by. All other answers, and refusals, say no-store."""

_RETRY_AFTER = {"Retry-After": {"description": "Seconds; only where it may help.", "schema": {"type": "integer"}}}
