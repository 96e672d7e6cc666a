"""The values of a query's rows as JSON, in the form that docs/values.md has. Pure."""

from __future__ import annotations

from typing import Any

from keyhole.encoding.value_json import to_json


def result_json(value: Any) -> Any:
    """What `json.dumps` takes as it is.

    Args:
        value: As Arrow gives it to Python: a dict is a struct, a list of pairs may be a map.
    """
    match value:
        case dict():
            return {str(name): result_json(of) for name, of in value.items()}
        case list() | tuple():
            return [result_json(of) for of in value]
        case _:
            return to_json(value)
