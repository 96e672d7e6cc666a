"""No sentence of a page is so long that it has to be read twice, 35 words at most; nor a paragraph, nor the README."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_MOST = 35
_MOST_OF_A_PARAGRAPH, _MOST_LINES_OF_THE_README = 120, 120
PAGES = sorted(
    page
    for pattern in (
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "docs/**/*.md",
        *(f"{folder}/**/README.md" for folder in ("charts", "jobs", "services", "tests", "vectors")),
    )
    for page in ROOT.glob(pattern)
    # What was decided, or measured once, stays as it was written.
    if "adr" not in page.parts and page.name != "history.md" and "node_modules" not in page.parts
)
_FENCE = re.compile(r" *(`{3,})")
_ITEM = re.compile(r" *(?:[-*]|\d+\.) ")
_END = re.compile(r"(?<=[.!?])[\"')*]*\s+(?=[A-Z`\"'(\[*\d])")


def _blocks(page: str) -> Iterator[tuple[int, str]]:
    """The paragraphs, items of lists and cells of tables of a page, each with the number of its first line; no code."""
    fence, first, block = "", 0, list[str]()
    for number, line in enumerate([*page.splitlines(), ""], start=1):
        opened = _FENCE.match(line)
        cells = re.split(r"(?<!\\)\|", line.strip())[1:-1] if line.strip().startswith("|") and not fence else []
        indented = line.startswith("    ") and not block
        ends = fence or opened or cells or indented or not line.strip() or line.startswith("#") or _ITEM.match(line)
        if ends and block:
            yield first, "\n".join(block)
            block = []
        yield from ((number, cell) for cell in cells)
        if opened and (not fence or opened[1].startswith(fence)):
            fence = "" if fence else opened[1]
        elif not fence and not cells and not indented and line.strip() and not line.startswith("#"):
            first = first if block else number
            block.append(line)


def _sentences(page: str) -> Iterator[tuple[int, str]]:
    """Each sentence with the number of its first line. A code span is one word; of a link its text counts."""
    for first, block in _blocks(page):
        text = re.sub(r"``[^`]*``|`[^`]*`", lambda code: "`code`" + "\n" * code[0].count("\n"), block)
        text = re.sub(r"\]\([^)]*\)", "]", text)
        begin = 0
        for end in [*(found.span() for found in _END.finditer(text)), (len(text), len(text))]:
            yield first + text.count("\n", 0, begin), text[begin : end[0]]
            begin = end[1]


def too_long(page: str) -> list[tuple[int, int, str]]:
    """Line, number of words and text of each sentence that has too many."""
    found = []
    for line, sentence in _sentences(page):
        words = [word for word in sentence.split() if re.search(r"\w", word)]
        if len(words) > _MOST:
            found.append((line, len(words), " ".join(sentence.split())))
    return found


def test_a_sentence_has_at_most_35_words() -> None:
    long = [
        f"{page.relative_to(ROOT)}:{line}: {words} words: {sentence}"
        for page in PAGES
        for line, words, sentence in too_long(page.read_text())
    ]
    assert not long, f"split these, none may have more than {_MOST} words:\n" + "\n".join(long)


def test_a_long_sentence_is_found_wherever_it_stands_and_code_is_not() -> None:
    long = " ".join(["Word"] * _MOST)
    page = f"# {long} more\n\nShort.\n{long}\nmore. Short.\n\n- {long} `a b`.\n- {long}\n\n"
    page += f"| a | {long} [more](x y z) |\n|---|---|\n\n    {long} more\n\n```\n{long} more\n```\n\n{long}.\n"
    assert [line for line, *_ in too_long(page)] == [4, 7, 10]


def test_a_paragraph_has_at_most_120_words() -> None:
    long = {
        f"{page.relative_to(ROOT)}:{line}": words
        for page in PAGES
        for line, block in _blocks(page.read_text())
        if (words := sum(bool(re.search(r"\w", word)) for word in block.split())) > _MOST_OF_A_PARAGRAPH
    }
    assert not long, "make several of it, each of one subject"


def test_the_readme_has_at_most_120_lines() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= _MOST_LINES_OF_THE_README


def _first(page: Path) -> str:
    """The first paragraph, but for a picture."""
    return next(text for _, text in _blocks(page.read_text()) if not text.startswith("!["))


def test_a_page_begins_with_its_purpose_and_its_readers() -> None:
    """Is it a tutorial, a how-to, a reference or an explanation, and for whom: before all but a title and a picture.
    A page of docs/ is one of these.
    """
    one = re.compile(r"(Tutorial|How-to|Reference|Explanation), for ")
    beside_code = re.compile(r"(Tutorial|How-to|Reference|Explanation)( and reference)?, for ")
    pages = {page: one for page in PAGES if page.parent == ROOT / "docs"}
    pages |= {page: beside_code for page in PAGES if page.parts[-3] in ("jobs", "services", "charts")}
    assert [str(page.relative_to(ROOT)) for page, purpose in pages.items() if not purpose.match(_first(page))] == []


def test_a_how_to_and_its_reference_lead_to_each_other() -> None:
    references = sorted((ROOT / "docs").glob("*-reference.md"))
    assert references
    for reference in references:
        how_to = reference.with_name(reference.name.replace("-reference", ""))
        assert _first(how_to).startswith("How-to, for "), how_to.name
        assert _first(reference).startswith("Reference, for "), reference.name
        assert f"({reference.name}" in how_to.read_text(), how_to.name
        assert re.search(rf"\({re.escape(how_to.name)}[#)]", _first(reference)), reference.name
