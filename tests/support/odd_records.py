"""Records of JSON as they should not be, made of one that is: what a pipeline takes of them, its recount must take."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from typing import Any

NO_OBJECTS: tuple[bytes | None, ...] = (None, b"", b"not json", b"\xff\xfe\x00", b"[]", b"7", b"null", b"{}")
"""What is no record of any job's: no JSON, or none with fields."""

# JSON's text, as Python would not write some of it.
_VALUES = (
    *(
        "42",
        "-1",
        "0",
        "1.5",
        "1.0",
        "1e3",
        "1e400",
        "9223372036854775807",
        "9223372036854775808",
        "01",
        "NaN",
        "-Infinity",
    ),
    *("true", "false", "null", '""', '"x"', '"42"', '"NaN"', '"tomorrow"', "[]", "{}", '["a"]', '{"a": 1}'),
    *(
        '{"a": 1, "a": 2}',
        r'"\ud83d\ude00"',
        r'"\ud800"',
        r'"a\udc00"',
        r'"\u00fc?"',
        r'"\u0000"',
        r'"\q"',
        '"a\tb"',
        "'x'",
        "x",
    ),
    *("1" * 400, "1234567890123456"),
)
_FOLLOWING = (
    "xyz",
    "}",
    "{}",
    " {}",
    ",",
    ",{}",
    "]",
    "] junk",
    ",0] junk",
    "\x00",
    "\n",
    " \t\r\n",
    "//",
    '"',
    "\u00a0",
)
_SCRAMBLED, _SEED = 300, 11


def odd_records(good: Mapping[str, Any]) -> list[bytes]:
    """The same for the same record: some hundreds, a few of which are good."""
    whole = json.dumps(good)
    return [
        *(text.encode() for text in (*_with_other_fields(good), *_in_other_places(whole))),
        *_in_other_encodings(whole),
        *_scrambled(whole.encode()),
    ]


def _with_other_fields(good: Mapping[str, Any]) -> Iterator[str]:
    texts = {name: json.dumps(value) for name, value in good.items()}
    for name in good:
        yield _object({other: text for other, text in texts.items() if other != name})
        yield _object({other.upper() if other == name else other: text for other, text in texts.items()})
        for value in _VALUES:
            yield _object({**texts, name: value})
        # Twice: the last one counts.
        yield _object(texts)[:-1] + f', "{name}": 1.5}}'
        yield '{"unknown": 1, "unknown": 2, ' + f'"{name}": null, ' + _object(texts)[1:]
    for value in _VALUES:
        yield _object({**texts, "unknown": value})


def _in_other_places(whole: str) -> Iterator[str]:
    yield from (whole + more for more in _FOLLOWING)
    yield from (more + whole for more in _FOLLOWING)
    yield from (f"[{whole}]", f"{whole}{whole}", f'{{"record": {whole}}}', json.dumps(whole), whole.replace('"', "'"))
    yield from (whole[:-1] + ",}", whole.replace(": ", " "), whole.replace("{", "{/* */"), whole.replace('"', ""))


def _in_other_encodings(whole: str) -> Iterator[bytes]:
    yield from (whole.encode("utf-16"), whole.encode("utf-16-le"), whole.encode("utf-8-sig"))
    at = whole.index('"', whole.index(":"))
    for broken in (b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\xaf", "ü☃".encode()):
        yield whole[: at + 1].encode() + broken + whole[at + 1 :].encode()


def _scrambled(whole: bytes) -> Iterator[bytes]:
    """Bytes that are gone, twice there, or others."""
    draw = random.Random(_SEED)
    for _ in range(_SCRAMBLED):
        at, end = sorted(draw.choices(range(len(whole) + 1), k=2))
        end = min(end, at + 4)
        yield (
            whole[:at] + draw.choice([b"", whole[at:end] * 2, draw.choice(b'{}[]":,\\ 0aE.-').to_bytes()]) + whole[end:]
        )


def _object(texts: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{json.dumps(name)}: {text}" for name, text in texts.items()) + "}"
