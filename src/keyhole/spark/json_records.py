"""Records of JSON, taken at their word: each is one JSON object in UTF-8, whose fields have the types that they should.

    parsed = json_records.parsed(records, {"sensor": "string", "celsius": "double"})
    good = dead_letters.accept(parsed, first_broken({"sensor is not null": "no sensor", **json_records.WELL_FORMED}))

Spark's `from_json` alone is kinder. To it any token is a string (42 is "42"), and a field of another type is null, as
if it were not there. Quotes may be single, and what follows the object is not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everyone who writes PySpark calls it

from keyhole.errors import InvalidConfiguration

WELL_FORMED: Mapping[str, str] = MappingProxyType(
    {"__well_formed": "it is not one JSON object, or a field is of another type"}
)
"""The rule for `first_broken`, behind those that say more: without it a field of another type passes as null."""

_TEXT, _RECORD, _CORRUPT = "__text", "__record", "__corrupt"
_OPTIONS = {
    "columnNameOfCorruptRecord": _CORRUPT,
    "allowSingleQuotes": "false",
    # NaN and the like are no JSON.
    "allowNonNumericNumbers": "false",
}
# from_json and parse_json stop at the end of the object. Nothing follows where the first closing brace is the last
# character, as in most records; in others something that no text says of itself is put behind it, and looked for.
_FOLLOWS = f"get_json_object(concat('[', {_TEXT}, ',\"', xxhash64({_TEXT}), '\"]'), '$[1]')"
_NOTHING_FOLLOWS = f"(instr({_TEXT}, '}}') = length({_TEXT}) or {_FOLLOWS} = string(xxhash64({_TEXT})))"


def parsed(records: DataFrame, fields: Mapping[str, str]) -> DataFrame:
    """The records with a column for each field: null where the field is null, not there, or of another type.

    Of a name that comes twice the last one counts. Where the record is no JSON object all are null.

    Args:
        records: `value`: binary or string.
        fields: By name, the type: string, or one of numbers (int, bigint, double), or variant: whatever it is. An int
            is no double with a fraction of zero; a double may be a whole number.

    Raises:
        InvalidConfiguration: A field has the name of a column of the records, or of those made here.

    Returns:
        All columns of the records, the fields', and what WELL_FORMED looks at, which dead_letters.Accept leaves out.
    """
    taken = [name for name in fields if name in records.columns or name.startswith("__")]
    if taken:
        raise InvalidConfiguration(
            f"the records' field {taken[0]!r} would stand beside a column of that name; read the records without it, "
            "as records.withColumnRenamed(...), or call the field otherwise",
            column=taken[0],
        )
    # A variant keeps the type of the token, and refuses text that is none (half a surrogate pair).
    types = {name: "variant" if of == "string" else of for name, of in fields.items()}
    schema = ", ".join(f"`{name}` {of}" for name, of in {**types, _CORRUPT: "string"}.items())
    read = records.withColumn(_TEXT, F.col("value").cast("string"))
    read = read.withColumn(_RECORD, F.from_json(_TEXT, schema, _OPTIONS))
    strings = [_field(name) for name, of in fields.items() if of == "string"]
    rules = [f"{_RECORD} is not null", f"{_field(_CORRUPT)} is null", f"is_valid_utf8({_TEXT})", _NOTHING_FOLLOWS]
    rules += [f"({token} is null or {_is_no_other(token)})" for token in strings]
    columns = [_value(name, of).alias(name) for name, of in fields.items()]
    return read.select(*records.columns, *columns, F.expr(" and ".join(rules)).alias(*WELL_FORMED))


def _field(name: str) -> str:
    return f"{_RECORD}.`{name}`"


def _value(name: str, of: str) -> Column:
    token = _field(name)
    return F.expr(f"if({_is_string(token)}, variant_get({token}, '$', 'string'), null)" if of == "string" else token)


def _is_string(token: str) -> str:
    return f"schema_of_variant({token}) = 'STRING'"


def _is_no_other(token: str) -> str:
    """A string, or JSON's null."""
    return f"schema_of_variant({token}) in ('STRING', 'VOID')"
