"""Values as JSON, in the form that docs/values.md gives for readers in every language. Pure."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from typing import Any

from keyhole.encoding.row import Row
from keyhole.encoding.value_types import json_float


def to_json(value: Any) -> Any:
    """What `json.dumps` takes as it is: no NaN, no bytes, no keys of a map that JSON could not have.

    Args:
        value: What a reader gets: a Row, or anything that one may hold.
    """
    match value:
        case Row():
            return {name: to_json(value[name]) for name in value}
        case Mapping():
            return [[to_json(key), to_json(of_key)] for key, of_key in value.items()]
        case tuple():
            return [to_json(element) for element in value]
        case float():
            return json_float(value)
        case bytes():
            return base64.b64encode(value).decode()
        case Decimal():
            return format(value, "f")
        case date():  # and datetime
            return value.isoformat()
        case _:
            return value
