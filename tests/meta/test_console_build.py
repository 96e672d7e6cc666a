"""The console's committed pages are what was built of its committed sources; Node isn't needed to see that."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

CONSOLE = Path(__file__).resolve().parents[2] / "services" / "client_proxy" / "console"
SOURCES, BUILT = CONSOLE / "web", CONSOLE / "static"
MANIFEST = "built-from.json"
_AGAIN = "run `npm ci && npm run build` in services/client_proxy/console/web, and commit what it writes"


def _hashes(folder: Path, *left_out: str) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file() and not {*path.parts} & {*left_out})
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_the_committed_pages_are_built_of_the_committed_sources() -> None:
    manifest = json.loads((BUILT / MANIFEST).read_text())
    assert manifest["sources"] == _hashes(SOURCES, "node_modules", ".vite"), _AGAIN
    assert manifest["built"] == _hashes(BUILT, MANIFEST), _AGAIN


def test_the_pages_are_small_and_ask_nobody_else() -> None:
    assert sum(path.stat().st_size for path in BUILT.iterdir()) < 200_000
    page = (BUILT / "index.html").read_text()
    assert "//" not in page.replace("<!doctype", "")
    assert "<script>" not in page
    assert " style=" not in page


def test_the_lock_file_names_no_host() -> None:
    locked = json.loads((SOURCES / "package-lock.json").read_text())
    named = {name: package["resolved"] for name, package in locked["packages"].items() if "resolved" in package}
    assert {name: url for name, url in named.items() if not url.startswith("https://registry.npmjs.org/")} == {}
    # Without a host there is the content's hash alone.
    assert [name for name, package in locked["packages"].items() if name and "integrity" not in package] == []


def test_what_the_pages_contain_is_licensed_beside_them() -> None:
    licenses = (BUILT / "licenses.txt").read_text()
    package = json.loads((SOURCES / "package.json").read_text())
    assert [name for name, version in package["dependencies"].items() if f"== {name} {version}" not in licenses] == []
