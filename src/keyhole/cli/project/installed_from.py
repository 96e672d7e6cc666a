"""Where this Keyhole was installed from, so that a project of somebody's own can say that it needs it.

No package index has it. An installer that is given a folder, a file or a git URL records that (PEP 610).
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

DISTRIBUTION = "keyhole-spark"


@dataclass(frozen=True)
class Requirement:
    """What a project needs. `url`: where it is to be had, as a requirement has it behind `@`; empty: nobody knows."""

    url: str

    def with_extras(self, names: str) -> str:
        """The requirement with extras, as pyproject.toml has it: `names` has commas between."""
        return f"{DISTRIBUTION}[{names}]" + (f" @ {self.url}" if self.url else "")


def installed_from() -> Requirement:
    """Of the Keyhole that runs now."""
    try:
        recorded = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except metadata.PackageNotFoundError:  # its folder is on Python's path, and nobody has installed it
        recorded = None
    return Requirement(url_of(recorded))


def url_of(recorded: str | None) -> str:
    """What the installer has recorded, as a requirement takes it; empty: nothing, or a path that is gone."""
    try:
        direct = msgspec.json.decode(recorded or "{}", type=dict[str, Any])
    except msgspec.DecodeError:
        return ""
    url = direct.get("url")
    if not isinstance(url, str) or not url:
        return ""
    fragment = f"#subdirectory={direct['subdirectory']}" if direct.get("subdirectory") else ""
    if isinstance(vcs := direct.get("vcs_info"), dict):
        commit = vcs.get("commit_id") or vcs.get("requested_revision")
        return f"{vcs.get('vcs', 'git')}+{url}" + (f"@{commit}" if commit else "") + fragment
    split = urlsplit(url)
    if split.scheme == "file" and not Path(unquote(split.path)).exists():
        return ""
    return url + fragment
