"""keyhole.changelog.kafka.brokers: an address of Kafka with a file of settings, for librdkafka and for Java."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyhole.changelog.kafka.brokers import client_settings, java_settings
from keyhole.errors import InvalidConfiguration

SECRET = 'pass"w\\ord'
SCRAM = f"""
# who we are
security.protocol = sasl_ssl
sasl.mechanisms=SCRAM-SHA-512
sasl.username=keyhole
sasl.password={SECRET}
ssl.ca.location=/etc/ca.pem
"""


def address(tmp_path: Path, text: str) -> str:
    (tmp_path / "kafka.properties").write_text(text)
    return f"a:1,b:2?settings={tmp_path}/kafka.properties"


def test_an_address_alone_is_plaintext() -> None:
    assert client_settings("a:1,b:2") == java_settings("a:1,b:2") == {"bootstrap.servers": "a:1,b:2"}


def test_librdkafka_gets_the_file_as_it_is(tmp_path: Path) -> None:
    assert client_settings(address(tmp_path, SCRAM)) == {
        "bootstrap.servers": "a:1,b:2",
        "security.protocol": "sasl_ssl",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": "keyhole",
        "sasl.password": SECRET,
        "ssl.ca.location": "/etc/ca.pem",
    }


def test_java_gets_the_same_in_its_own_words(tmp_path: Path) -> None:
    assert java_settings(address(tmp_path, SCRAM)) == {
        "bootstrap.servers": "a:1,b:2",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="keyhole" password="pass\\"w\\\\ord";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/etc/ca.pem",
    }


def test_java_gets_a_clients_certificate_by_its_text(tmp_path: Path) -> None:
    for name in ("cert", "key"):
        (tmp_path / name).write_text(name.upper())
    text = f"security.protocol=ssl\nssl.certificate.location={tmp_path}/cert\nssl.key.location={tmp_path}/key\n"
    made = java_settings(address(tmp_path, text))
    assert (made["ssl.keystore.certificate.chain"], made["ssl.keystore.key"]) == ("CERT", "KEY")
    assert made["ssl.keystore.type"] == "PEM"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("group.id=x", "line 1 of .* sets group.id, which is not for this file"),
        ("\nsecurity.protocol", "line 2 of .* is not name=value"),
        ("bootstrap.servers=c:3", "sets bootstrap.servers"),
    ],
)
def test_what_is_not_for_the_file_is_refused_by_name(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidConfiguration, match=said):
        client_settings(address(tmp_path, text))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="can't be read from /nowhere/x"):
        client_settings("a:1?settings=/nowhere/x")


def test_what_java_can_not_be_told_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match=r"sasl\.oauthbearer\.config"):
        java_settings(address(tmp_path, "sasl.oauthbearer.config=x"))
    with pytest.raises(InvalidConfiguration, match=r"ssl\.certificate\.location"):
        java_settings(address(tmp_path, "ssl.certificate.location=/a/certificate/without/its/key"))
    with pytest.raises(InvalidConfiguration, match="OAUTHBEARER"):
        java_settings(address(tmp_path, "sasl.mechanism=OAUTHBEARER"))


def test_no_message_has_a_secret(tmp_path: Path) -> None:
    for text in (f"{SCRAM}\ngroup.id=x", f"{SCRAM}\nsasl.oauthbearer.config=x"):
        with pytest.raises(InvalidConfiguration) as refused:
            java_settings(address(tmp_path, text))
        assert SECRET not in str(refused.value)
