"""docs/grpc.md, from the files of protos/keyhole/v1: each service, call, message and field with its comment.

`uv run python docs/generate.py` writes it; tests/meta/test_grpc_page.py checks that it is current and has every name.
"""

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    ServiceDescriptorProto,
)
from grpc_tools import protoc

_PROTOS = Path(__file__).resolve().parents[1] / "protos"
# Readers' first; what is never sent last.
_FILES = ("query", "predicate", "state", "error", "stats", "state_server", "arrow_filter")
_PACKAGE = ".keyhole.v1."
# By their numbers in a descriptor.
_MESSAGES, _ENUMS, _SERVICES = 4, 5, 6
_FIELDS, _NESTED, _VALUES, _METHODS = 2, 3, 2, 2

_INTRODUCTION = """# gRPC API

Reference, for those who read states by gRPC without Keyhole's clients: every service, call, message
and field. The page is made from `protos/keyhole/v1` by `uv run python docs/generate.py`: don't edit it.

Readers need [`Query`](#query) alone, of a client proxy; [clients](clients.md) says how to call it from
other languages, and what deadlines, tokens and errors are there. `StateServer` is what our own
processes say to each other, and may change with each release. `Stats` is for the metrics exporter.

What is not set is the type's zero, which is how gRPC has it: the comments say what that means. Columns
of a key are in the order of the state's [descriptor](#statedescriptor), and [values](values.md) says
how each type is written.
"""


class _File:
    """One .proto with its comments, which are found by the path of what they stand at."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self.file = file
        self.name = file.name.rpartition("/")[2]
        self._lines = (_PROTOS / file.name).read_text().splitlines()
        self._at = {tuple(one.path): one for one in file.source_code_info.location}

    def comment(self, *path: int) -> str:
        """What stands above and behind it, as one line."""
        return " ".join(part for part in self._around(path) if part)

    def value_comments(self, *path: int) -> tuple[str, str]:
        """Of a value of an enum: what heads it and others, which stands behind an empty line; and its own."""
        above, behind = self._around(path)
        if not above:
            return "", behind
        at = self._at[path]
        before = self._lines[at.span[0] - at.leading_comments.count("\n") - 1]
        return ("", f"{above} {behind}".strip()) if before.strip() else (above, behind)

    def _around(self, path: tuple[int, ...]) -> tuple[str, str]:
        at = self._at.get(path)
        return ("", "") if at is None else (_line(at.leading_comments), _line(at.trailing_comments))

    def parts(self) -> Iterator[str]:
        for number, service in enumerate(self.file.service):
            yield from self._service(service, (_SERVICES, number))
        yield f"\n## Messages of {self.name}\n"
        for number, message in enumerate(self.file.message_type):
            yield from self._message(message, message.name, (_MESSAGES, number))
        for number, enum in enumerate(self.file.enum_type):
            yield from self._enum(enum, (_ENUMS, number))

    def _service(self, service: ServiceDescriptorProto, path: tuple[int, ...]) -> Iterator[str]:
        yield f"\n## {service.name}\n\n{self.comment(*path)}\n\n| call | request | response | |\n|---|---|---|---|\n"
        for number, call in enumerate(service.method):
            request = "stream of " * call.client_streaming + _linked(call.input_type)
            response = "stream of " * call.server_streaming + _linked(call.output_type)
            about = self.comment(*path, _METHODS, number)
            yield f"| `{call.name}` | {request} | {response} | {about} |\n"

    def _message(self, message: DescriptorProto, name: str, path: tuple[int, ...]) -> Iterator[str]:
        yield _heading(name, self.comment(*path))
        maps = {nested.name: nested for nested in message.nested_type if nested.options.map_entry}
        if message.field:
            yield "\n| field | type | number | |\n|---|---|---|---|\n"
        else:
            yield "\nHas no fields.\n"
        for number, field in enumerate(message.field):
            kind = _type(field, maps)
            if field.HasField("oneof_index") and not field.proto3_optional:
                kind = f"one of `{message.oneof_decl[field.oneof_index].name}`: {kind}"
            about = self.comment(*path, _FIELDS, number)
            yield f"| `{field.name}` | {kind} | {field.number} | {about} |\n"
        for number, nested in enumerate(message.nested_type):
            if nested.name not in maps:
                yield from self._message(nested, f"{name}.{nested.name}", (*path, _NESTED, number))

    def _enum(self, enum: EnumDescriptorProto, path: tuple[int, ...]) -> Iterator[str]:
        yield _heading(enum.name, self.comment(*path))
        head = "\n| value | number | |\n|---|---|---|\n"
        for number, value in enumerate(enum.value):
            of_group, own = self.value_comments(*path, _VALUES, number)
            if of_group or not number:
                yield f"\n{of_group}\n{head}" if of_group else head
            yield f"| `{value.name}` | {value.number} | {own} |\n"


def page() -> str:
    """docs/grpc.md as Markdown: what readers need first, by file."""
    with tempfile.TemporaryDirectory() as directory:
        made = Path(directory) / "descriptors"
        protos = [str(_PROTOS / "keyhole" / "v1" / f"{name}.proto") for name in _FILES]
        words = ["protoc", f"-I{_PROTOS}", "--include_source_info", f"--descriptor_set_out={made}", *protos]
        if protoc.main(words) != 0:
            raise SystemExit("protoc failed: see above")
        found = descriptor_pb2.FileDescriptorSet.FromString(made.read_bytes())
    files = {file.name: _File(file) for file in found.file}
    return _INTRODUCTION + "".join(part for name in _FILES for part in files[f"keyhole/v1/{name}.proto"].parts())


def _heading(name: str, about: str) -> str:
    return f"\n### {name}\n" + (f"\n{about}\n" if about else "")


def _type(field: FieldDescriptorProto, maps: dict[str, DescriptorProto]) -> str:
    entry = maps.get(field.type_name.rpartition(".")[2])
    if entry is not None:
        of, to = (_type(one, {}) for one in entry.field)
        return f"map of {of} to {to}"
    named = (
        _linked(field.type_name) if field.type_name else f"`{FieldDescriptorProto.Type.Name(field.type)[5:].lower()}`"
    )
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"repeated {named}"
    return f"optional {named}" if field.proto3_optional else named


def _linked(type_name: str) -> str:
    """A message or an enum, with the link to its heading."""
    name = type_name.removeprefix(_PACKAGE)
    return f"[`{name}`](#{name.replace('.', '').lower()})"


def _line(comment: str) -> str:
    """As Markdown that stands in a cell; where it names a page it leads there."""
    text = " ".join(comment.split()).replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")
    return re.sub(r"\bdocs/([\w-]+)\.md\b", r"[\1](\1.md)", text)
