"""How protoc is run: what it does not take is refused with the reason, and neither a schema nor its run does harm."""

from __future__ import annotations

import base64
import tempfile
from pathlib import Path

import pytest

from keyhole.errors import MalformedRequest
from keyhole.feed.record_encoding import RegistryAway
from keyhole.feed.registry import protoc
from keyhole.feed.registry.protobuf import ProtobufSchema

GOOD = 'syntax = "proto3"; message A {}'


def test_files_stand_behind_those_that_they_import_and_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    text = 'syntax = "proto3"; import "b/c.proto"; import "google/protobuf/any.proto"; message A { b.C c = 1; }'
    others = [("b/c.proto", 'syntax = "proto3"; package b; message C {}'), ("unused.proto", "no schema")]
    names = [file.name for file in protoc.compiled(text, others)]
    assert sorted(names[:-1]) == ["b/c.proto", "google/protobuf/any.proto"]
    assert not list(tmp_path.iterdir())


def test_descriptors_in_base64_stand_for_texts() -> None:
    """So Confluent's client in Python registers them, and some registries hand them out as they are."""

    def registered(text: str, *references: tuple[str, str]) -> str:
        return base64.b64encode(protoc.compiled(text, references)[-1].SerializeToString()).decode()

    inner = ("b/c.proto", 'syntax = "proto3"; package b; message C { int32 x = 1; }')
    outer = 'syntax = "proto3"; import "b/c.proto"; message A { b.C c = 1; }'
    described = ("b/c.proto", registered(inner[1]))
    for text in (outer, registered(outer, inner)):
        for reference in (inner, described):
            assert ProtobufSchema(text, [reference]).whole(b"\0\x0a\x02\x08\x05", 0, "it") == {"c": {"x": 5}}
    with pytest.raises(MalformedRequest, match=r"protoc does not take it: b/c\.proto: File not found"):
        protoc.compiled(registered(outer, inner))


DEEP = 'syntax = "proto3"; message A ' + "{ message A " * 5_000 + "{}" + "}" * 5_000
# Each field is known by its whole name, with all that is before it.
LARGE = (
    f'syntax = "proto3"; message {"P" * 60_000} {{ message A {{ '
    + " ".join(f"A a{at} = {at};" for at in range(1, 15_000))
    + " } }"
)


@pytest.mark.parametrize(
    ("text", "references", "says"),
    [
        ("no schema", [], r"protoc does not take it: 1:1: Expected"),
        ("", [], "it has no message"),
        ('syntax = "proto3"; import "gone.proto"; message A {}', [], r"gone\.proto"),
        ('syntax = "proto3"; message A { B b = 1; }', [], '"B" is not defined'),
        ("AAAA", [], "protoc does not take it"),
        ("CgEvEgEv", [], "protoc does not take it"),
        (GOOD, [("../outside.proto", "")], "no path within a directory"),
        (GOOD, [("/outside.proto", "")], "no path within a directory"),
        (GOOD, [("a//b.proto", "")], "no path of a file"),
        (GOOD, [("a\0b", "")], "no path of a file"),
        (GOOD, [("", "")], "no path of a file|no path within"),
        (GOOD, [("a" * 300, "")], "no path within a directory"),
        (GOOD, [("a", ""), ("a/b", "")], "a file within what is a file itself"),
        (GOOD, [("a/b", ""), ("a", "")], "a file within what is a file itself"),
        (f"{GOOD} // \ud800", [], "no Unicode"),
        (GOOD + " " * (1 << 20), [], "more than 1,048,576 characters"),
        (DEEP, [], "protoc does not take it"),
        (LARGE, [], "too much memory or time|makes more of it than is taken"),
    ],
    ids=lambda given: repr(given)[:40],
)
def test_schemas_that_can_t_be_read_are_refused_with_the_reason(
    text: str, references: list[tuple[str, str]], says: str
) -> None:
    with pytest.raises(MalformedRequest, match=says) as caught:
        ProtobufSchema(text, references).whole(b"\0", 0, "it")
    assert len(caught.value.message) < 400


def test_where_protoc_can_t_be_run_nothing_is_said_of_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as changed:
        changed.setattr(tempfile, "tempdir", "/nowhere")
        with pytest.raises(RegistryAway, match="protoc can't be run here now"):
            protoc.compiled(GOOD)
    with monkeypatch.context() as changed:
        changed.setattr(protoc, "_CHILD", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
        with pytest.raises(RegistryAway, match="protoc was ended"):
            protoc.compiled(GOOD)
    with monkeypatch.context() as changed:
        changed.setattr(protoc, "_CHILD", "import threading; threading.Event().wait()")
        changed.setattr(protoc, "_SECONDS", 0.5)
        with pytest.raises(RegistryAway, match="has not read the schema within"):
            protoc.compiled(GOOD)
    assert protoc.compiled(GOOD)
