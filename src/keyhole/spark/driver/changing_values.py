"""What in a query makes other rows of the same records when they are read again: by its class, and its name in SQL.

    selectExpr("concat(customer, current_date()) AS key")     current_date(): after midnight it is another key

Spark calls most of it deterministic, as it is within a batch. But real-time mode logs a batch, and its time, when the
batch has ended: one that was broken off is read again with another time.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from py4j.java_gateway import JavaObject

from keyhole.spark.driver.plan_nodes import each, kind_of, nodes

_OF_THE_RECORD = "make keys, values and numbers of the record alone"
_ITS_TIME = "use the record's own time, which is the source's column timestamp or a field of its value"
_LITERAL = "write a literal, as the next start may have another one"
_VECTOR = "give it an initialization vector that is made of the record"

_CLOCK = {"CurrentDate", "CurrentTimestamp", "Now", "LocalTimestamp", "CurrentTime", "CurrentBatchTimestamp"}
_SESSION = {"CurrentUser", "CurrentDatabase", "CurrentCatalog", "CurrentPath", "CurrentTimeZone", "SparkVersion"}
_QUERIES = {"ScalarSubquery", "Exists", "ListQuery", "LateralSubquery"}
_CASTS = {"Cast", "ParseToDate", "ParseToTimestamp"}
# Text that Spark reads by the clock, where it becomes a date or a timestamp.
_MOVING = re.compile(r"\s*(now|today|tomorrow|yesterday)\b", re.IGNORECASE)
_TIMES = {"date", "timestamp", "timestamp_ntz"}


class Changing(NamedTuple):
    """A part of a query that may come to another value when the same record is read again.

    Attributes:
        name: As SQL has it.
        instead: What to use.
    """

    name: str
    instead: str


def changing(expression: JavaObject) -> Changing | None:
    """The first part of an analyzed expression that may come to another value; None: there is none.

    Not found is what is no part of it any more, as `date'today'`. Nor is what goes by a setting of the session, as
    hours do by its time zone, nor a function of the user's that is said to be deterministic and is not.
    """
    for node in nodes(expression):
        if (found := _known(node)) is not None:
            return found
    if expression.deterministic():
        return None
    # The innermost of them: what is around it is so because of it.
    *_, chance = (node for node in nodes(expression) if not node.deterministic())
    return Changing(_call(chance), _OF_THE_RECORD)


def _known(node: JavaObject) -> Changing | None:
    """What Spark calls deterministic, and is not when it is read again: this node alone, and a query within it."""
    kind = kind_of(node)
    if kind in _CLOCK:
        return Changing(_call(node), _ITS_TIME)
    if kind in _SESSION:
        return Changing(_call(node), _LITERAL)
    if kind == "UnixTimestamp" and kind_of(_first(node)) == "CurrentTimestamp":
        # Whoever writes it without arguments has not written the other name.
        return Changing("unix_timestamp()", _ITS_TIME)
    if kind == "AesEncrypt" and _text(node.iv()) == "" and str(_text(node.mode())).upper() != "ECB":
        return Changing("aes_encrypt() with a vector by chance", _VECTOR)
    if kind in _CASTS and node.dataType().typeName() in _TIMES and _MOVING.match(_text(_first(node)) or ""):
        return Changing(f"'{_text(_first(node))}' as a time", _ITS_TIME)
    if kind in _QUERIES:
        parts = (part for below in nodes(node.plan()) for part in each(below.expressions()))
        return next(filter(None, map(changing, parts)), None)
    return None


def _call(node: JavaObject) -> str:
    return f"{str(node.prettyName()).lower()}()"


def _first(node: JavaObject) -> JavaObject:
    return node.children().apply(0)


def _text(node: JavaObject) -> str | None:
    """Of a literal, with any casts around it; None: it is none."""
    while kind_of(node) == "Cast":
        node = _first(node)
    return str(node.value()) if kind_of(node) == "Literal" else None
