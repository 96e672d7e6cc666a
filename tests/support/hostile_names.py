"""Names that somebody gives a meaning to: a library, Python, Spark's SQL, JSON, protobuf, a terminal, Keyhole itself.

A column may have any of NAMES: it is stored and read as any other, whether it is a key (OF_KEYS), a map key, a value,
or the field of a struct (OF_FIELDS). Each of REFUSED is refused by its name before anything is declared.
"""

from __future__ import annotations

import keyword
import unicodedata

NAMES: dict[str, str] = {
    # msgspec
    "type": "by default the tag of a struct",
    "__struct_fields__": "where a struct has its fields' names",
    "__struct_config__": "what a struct is",
    "__post_init__": "is called when a struct is made",
    "__match_args__": "of a struct, for match",
    # Python
    "_": "the last value, a translation, nothing at all",
    "self": "a method's first argument",
    "cls": "a class method's",
    "class": "a keyword",
    "None": "a keyword that is a value",
    "True": "another one",
    "lambda": "a keyword that is an expression",
    "match": "a keyword in some places only",
    "print": "a builtin",
    "mro": "the method of every class",
    "__class__": "what an object is",
    "__dict__": "where its attributes are",
    "__slots__": "which attributes there are",
    "__init__": "what makes it",
    "__len__": "how long it is",
    "__iter__": "what it iterates over",
    "__eq__": "whether it is equal",
    "__hash__": "what a set knows it by",
    "__getattr__": "attributes that it hasn't",
    "__reduce__": "how it is pickled",
    "__deepcopy__": "how it is copied",
    "__annotations__": "the types of its attributes",
    "__doc__": "what it is for",
    "__mangled": "a name that a class makes its own",
    "_0": "what stands for a name that can be no attribute",
    "_1": "what stands for the next one",
    # tuples, dictionaries and sequences
    "count": "a tuple's method",
    "index": "a tuple's method",
    "keys": "what makes something a mapping",
    "items": "a dictionary's method",
    "values": "a dictionary's method",
    "get": "a dictionary's method",
    "_asdict": "a named tuple's method",
    "_fields": "a named tuple's names",
    # Keyhole's own
    "asdict": "a method of Row",
    "__names__": "where a Row has its names",
    "value": "the field that a codec makes",
    "key": "a parameter",
    "storage_key": "a column of what is staged",
    "version": "of a schema",
    "position": "of an element in a list",
    "map_key": "a query parameter over HTTP",
    "found": "a field of an answer over HTTP",
    # protobuf and JSON
    "DESCRIPTOR": "of every message",
    "from": "a field of a message, and a keyword",
    "null": "JSON's nothing",
    "$schema": "of a JSON document",
    "a/b": "two parts of a path",
    "a~1b": "the same in a JSON pointer",
    # Spark's SQL
    "select": "a keyword",
    "array": "a type",
    "struct": "a type",
    "int": "a type",
    "map": "a type",
    "timestamp": "a type, and a function",
    "_metadata": "a column of every file",
    "*": "all columns",
    "a.b": "the field b of a",
    "1": "a number",
    "-1": "an expression",
    "--": "a comment",
    "?": "a parameter",
    "a`b": "the end of a quoted name",
    "a:b": "a field and its type",
    "a,b": "two columns",
    "<b>": "a tag, or what a type is made of",
    "count(a)": "a call",
    "$x": "nearly a variable",
    # characters
    "": "no name at all",
    " ": "nothing to be seen",
    "a b": "two words",
    "\t": "a tab",
    "a\nb": "two lines",
    "a\rb": "a line over another",
    "'": "a quote",
    '"': "another quote",
    "\\": "what escapes",
    "\\n": "no line's end",
    "%s": "a format",
    "{}": "a format",
    "{0.__class__}": "a format that asks",
    "[red]x[/]": "markup",
    "\x1b[31m": "tells a terminal something",
    "\x7f": "a control character",
    "\u202etxt": "writes from right to left",
    "\ufeff": "a byte order mark",
    "\u2028": "a line's end to JavaScript",
    "日本": "other letters",
    "😀": "beyond 16 bits",
    "x" * 200: "long",
    # letters that Python reads as others (NFKC)
    "é": "one letter",
    "Re\u0301sume\u0301": "in two parts: Python reads the whole ones",
    "\ufb01eld": "a ligature: Python reads field",
    "\u210c": "Python reads H",
    "H": "is also what Python reads for another",
    "\uff12": "a digit that is no name's first letter",
    "\ufb05": "Python reads st",
    "\ufb06": "and so it does here",
}
"""By name: what it means to whom."""

OF_KEYS = {name: why for name, why in NAMES.items() if name}
"""Those that a column of the key may have."""

OF_FIELDS = {name: why for name, why in NAMES.items() if name and not set(name) & set("<>:,()`")}
"""Those that the field of a struct may have."""

ATTRIBUTES = {
    "Re\u0301sume\u0301": "Résumé",
    "\ufb01eld": "field",
    "\u210c": "",  # another column is called H
    "\ufb05": "",  # neither can be told from the other
    "\ufb06": "",
    "asdict": "",
    "keys": "",
}
"""By name, the attribute that a row has it by, if not by itself; empty: none."""

REFUSED: dict[str, str] = {
    "a\0b": "a NUL character",
    "\0": "a NUL character",
    "${x}": "a variable",
    "a${spark.app.name}": "a variable",
    "_keyhole_op": "are Keyhole's",
    "_KEYHOLE_x": "are Keyhole's",
}
"""By name, what is said against it as a column's."""

REFUSED_FIELDS: dict[str, str] = {
    "": "needs a name",
    "a\0b": "a NUL character",
    "a<b": "a character that type names need",
    "a>b": "a character that type names need",
    "a:b": "a character that type names need",
    "a,b": "a character that type names need",
    "(a)": "a character that type names need",
    "a`b": "a character that type names need",
}
"""By name, what is said against it as that of a field in a struct."""

OF_STATES = ["type", "_", "self", "None", "True", "class", "__class__", "__dict__", "-", "--help", "0", "v1", "healthz"]
"""Names of states, applications and queries: of letters, digits, _ and - alone."""

REFUSED_STATES = ["", ".", "..", "a.b", "a b", "a/b", "a:scan", "*", "é", "\ufb01eld", "a\0", "a\n", "x" * 101]


def attribute(name: str) -> str:
    """What stands after the dot where a program asks a row for the column; empty: nothing can."""
    if name in ATTRIBUTES:
        return ATTRIBUTES[name]
    plain = name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("_")
    return unicodedata.normalize("NFKC", name) if plain else ""
