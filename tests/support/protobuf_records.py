"""Records of Protobuf in Confluent's wire format, as other libraries write them: protoc, and Google's own."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import ParseDict
from google.protobuf.message_factory import GetMessageClass
from grpc_tools import protoc

from tests.support.avro_records import number

__all__ = ["Writer", "framed", "number", "place"]


class Writer:
    """Writes messages of a schema.

    Args:
        text: Of the .proto.
        others: Texts of the files that it imports, by name.
    """

    def __init__(self, text: str, others: Mapping[str, str] | None = None) -> None:
        with tempfile.TemporaryDirectory() as directory:
            for name, content in {"main.proto": text, **(others or {})}.items():
                file = Path(directory, name)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(content)
            known = files("grpc_tools") / "_proto"
            made = Path(directory, "made")
            words = ["protoc", f"-I{directory}", f"-I{known}", "--include_imports", f"--descriptor_set_out={made}"]
            assert protoc.main([*words, "main.proto"]) == 0
            found = FileDescriptorSet.FromString(made.read_bytes())
        self._pool = DescriptorPool()
        for file_found in found.file:
            self._pool.Add(file_found)

    def message(self, name: str, row: Mapping[str, Any]) -> bytes:
        """A message of the type of this full name, from what Protobuf's own JSON has."""
        message = GetMessageClass(self._pool.FindMessageTypeByName(name))()
        ParseDict(dict(row), message)
        made: bytes = message.SerializePartialToString()
        return made


def place(*indexes: int) -> bytes:
    """Which type of its schema a record has; of the first one it is a zero."""
    return number(len(indexes)) + b"".join(map(number, indexes)) if indexes else number(0)


def framed(schema: int, message: bytes, *indexes: int) -> bytes:
    """A record of the schema that a registry knows under this number."""
    return b"\0" + schema.to_bytes(4, "big") + place(*indexes) + message
