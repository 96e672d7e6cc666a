"""Runs protoc: from the texts of a Protobuf schema to descriptors. Whatever the texts are, it ends, and within bounds.

    'syntax = "proto3"; message Order { string customer = 1; }'    ->  its FileDescriptorProto, behind those it imports

A process of its own reads the texts, in a temporary directory of its own. It gets no more than a megabyte of them, and
is limited in memory, time and what it may write. So neither a schema that is wrong nor one that is meant to do harm
takes the feed with it.
"""

from __future__ import annotations

import base64
import binascii
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from keyhole.errors import MalformedRequest
from keyhole.feed.record_encoding import RegistryAway
from keyhole.temporary import temporary_directory

_MAIN = "the_schema_of_a_record.proto"
_MOST_TEXT = 1 << 20
_MOST_NAME = 200
_SECONDS = 60.0
_MOST_TOLD = 200
_OURS = ("google/protobuf/", "google/type/date.proto", "google/type/timeofday.proto", "confluent/type/decimal.proto")
"""What keyhole.feed.registry.protobuf gives a meaning to is never what a registry says that it is."""

_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_WRONG = re.compile(r"\S+\.proto:(?!.*warning: )")
_ENDED_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)

# Its limits are set by itself: between fork and exec, in a process with threads, nothing of Python may run.
_CHILD = """
import sys
try:
    import resource
    for limit, most in (("DATA", 256 << 20), ("FSIZE", 16 << 20), ("CPU", 30), ("CORE", 0)):
        try:
            resource.setrlimit(getattr(resource, "RLIMIT_" + limit), (most, most + (limit == "CPU")))
        except (ValueError, OSError):
            pass
except ImportError:
    pass
from importlib.resources import files
from grpc_tools import protoc
sys.exit(protoc.main(["protoc", "-I.", f"-I{files('grpc_tools') / '_proto'}", *sys.argv[1:]]))
"""

_KNOWN: Mapping[str, str] = MappingProxyType(
    {
        "google/type/date.proto": (
            'syntax = "proto3"; package google.type; message Date { int32 year = 1; int32 month = 2; int32 day = 3; }'
        ),
        "google/type/timeofday.proto": (
            'syntax = "proto3"; package google.type; '
            "message TimeOfDay { int32 hours = 1; int32 minutes = 2; int32 seconds = 3; int32 nanos = 4; }"
        ),
        "confluent/type/decimal.proto": (
            'syntax = "proto3"; package confluent.type; '
            "message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }"
        ),
        "confluent/types/decimal.proto": 'syntax = "proto3"; import public "confluent/type/decimal.proto";',
        "confluent/meta.proto": (
            'syntax = "proto3"; package confluent; import "google/protobuf/descriptor.proto"; '
            "message Meta { string doc = 1; map<string, string> params = 2; repeated string tags = 3; "
            "repeated Rule rules = 4; } "
            "message Rule { string name = 1; string doc = 2; string expr = 3; string sql = 4; } "
            "extend google.protobuf.FileOptions { Meta file_meta = 1088; } "
            "extend google.protobuf.MessageOptions { Meta message_meta = 1088; } "
            "extend google.protobuf.FieldOptions { Meta field_meta = 1088; } "
            "extend google.protobuf.EnumOptions { Meta enum_meta = 1088; } "
            "extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }"
        ),
    }
)
"""What schemas import that Kafka Connect made, and no registry lists among their references."""


def compiled(text: str, references: Sequence[tuple[str, str]] = ()) -> Sequence[FileDescriptorProto]:
    """The files of a schema, each behind those that it imports; its own is the last one.

    Args:
        text: Of the .proto; or its descriptor in base64, and so those of the references.
        references: Names and texts of the files that it imports. Those of google.protobuf need not be among them.

    Raises:
        MalformedRequest: protoc does not take it; the message says why.
        RegistryAway: It can't be run now, which says nothing of the schema.
    """
    texts = {**_KNOWN, **{name: found for name, found in references if not name.startswith(_OURS)}, _MAIN: text}
    if sum(map(len, texts.values())) > _MOST_TEXT:
        raise MalformedRequest(f"it and what it imports have more than {_MOST_TEXT:,} characters")
    for name in texts:
        _check_name(name)
    described = FileDescriptorSet()
    try:
        with temporary_directory(prefix="keyhole-protobuf-") as directory:
            for name, content in texts.items():
                if (descriptor := _descriptor(content)) is not None:
                    descriptor.name = name
                    described.file.append(descriptor)
                else:
                    _write(Path(directory, "in", *PurePosixPath(name).parts), content)
            Path(directory, "given").write_bytes(described.SerializeToString())
            return _run(directory)
    except OSError as error:
        raise RegistryAway(f"protoc can't be run here now ({type(error).__name__}), to read the schema") from None


def _descriptor(text: str) -> FileDescriptorProto | None:
    """The descriptor that the text is, in base64: so Confluent's client in Python registers schemas."""
    if not _BASE64.fullmatch(text):
        return None
    try:
        return FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, DecodeError):
        return None


def _check_name(name: str) -> None:
    path = PurePosixPath(name)
    if not name.isprintable() or not name.isascii() or len(name) > 4 * _MOST_NAME or str(path) != name:
        raise MalformedRequest("it imports what is no path of a file")
    if path.is_absolute() or any(part == ".." or len(part) > _MOST_NAME for part in path.parts) or not path.parts:
        raise MalformedRequest("it imports what is no path within a directory")


def _write(file: Path, content: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        raise MalformedRequest("it imports a file within what is a file itself") from None
    except UnicodeEncodeError:
        raise MalformedRequest("its text is no Unicode") from None


def _run(directory: Path) -> Sequence[FileDescriptorProto]:
    made, said = directory / "made", directory / "said"
    words = [sys.executable, "-P", "-c", _CHILD, f"--descriptor_set_in={directory / 'given'}"]
    words += ["--include_imports", f"--descriptor_set_out={made}", _MAIN]
    with said.open("wb") as errors:
        try:
            # In a session of its own: Ctrl-C is for the feed alone.
            done = subprocess.run(
                words,
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                cwd=directory / "in",
                timeout=_SECONDS,
                start_new_session=True,
            ).returncode
        except subprocess.TimeoutExpired:
            raise RegistryAway(f"protoc has not read the schema within {_SECONDS:.0f} s") from None
    if done in _ENDED_FROM_OUTSIDE:
        raise RegistryAway("protoc was ended while it read the schema")
    if done < 0:
        raise MalformedRequest("protoc needs too much memory or time for it, or does not survive it")
    if done:
        raise MalformedRequest(f"protoc does not take it: {_first_line(said)}")
    try:
        return list(FileDescriptorSet.FromString(made.read_bytes()).file)
    except DecodeError:
        raise MalformedRequest("protoc makes more of it than is taken") from None


def _first_line(said: Path) -> str:
    with said.open("rb") as errors:
        lines = errors.read(16 * _MOST_TOLD).decode(errors="replace").splitlines()
    # Beside what is wrong there are warnings, and words of its library.
    wrong = [line for line in lines if _WRONG.match(line)] or [line for line in lines if line] or ["it says nothing"]
    line = wrong[0].replace(f"{_MAIN}:", "").strip()
    return "".join(one if one.isprintable() else "?" for one in line)[:_MOST_TOLD]
