"""The page of the gRPC API is what the generator makes of the protos, and has all that is in them."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.descriptor import Descriptor, FileDescriptor

from keyhole.v1 import (
    arrow_filter_pb2,
    error_pb2,
    predicate_pb2,
    query_pb2,
    state_pb2,
    state_server_pb2,
    stats_pb2,
)

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "grpc.md").read_text()
MODULES = (arrow_filter_pb2, error_pb2, predicate_pb2, query_pb2, state_pb2, state_server_pb2, stats_pb2)


def test_it_is_current() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "grpc_page.py"))["page"]()
    assert page == PAGE, "run `uv run python docs/generate.py`"


def _of_messages(messages: list[Descriptor], of: str = "") -> Iterator[tuple[str, set[str]]]:
    for message in messages:
        if not message.GetOptions().map_entry:
            yield f"{of}{message.name}", {field.name for field in message.fields}
            yield from _of_messages(list(message.nested_types), f"{of}{message.name}.")


def _named(file: FileDescriptor) -> Iterator[tuple[str, set[str]]]:
    """The names that stand below each heading."""
    for service in file.services_by_name.values():
        yield service.name, {call.name for call in service.methods}
    for enum in file.enum_types_by_name.values():
        yield enum.name, {value.name for value in enum.values}
    yield from _of_messages(list(file.message_types_by_name.values()))


def test_each_service_call_message_and_field_is_there() -> None:
    files = [module.DESCRIPTOR for module in MODULES]
    assert {file.name for file in files} == {
        f"keyhole/v1/{path.name}" for path in ROOT.glob("protos/keyhole/v1/*.proto")
    }
    shown = {
        heading: set(re.findall(r"^\| `([^`]+)`", text, re.MULTILINE))
        for heading, text in re.findall(r"^##+ (.*)\n((?:(?!##).*\n)*)", PAGE, re.MULTILINE)
    }
    assert {name: shown.get(name) for file in files for name, _ in _named(file)} == dict(
        pair for file in files for pair in _named(file)
    )


def test_comments_of_each_kind_are_there() -> None:
    assert "\n## Query\n\nReads. The client proxy and every state server answer it;" in PAGE
    assert "or all keys of one key group. All as of one epoch: pages of one answer. |" in PAGE
    assert "\n### Key\n\nOne part per key column" in PAGE
    assert "| `integer` | one of `value`: `sint64` | 4 | smallint, int, bigint |" in PAGE
    assert "\n\nIt isn't there now: sending it again, within the deadline, can help.\n\n" in PAGE
