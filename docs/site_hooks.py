"""What makes a site of the pages as they are: hooks of MkDocs, which mkdocs.yml names.

The pages stay as a code host shows them. README.md is the first one; CONTRIBUTING.md, CHANGELOG.md and the READMEs of
services, jobs, tests and the chart are pages, too. A link to a file that is no page becomes that file's path.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import io
import logging
import os
import posixpath
import re
import tarfile
import urllib.request
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from pymdownx.slugs import slugify

ROOT = Path(__file__).resolve().parents[1]
_log = logging.getLogger("mkdocs.hooks.keyhole")

# What draws the Mermaid pictures: a part of the site, as no page asks another host for anything.
_MERMAID = "https://registry.npmjs.org/mermaid/-/mermaid-11.12.0.tgz"
_MERMAID_SHA512 = "ZudVx73BwrMJfCFmSSJT84y6u5brEoV8DOItdHomNLz32uBjNrelm7mg95X7g+C6UoQH/W6mBLGDEDv73JdxBg=="
_MERMAID_URI = "assets/javascripts/mermaid.min.js"

_OUTSIDE = ("*.md", "charts/*/README.md", "jobs/*/README.md", "services/*/README.md", "tests/*/*.md", "vectors/*.md")
# On file systems without case the release notes and the page of the changelog would be one.
_NAMES = {"README.md": "index.md", "CHANGELOG.md": "releases.md"}
_FENCE = re.compile(r"(^ *(```+).*?^ *\2 *$)", re.MULTILINE | re.DOTALL)
_SIGN = re.compile(r" *(```+)")
_ITEM = re.compile(r" *(?:[-*]|\d+\.) +")
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_PURPOSE = re.compile(r"^(Tutorial|How-to|Reference|Explanation)[^,\n]*, for (\w+)", re.MULTILINE)
_ELSEWHERE = re.compile(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"?(?:https?:)?//[^>]*>")
_SECTIONS = ("First steps", "How to", "Reference", "Explanation", "The example jobs", "Changing it", "Decisions")


def pages() -> dict[str, str]:
    """By its path from the root, the place of each page in the site."""
    inside = {path: path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    outside = {path: path.relative_to(ROOT) for pattern in _OUTSIDE for path in ROOT.glob(pattern)}
    found = {path.relative_to(ROOT).as_posix(): place.as_posix() for path, place in (inside | outside).items()}
    return {path: _NAMES.get(path, place) for path, place in found.items()}


def navigation() -> list[dict[str, Any]]:
    """The pages by purpose: in the order in which README's table of what to read on has them, then by title."""
    readme = (ROOT / "README.md").read_text()
    place = {
        path: number for number, path in enumerate(re.findall(r"\]\((docs/[^)#]+)", readme[readme.rfind("\n## ") :]))
    }
    sections: dict[str, list[dict[str, str]]] = {name: [] for name in _SECTIONS}
    texts = {path: (ROOT / path).read_text() for path in pages()}
    titles = {path: text.partition("\n")[0].removeprefix("# ").strip() for path, text in texts.items()}
    for path in sorted(texts, key=lambda path: (place.get(path, len(place)), titles[path].lower())):
        if path not in _NAMES:
            sections[_section(path, texts[path])].append({titles[path]: pages()[path]})
    first = [{"Keyhole": pages()["README.md"]}]
    return [*first, *({name: of} for name, of in sections.items() if of), {"Releases": pages()["CHANGELOG.md"]}]


def _section(path: str, text: str) -> str:
    folder = path.split("/")[0]
    if path.startswith("docs/adr/"):
        return "Decisions"
    if folder in ("jobs", "services", "tests", "vectors", "CONTRIBUTING.md") or path.startswith("docs/benchmarks/"):
        return "The example jobs" if folder == "jobs" else "Changing it"
    purpose = _PURPOSE.search(text)
    assert purpose is not None, f"{path} doesn't say what it is, and for whom"
    if purpose[1] == "Tutorial" or (purpose[1] == "How-to" and purpose[2] == "newcomers"):
        return "First steps"
    return "How to" if purpose[1] == "How-to" else purpose[1]


def on_config(config: Any) -> Any:
    """Headings get the anchors that a code host gives them."""
    config.nav = navigation()
    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify(case="lower")
    return config


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that are not in docs/, and what draws the pictures."""
    for path, place in pages().items():
        if files.get_file_from_path(place) is None:
            files.append(File.generated(config, place, abs_src_path=str(ROOT / path)))
    if (script := _mermaid()) is not None:
        files.append(File.generated(config, _MERMAID_URI, content=script))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """The page as MkDocs reads it."""
    path = next(path for path, place in pages().items() if place == page.file.src_uri)
    # Each third piece is the sign that begins a fence.
    parts = _FENCE.split(_listed(markdown))
    return "".join(
        part if number % 3 else _LINK.sub(lambda link: _link(link, path), part)
        for number, part in enumerate(parts)
        if number % 3 != 2
    )


def _listed(markdown: str) -> str:
    """Lists as Python's Markdown wants them: a line before, and what belongs to an item four columns further in."""
    lines: list[str] = []
    begins: list[int] = []  # of the items around, the column at which their text begins
    fence = ""
    for line in markdown.splitlines():
        column = len(line) - len(line.lstrip())
        item = None if fence else _ITEM.match(line)
        while begins and line.strip() and column < begins[-1] and not fence:
            begins.pop()
        if item and not begins and lines and lines[-1].strip() and not _ITEM.match(lines[-1]) and column == 0:
            lines.append("")
        depth = len(begins)
        lines.append(" " * 4 * depth + line[begins[-1] :] if begins else line)
        if item:
            begins.append(item.end())
        if found := _SIGN.match(line):
            fence = "" if fence and found[1].startswith(fence) else fence or found[1]
    return "\n".join(lines) + "\n"


def _link(link: re.Match[str], path: str) -> str:
    picture, text, target = link.groups()
    file, _, anchor = target.partition("#")
    if "://" in target or not file:
        return link[0]
    wanted = posixpath.normpath(posixpath.join(posixpath.dirname(path), file))
    places = pages()
    place = places.get(wanted) or places.get(f"{wanted}/README.md")
    if picture or (wanted.startswith("docs/") and place is None and (ROOT / wanted).is_file()):
        place = wanted.removeprefix("docs/")
    if place is None:
        return text if wanted.split("/")[-1] in text else f"{text} (`{wanted}`)"
    beside = posixpath.relpath(place, posixpath.dirname(places[path]) or ".")
    return f"{picture}[{text}]({beside}{'#' + anchor if anchor else ''})"


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Adds what draws pictures where there are any. A page that asks another host for something is a warning."""
    if 'class="mermaid"' in output and _mermaid() is not None:
        script = posixpath.relpath(_MERMAID_URI, posixpath.dirname(page.file.dest_uri) or ".")
        output = output.replace("</head>", f'<script defer src="{script}"></script></head>', 1)
    for found in _ELSEWHERE.findall(output):
        _log.warning("%s asks another host: %s", page.file.src_uri, found)
    return output


_fetched: list[str | None] = []


def _mermaid() -> str | None:
    """Fetched once per machine. None: it can't be had, and the pictures stay text."""
    if not _fetched:
        _fetched.append(_cached_mermaid())
    return _fetched[0]


def _cached_mermaid() -> str | None:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "keyhole" / _MERMAID.rpartition("/")[2]
    if not cache.exists():
        try:
            with urllib.request.urlopen(_MERMAID, timeout=60) as answer:
                packed = answer.read()
            cache.parent.mkdir(parents=True, exist_ok=True)
            cache.write_bytes(packed)
        # A reply that breaks off, or is none, is an HTTPException; a connection that does an OSError, as is URLError.
        except (OSError, http.client.HTTPException) as error:
            _log.info("the pictures stay text: %s can't be had (%s)", _MERMAID, error)
            return None
    packed = cache.read_bytes()
    if base64.b64encode(hashlib.sha512(packed).digest()).decode() != _MERMAID_SHA512:
        cache.unlink()
        raise RuntimeError(f"{_MERMAID} is not the file that was pinned; build again")
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        script = archive.extractfile("package/dist/mermaid.min.js")
        assert script is not None
        return script.read().decode()
