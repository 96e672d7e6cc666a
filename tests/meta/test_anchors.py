"""A link to a heading leads to a heading that there is."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.of_all import of_all

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "services/**/*.md", "jobs/**/*.md", "tests/**/*.md", "charts/**/*.md")
    for page in ROOT.glob(pattern)
    if "node_modules" not in page.parts
)


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as they are made where Markdown is shown."""
    text = re.sub(r"^ *(```+).*?^ *\1", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return {
        re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).strip().lower()).replace(" ", "-")
        for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }


@of_all(PAGES, lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_heading_leads_to_one(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text())
    missing = [
        f"{path}#{anchor}"
        for path, anchor in links
        if "://" not in path and anchor not in anchors(page.parent / path if path else page)
    ]
    assert missing == []
