"""Where Spark's notes on a stateful operator say that its schemas are: in the checkpoint that they lie in, or no batch
begins.

    state/<operator>/_metadata/v2/<batch>           v2, then JSON with stateStoreInfo[].stateSchemaFilePaths[]
    state/<operator>/_stateSchema/<store>/<file>    what these paths name, as URLs: file:/data/checkpoint/state/0/...

Written by Spark 4.2's OperatorStateMetadataV2, of a transformWithState. Pure.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from urllib.parse import urlsplit

_NOTES = re.compile(r"(state/\d+/)_metadata/v2/\d+")
_SCHEMAS = "_stateSchema/"
_VERSION = "v2"


def url_in_spark(path: str) -> str:
    """A folder as Spark calls it, from how fsspec does."""
    scheme = urlsplit(path).scheme
    if scheme in ("", "file", "local"):
        return "file:" + os.path.abspath(re.sub(r"^\w+:(//)?", "", path) if scheme else path)  # noqa: PTH100 - as text
    return re.sub(r"^s3:", "s3a:", path).rstrip("/")


def moving(name: str) -> Callable[[bytes, str], bytes] | None:
    """What makes of a file of this name in a checkpoint what it must be in another one; None: the same bytes."""
    notes = _NOTES.fullmatch(name)
    return None if notes is None else lambda data, checkpoint: _moved(data, notes[1], checkpoint)


def _moved(data: bytes, operator: str, checkpoint: str) -> bytes:
    version, _, text = data.decode().partition("\n")
    if version.strip() != _VERSION:
        return data
    notes = json.loads(text)
    for store in notes.get("stateStoreInfo", ()):
        paths = store.get("stateSchemaFilePaths", ())
        store["stateSchemaFilePaths"] = [_of(path, operator, checkpoint) for path in paths]
    return f"{version}\n{json.dumps(notes, separators=(',', ':'), ensure_ascii=False)}".encode()


def _of(path: str, operator: str, checkpoint: str) -> str:
    _, found, file = path.rpartition(f"/{operator}{_SCHEMAS}")
    return f"{url_in_spark(checkpoint)}/{operator}{_SCHEMAS}{file}" if found else path
