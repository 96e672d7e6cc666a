"""Stands in for a schema registry, where there is none: in memory, and over HTTP as Confluent's documentation has it.

Of its API only what a reader asks: GET /schemas/ids/N, and GET /subjects/S/versions/V for what a schema refers to.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from keyhole.feed.record_encoding import RegistryAway
from keyhole.feed.registry.schemas import RegisteredSchema, SchemaUnknown


class StandInSource:
    """SchemaSource in memory.

    Attributes:
        away: Whether it doesn't answer.
        asked: The numbers that it was asked for, in order.
    """

    def __init__(self) -> None:
        self.schemas: dict[int, RegisteredSchema] = {}
        self.away = False
        self.asked: list[int] = []

    def add(self, number: int, schema: Any, kind: str = "AVRO") -> None:
        self.schemas[number] = RegisteredSchema(kind, json.dumps(schema))

    def schema(self, number: int) -> RegisteredSchema:
        self.asked.append(number)
        if self.away:
            raise RegistryAway("it is away")
        if number not in self.schemas:
            raise SchemaUnknown("no")
        return self.schemas[number]


class StandInRegistry:
    """The same over HTTP, on a port of its own. Close it.

    Attributes:
        schemas: By id, as the API has them.
        subjects: By subject and version.
        status: With what it answers to everything, where it is set.
        asked: The paths that it was asked for, each with the header of who asks.
    """

    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[tuple[str, str], dict[str, Any]] = {}
        self.status: int | None = None
        self.asked: list[tuple[str, str | None]] = []
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = urlsplit(self.path).path
                registry.asked.append((path, self.headers.get("Authorization")))
                status, body = registry.answer(path)
                text = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def add(self, number: int, schema: Any, **more: Any) -> None:
        self.add_text(number, json.dumps(schema), **more)

    def add_text(self, number: int, schema: str, **more: Any) -> None:
        self.schemas[number] = {"schema": schema, **more}

    def answer(self, path: str) -> tuple[int, dict[str, Any]]:
        if self.status is not None:
            return self.status, {"error_code": self.status, "message": "told so"}
        match [unquote(part) for part in path.strip("/").split("/")]:
            case ["schemas", "ids", number]:
                if (found := self.schemas.get(int(number))) is not None:
                    return 200, found
                return 404, {"error_code": 40403, "message": "Schema not found"}
            case ["subjects", subject, "versions", version]:
                if (found := self.subjects.get((subject, version))) is not None:
                    return 200, found
                return 404, {"error_code": 40401, "message": "Subject not found"}
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
