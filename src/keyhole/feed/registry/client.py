"""Asks a schema registry over HTTP, with Confluent's client: `http://registry:8081?settings=/etc/keyhole/registry`.

The file has settings of that client, one `name=value` a line: `basic.auth.user.info=user:password`, those of TLS
(`ssl.ca.location` and others) and of bearer tokens. A secret is in this file alone, never in an argument or a log.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError

from keyhole.changelog.kafka.brokers import settings_behind
from keyhole.errors import InvalidConfiguration
from keyhole.feed.record_encoding import RegistryAway
from keyhole.feed.registry.schemas import RegisteredSchema, SchemaUnknown

_ALLOWED = ("basic.auth.user.info", "ssl.", "bearer.auth.", "proxy")
_SECONDS = 5.0
_UNKNOWN = (40401, 40402, 40403)  # the documented codes: no such subject, version, schema
_MOST_REFERENCES = 200


class ConfluentRegistry:
    """SchemaSource (keyhole.feed.registry.schemas) over HTTP. Thread-safe.

    Args:
        url: Of the registry, or several with commas between; `?settings=FILE` behind it.

    Raises:
        InvalidConfiguration: The URL or a setting is wrong.
    """

    def __init__(self, url: str) -> None:
        self._url, settings = settings_behind(url, _ALLOWED, "the schema registry's")
        for one in self._url.split(","):
            parts = urlsplit(one.strip())
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise InvalidConfiguration("--registry takes a URL, as http://registry:8081")
            if parts.username or parts.password:
                raise InvalidConfiguration(
                    "--registry has a password in it, which others on this machine can read: write "
                    "basic.auth.user.info=USER:PASSWORD into a file, and ?settings=FILE behind the URL"
                )
        try:
            # It waits for an answer for ever by itself, and tries again meanwhile: that is the feeder's work.
            self._client = SchemaRegistryClient({**settings, "url": self._url, "timeout": _SECONDS, "max.retries": 0})
        except (ValueError, TypeError, OSError) as error:
            # Not its text: it may quote a value.
            raise InvalidConfiguration(
                f"the schema registry's client does not take its settings ({type(error).__name__}): check the file "
                "behind ?settings="
            ) from None

    def schema(self, number: int) -> RegisteredSchema:
        try:
            found = self._client.get_schema(number)
            references = self._references(found)
        except SchemaRegistryError as error:
            if error.http_status_code == 404 and error.error_code in _UNKNOWN:
                raise SchemaUnknown(f"no schema {number}") from None
            raise RegistryAway(
                f"the schema registry at {self._url} refuses, with HTTP status {error.http_status_code}"
            ) from None
        except Exception as error:  # noqa: BLE001 - whatever its HTTP library raises: it is no fault of the record's
            raise RegistryAway(f"the schema registry at {self._url} does not answer ({type(error).__name__})") from None
        return RegisteredSchema(found.schema_type or "AVRO", found.schema_str or "", references)

    def _references(self, schema: Schema) -> tuple[tuple[str, str], ...]:
        found: dict[str, str] = {}

        def follow(of: Schema) -> None:
            for reference in of.references or []:
                name, subject, version = reference.name, reference.subject, reference.version
                if name is None or subject is None or version is None or name in found:
                    continue
                if len(found) >= _MOST_REFERENCES:
                    raise SchemaUnknown("it refers to too many others")
                found[name] = ""  # on its way: schemas that refer to each other end here
                registered = self._client.get_version(subject, version, deleted=True)
                follow(registered.schema)
                text = registered.schema.schema_str or ""
                del found[name]
                found[name] = text  # behind those that it refers to

        follow(schema)
        return tuple(found.items())
