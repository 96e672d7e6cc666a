"""A Kafka that takes only who has a password, over TLS."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from keyhole.local.java import Java
from keyhole.local.kafka import LocalKafka
from keyhole.local.kafka_node import Listener
from keyhole.local.ports import free_ports
from tests.support.certificates import Authority

_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


@contextmanager
def secured_kafka(directory: Path, jars: Sequence[Path], java: Java, password: str) -> Iterator[str]:
    """Its address, with the file of settings that opens it: `kafka.properties` in the directory, which is its own."""
    directory.mkdir(exist_ok=True)
    issued = Authority(directory).issue("kafka", "127.0.0.1")
    both = directory / "kafka.pem"
    both.write_text(Path(issued.key).read_text() + Path(issued.certificate).read_text())
    (port,) = free_ports(1)
    of = "listener.name.secured"
    settings = {
        "sasl.enabled.mechanisms": "PLAIN",
        f"{of}.sasl.enabled.mechanisms": "PLAIN",
        f"{of}.plain.sasl.jaas.config": f'{_PLAIN} required user_keyhole="{password}";',
        f"{of}.ssl.keystore.type": "PEM",
        f"{of}.ssl.keystore.location": str(both),
    }
    file = directory / "kafka.properties"
    file.write_text(
        f"security.protocol=sasl_ssl\nsasl.mechanism=PLAIN\nsasl.username=keyhole\nsasl.password={password}\n"
        f"ssl.ca.location={issued.authority}\n"
    )
    listener = Listener("SECURED", "127.0.0.1", port, f"127.0.0.1:{port}", "SASL_SSL")
    with LocalKafka(directory / "broker", jars, java, settings=settings, more=[listener]):
        yield f"127.0.0.1:{port}?settings={file}"
