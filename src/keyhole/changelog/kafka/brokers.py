"""Which brokers, and how they are spoken to: `kafka-0:9093,kafka-1:9093?settings=/etc/keyhole/kafka.properties`.

The file has settings of librdkafka's, one `name=value` a line, `#` begins a comment: those of TLS (`security.protocol`,
`ssl.*`), of authentication (`sasl.*`) and of sockets. A secret is in this file alone, never in a setting, an argument
or a log. Without `?settings=`: plaintext, nobody is asked who they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from keyhole.errors import InvalidConfiguration

_MARK = "?settings="
_ALLOWED = ("security.protocol", "ssl.", "sasl.", "socket.", "enable.ssl.certificate.verification", "client.rack")
_PASSWORDS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_LOGIN = "org.apache.kafka.common.security"


def client_settings(bootstrap_servers: str) -> dict[str, str]:
    """The settings of a librdkafka client; `bootstrap.servers` is among them.

    Raises:
        InvalidConfiguration: The file can't be read, or has what is no setting for it; no value is in the message.
    """
    servers, settings = settings_behind(bootstrap_servers, _ALLOWED, "Kafka's")
    return {**settings, "bootstrap.servers": servers}


def settings_behind(address: str, allowed: tuple[str, ...], whose: str) -> tuple[str, dict[str, str]]:
    """An address without its `?settings=FILE`, and the settings in that file.

    Args:
        allowed: With what the name of a setting may begin.
        whose: They are, for messages.

    Raises:
        InvalidConfiguration: The file can't be read, or has what is no setting for it; no value is in the message.
    """
    bare, mark, path = address.partition(_MARK)
    return bare, _read(Path(path), allowed, whose) if mark else {}


def java_settings(bootstrap_servers: str) -> dict[str, str]:
    """The settings of Kafka's Java clients, as Spark's connector has them; `bootstrap.servers` is among them.

    Raises:
        InvalidConfiguration: As `client_settings`; or a setting has no counterpart in Java.
    """
    given = client_settings(bootstrap_servers)
    made = {"bootstrap.servers": given.pop("bootstrap.servers")}
    given = {name: value for name, value in given.items() if not name.startswith("socket.")}
    if (protocol := given.pop("security.protocol", None)) is not None:
        made["security.protocol"] = protocol.upper()
    mechanism = given.pop("sasl.mechanisms", None) or given.pop("sasl.mechanism", None)
    if mechanism is not None:
        made |= _login(mechanism, given)
    made |= _certificates(given)
    if (verification := given.pop("enable.ssl.certificate.verification", "true")) != "true":
        given["enable.ssl.certificate.verification"] = verification
    if given.pop("ssl.endpoint.identification.algorithm", "https") == "none":
        made["ssl.endpoint.identification.algorithm"] = ""
    if given:
        raise InvalidConfiguration(
            f"{', '.join(sorted(given))} of Kafka's settings can't be said to Spark's connector by Keyhole; leave it "
            "out, or read the topic in a job of your own with Spark's options"
        )
    return made


def _login(mechanism: str, given: dict[str, str]) -> Mapping[str, str]:
    if mechanism not in _PASSWORDS:
        raise InvalidConfiguration(
            f"sasl.mechanism {mechanism} can't be said to Spark's connector by Keyhole, which knows "
            f"{', '.join(_PASSWORDS)}; read the topic in a job of your own with Spark's options"
        )
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    user, password = (_quoted(given.pop(name, "")) for name in ("sasl.username", "sasl.password"))
    return {
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f"{_LOGIN}.{module} required username={user} password={password};",
    }


def _certificates(given: dict[str, str]) -> Mapping[str, str]:
    made: dict[str, str] = {}
    if (authority := given.pop("ssl.ca.location", None)) is not None:
        made |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": authority}
    if "ssl.certificate.location" in given and "ssl.key.location" in given:
        made |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": _text(Path(given.pop("ssl.certificate.location"))),
            "ssl.keystore.key": _text(Path(given.pop("ssl.key.location"))),
        }
    if (password := given.pop("ssl.key.password", None)) is not None:
        made["ssl.key.password"] = password
    return made


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _read(path: Path, allowed: tuple[str, ...], whose: str) -> dict[str, str]:
    found = {}
    for number, line in enumerate(_text(path, whose).splitlines(), 1):
        if not (line := line.strip()) or line.startswith("#"):
            continue
        name, equals, value = (part.strip() for part in line.partition("="))
        if not (name and equals):
            raise InvalidConfiguration(f"line {number} of {path} is not name=value")
        if not name.startswith(allowed):
            raise InvalidConfiguration(
                f"line {number} of {path} sets {name}, which is not for this file; it may have "
                f"{', '.join(f'{each}*' if each.endswith('.') else each for each in allowed)}"
            )
        found[name] = value
    return found


def _text(path: Path, whose: str = "Kafka's") -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise InvalidConfiguration(
            f"{whose} settings can't be read from {path}: {why}; mount the file there, or correct the path"
        ) from error
