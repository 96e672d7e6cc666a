"""The glossary is found through: its words are in order, each once, and what it writes in italics has an entry."""

from __future__ import annotations

import re
from pathlib import Path

_PAGE = (Path(__file__).resolve().parents[2] / "docs" / "glossary.md").read_text()
_ROWS = re.findall(r"^\| (.+?) \| (.+) \|$", _PAGE, flags=re.MULTILINE)[1:]
_ITALICS = re.compile(r"(?<!\*)\*([^*]+)\*(?!\*)")


def _words(entry: str) -> set[str]:
    """Those that an entry is of: several, where one means the same as the other. Without what is in brackets."""
    return {word.strip().lower() for word in re.split(r", | or ", re.sub(r"\(.*?\)|`", "", entry))}


def _forms(word: str) -> set[str]:
    """A word as it stands in a sentence, and what its entry may be called."""
    word = re.sub("'s$|s'$", "", word.lower())
    return {
        word,
        *(re.sub(end, "", word) for end in ("s$", "es$", "d$", "ed$", "ing$")),
        re.sub("ing$", "e", word),
        re.sub("ies$", "y", word),
    }


def test_each_word_has_one_entry_and_they_are_in_order() -> None:
    entries = [entry.lower() for entry, _ in _ROWS]
    assert entries
    assert entries == sorted(entries)
    words = [word for entry in entries for word in _words(entry)]
    assert len(words) == len(set(words))


def test_what_is_written_in_italics_has_an_entry() -> None:
    words = {word for entry, _ in _ROWS for word in _words(entry)}
    named = {word for _, meaning in _ROWS for word in _ITALICS.findall(meaning)}
    assert {word for word in named if not _forms(word) & words} == set()
