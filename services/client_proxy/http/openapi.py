"""The OpenAPI 3.1 document of the HTTP API, at /openapi.json: its paths. Pure; the shapes are openapi_shapes.py's.

Parameters and answers have examples by name. The answer of a name is that to the parameters of the same name, where
a state is as in the examples; tests/rpc/test_openapi.py asks for each.
"""

from __future__ import annotations

from typing import Any

import msgspec

from services.client_proxy.http.openapi_shapes import (
    CACHING,
    DAILY_DESCRIPTOR,
    PARAMETERS,
    RULES_DESCRIPTOR,
    SCHEMAS,
    TOTALS_DESCRIPTOR,
    problems,
    source,
)

_Json = dict[str, Any]

_READ = ("stale", "max_staleness", "min_epoch", "as_of", "timeout", "integers")
_SCAN = ("from", "to", "limit", "descending", "where", "fields", "keys_only")
_RANGE = ("from", "to", "prefix", "map_from", "map_to")
_STATES = (DAILY_DESCRIPTOR, RULES_DESCRIPTOR, TOTALS_DESCRIPTOR)


def document(version: str) -> _Json:
    """The whole document, as JSON holds it.

    Args:
        version: Of Keyhole.
    """
    whole = {
        "openapi": "3.1.1",
        "info": {
            "title": "Keyhole: queryable state over HTTP",
            "version": version,
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        # Whether a token is asked for is the proxy's setting.
        "security": [{}, {"token": []}],
        "tags": [
            {"name": "values", "description": "What is kept of a key"},
            {"name": "states", "description": "Which states there are, and what they are"},
            {"name": "proxy", "description": "Of the process itself; answered to everybody"},
        ],
        "paths": {
            "/v1": {"get": _all_states()},
            "/v1/{application}": {"get": _states_of_one()},
            "/v1/{application}/{state}": {"get": _state()},
            "/v1/{application}/{state}/{key}": {"get": _key()},
            "/v1/{application}/{state}:scan": {"get": _whole()},
            "/v1/{application}/{state}:aggregate": {"get": _figures()},
            "/v1/{application}/{state}:watch": {"get": _watch()},
            "/v1/{application}/{state}:batchGet": {"post": _batch()},
            "/healthz": {"get": _text("isAlive", "Whether the process lives", {"200": ("It does.", "ok\n")})},
            "/readyz": {"get": _text("isReady", "Whether it answers reads", _READY)},
            "/openapi.json": {"get": _this_document()},
            "/openapi": {"get": _page()},
        },
        "components": {
            "schemas": SCHEMAS,
            "parameters": PARAMETERS,
            "responses": problems(),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
    as_json: _Json = msgspec.json.decode(msgspec.json.encode(whole))
    return as_json


_ABOUT = """The states of running Spark jobs, per key, as a client proxy answers them.

Each answer says who gave it and how fresh it is (source). An absent key is an answer, too: found is false.
A refusal is a problem in JSON (RFC 9457) with a reason; retryable says whether the same request may succeed
later. HEAD is answered as GET, without a body. Whole numbers have up to 64 bits: a reader whose numbers are
doubles asks with integers=text."""

_READY = {
    "200": ("It has reached a state server.", "ok\n"),
    "503": ("It has reached none yet, or is about to end.", "draining\n"),
}


def _all_states() -> _Json:
    return _operation(
        "listStates", "states", "The states of all applications that the caller may read", ("timeout",), _listed()
    )


def _states_of_one() -> _Json:
    about = "The states of one application; none where there is no such application"
    examples = {"all": {"application": "shop"}}
    return _operation("listStatesOf", "states", about, ("application", "timeout"), _listed(), examples)


def _state() -> _Json:
    return _operation(
        "describeState",
        "states",
        "What a state is: its kind, the columns of its keys, the fields of its values",
        ("application", "state", "timeout"),
        _answered("The descriptor.", "StateDescriptor", {"described": TOTALS_DESCRIPTOR}),
        {"described": {"application": "shop", "state": "totals"}},
    )


def _key() -> _Json:
    found = {"found": True, "value": {"orders": 3, "spent": 42.5}, "source": source()}
    absent = {"found": False, "value": None, "source": source()}
    days = [{"map_key": f"2026-11-{day}", "value": {"orders": orders}} for day, orders in ((20, 1), (21, 2))]
    entries = {"entries": days, "next": None, "source": source()}
    first = {"entries": days[:1], "next": "2026-11-21", "source": source()}
    entry = {"found": True, "value": {"orders": 2}, "source": source()}
    many = {"entries": days[1:], "next": None, "source": source()}
    totals, daily = ({"application": "shop", "state": state, "key": "c1"} for state in ("totals", "daily"))
    answers = {"value": found, "absent": absent, "entries": entries, "first": first, "entry": entry, "where": many}
    return _operation(
        "read",
        "values",
        "The value of a key; of a map or list state the entries of the key, or one entry by map_key",
        ("application", "state", "key", "map_key", "consistency", *_SCAN, *_READ, "If-None-Match"),
        _answered("An answer, or entries in their order.", ("Answer", "Entries"), answers, CACHING),
        {
            "value": totals,
            "absent": {**totals, "key": "nobody"},
            "entries": daily,
            "first": {**daily, "limit": 1},
            "entry": {**daily, "map_key": "2026-11-21"},
            "where": {**daily, "where": ["orders > 1"]},
        },
        more={"304": {"description": "The answer is the one that If-None-Match names.", "headers": CACHING}},
    )


def _whole() -> _Json:
    entries = {"entries": [{"map_key": "free-shipping", "value": {"from": 30}}], "next": None, "source": source()}
    all_keys = {
        "entries": [{"key": "c1", "value": {"orders": 3, "spent": 42.5}, "source": 0}],
        "next": None,
        "sources": [source()],
    }
    spent = {**all_keys, "entries": [{"key": "c1", "value": {"spent": 42.5}, "source": 0}]}
    names = {**all_keys, "entries": [{"key": "c1", "value": None, "source": 0}]}
    answers = {"rules": entries, "keys": all_keys, "fields": spent, "names": names, "prefix": all_keys}
    totals = {"application": "shop", "state": "totals"}
    return _operation(
        "scan",
        "values",
        "All keys of a state; of a broadcast state in their order",
        ("application", "state", "after", "ordered", "prefix", "map_from", "map_to", "consistency", *_SCAN, *_READ),
        _answered("Entries.", ("Entries", "FoundEntries"), answers),
        {
            "rules": {"application": "shop", "state": "rules"},
            "keys": totals,
            "fields": {**totals, "fields": "spent"},
            "names": {**totals, "keys_only": "true"},
            "prefix": {**totals, "prefix": "c", "ordered": "true"},
        },
    )


def _figures() -> _Json:
    first = {"key": "c1", "value": {"orders": 3, "spent": 42.5}, "source": 0}
    figures = {"values": {"count": 1, "max(spent)": 42.5, "top(1,spent)": [first]}, "sources": [source()]}
    nothing = {"values": {"sum(orders)": None}, "sources": [source()]}
    some = {"values": {"count": 1}, "sources": [source()]}
    totals = {"application": "shop", "state": "totals"}
    return _operation(
        "aggregate",
        "values",
        "Figures over all entries of a state, over those of where, or of a range of keys",
        (*("application", "state", "of", *_RANGE, "where", "fields", "keys_only", "consistency"), *_READ),
        _answered("The figures.", "Figures", {"figures": figures, "nothing": nothing, "range": some}),
        {
            "figures": {**totals, "of": ["count", "max(spent)", "top(1,spent)"]},
            "nothing": {**totals, "of": ["sum(orders)"], "where": ["spent > 100"]},
            "range": {**totals, "of": ["count"], "prefix": "c"},
        },
    )


def _watch() -> _Json:
    changes = {"epoch": 42, "changes": [{"key": "c1", "value": {"orders": 3, "spent": 42.5}}], "complete_epoch": 42}
    event = f"id: kQGoOX\nevent: changes\ndata: {msgspec.json.encode(changes).decode()}\n\n"
    operation = _operation(
        "watch",
        "values",
        "Rows, and then each committed change, as server-sent events for as long as it is read",
        (
            *("application", "state", "where", "fields", "prefix", "from", "to"),
            *("after", "snapshot", "before", "latest_only", "integers"),
        ),
        {
            "description": "Events: rows, changes, progress, error.",
            "content": {"text/event-stream": {"schema": {"type": "string"}, "example": event}},
        },
    )
    keys = {"type": "array", "items": {"type": "string"}}
    about = "Once for each key that is watched, spelled as elsewhere. None: the whole state."
    operation["parameters"].append({"name": "key", "in": "query", "description": about, "schema": keys})
    return operation


def _batch() -> _Json:
    found = {"found": True, "value": {"orders": 3, "spent": 42.5}, "source": source()}
    absent = {"found": False, "value": None, "source": source()}
    entry = {"found": True, "value": {"orders": 2}, "source": source()}
    answers = {"values": {"answers": [found, absent]}, "entries": {"answers": [entry]}}
    operation = _operation(
        "batchGet",
        "values",
        "The values of several keys, in their order; one that can't be answered fails the request",
        ("application", "state", "consistency", *_READ),
        _answered("An answer for each key.", "Answers", answers),
        {
            "values": {"application": "shop", "state": "totals"},
            "entries": {"application": "shop", "state": "daily"},
        },
        body=True,
    )
    operation["requestBody"] = {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"$ref": "#/components/schemas/Keys"},
                "examples": {
                    "values": {"value": {"keys": ["c1", "nobody"]}},
                    "entries": {"value": {"keys": [{"key": "c1", "map_key": "2026-11-21"}]}},
                },
            }
        },
    }
    return operation


def _listed() -> _Json:
    return _answered("The states, by application and name.", "States", {"all": {"states": list(_STATES)}})


def _operation(
    name: str,
    tag: str,
    summary: str,
    parameters: tuple[str, ...],
    answered: _Json,
    examples: dict[str, _Json] | None = None,
    *,
    body: bool = False,
    more: _Json | None = None,
) -> _Json:
    """One operation below /v1.

    Args:
        examples: By the name of an example, the parameters that it gives.
        body: It takes one, so that it may be refused for it.
        more: Responses that others don't have.
    """
    refusals = [one for one in problems() if body or one not in ("408", "413")]
    return {
        "operationId": name,
        "tags": [tag],
        "summary": summary,
        "parameters": [_parameter(one, examples or {}) for one in parameters],
        "responses": {
            "200": answered,
            **(more or {}),
            **{one: {"$ref": f"#/components/responses/{one}"} for one in refusals},
        },
    }


def _parameter(name: str, examples: dict[str, _Json]) -> _Json:
    given = {of: {"value": parameters[name]} for of, parameters in examples.items() if name in parameters}
    if not given:
        return {"$ref": f"#/components/parameters/{name}"}
    return {**PARAMETERS[name], "examples": given}


def _answered(about: str, schema: str | tuple[str, ...], examples: _Json, headers: _Json | None = None) -> _Json:
    names = (schema,) if isinstance(schema, str) else schema
    refs = [{"$ref": f"#/components/schemas/{name}"} for name in names]
    content = {
        "schema": refs[0] if len(refs) == 1 else {"oneOf": refs},
        "examples": {name: {"value": value} for name, value in examples.items()},
    }
    answered = {"description": about, "content": {"application/json": content}}
    return {**answered, "headers": headers} if headers else answered


def _text(name: str, summary: str, answers: dict[str, tuple[str, str]]) -> _Json:
    responses = {
        status: {
            "description": about,
            "content": {"text/plain": {"schema": {"type": "string"}, "examples": {"text": {"value": text}}}},
        }
        for status, (about, text) in answers.items()
    }
    return {"operationId": name, "tags": ["proxy"], "summary": summary, "security": [], "responses": responses}


def _this_document() -> _Json:
    content = {"application/json": {"schema": {"type": "object"}}}
    responses = {"200": {"description": "OpenAPI 3.1.", "content": content}}
    return {
        "operationId": "openapi",
        "tags": ["proxy"],
        "summary": "This document",
        "security": [],
        "responses": responses,
    }


def _page() -> _Json:
    content = {"text/html": {"schema": {"type": "string"}}}
    responses = {"200": {"description": "HTML.", "content": content}}
    return {
        "operationId": "page",
        "tags": ["proxy"],
        "summary": "A page to try the API",
        "security": [],
        "responses": responses,
    }
