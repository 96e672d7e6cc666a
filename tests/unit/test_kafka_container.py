"""What the image's Kafka makes of its configuration, before any Java runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from keyhole.config import KafkaConfig, load
from keyhole.errors import InvalidConfiguration, JavaMissing, MachineError
from keyhole.local.kafka_container import answers, listeners, main, prepare
from keyhole.local.kafka_node import KafkaNode
from keyhole.local.ports import free_ports


def configured(tmp_path: Path, **settings: str) -> KafkaConfig:
    (tmp_path / "libs").mkdir()
    (tmp_path / "libs" / "kafka.jar").touch()
    environ = {"DIRECTORY": str(tmp_path / "data"), "JARS": str(tmp_path / "libs"), **settings}
    return load(KafkaConfig, {f"KEYHOLE_KAFKA_{name.upper()}": value for name, value in environ.items()})


def test_clients_beside_it_come_back_to_the_machines_name_or_to_what_is_advertised(tmp_path: Path) -> None:
    assert [of.advertised for of in listeners(configured(tmp_path), "pod-0")] == ["127.0.0.1:9095", "pod-0:9092"]
    (_, inside) = listeners(load(KafkaConfig, {"KEYHOLE_KAFKA_ADVERTISE": "kafka:9092"}), "pod-0")
    assert inside.advertised == "kafka:9092"


def test_clients_outside_of_its_network_have_a_listener_of_their_own(tmp_path: Path) -> None:
    node = KafkaNode(tmp_path, Path("java"), [], 256, {"num.io.threads": "2"})
    node.configure(listeners(load(KafkaConfig, {"KEYHOLE_KAFKA_OUTSIDE": "127.0.0.1:1234"}), "pod-0"), "127.0.0.1:9093")
    written = dict(line.split("=", 1) for line in (tmp_path / "server.properties").read_text().splitlines())
    assert written["listeners"] == (
        "ITSELF://127.0.0.1:9095,PLAINTEXT://:9092,OUTSIDE://:9094,CONTROLLER://127.0.0.1:9093"
    )
    assert written["advertised.listeners"] == (
        "ITSELF://127.0.0.1:9095,PLAINTEXT://pod-0:9092,OUTSIDE://127.0.0.1:1234"
    )
    assert written["inter.broker.listener.name"] == "ITSELF"
    assert written["num.io.threads"] == "2"
    assert written["log.dirs"] == str(tmp_path / "data")


def test_a_broker_setting_that_is_no_pair_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="has 'retention'; it must be key=value"):
        prepare(configured(tmp_path, settings="num.io.threads=2,retention"), os.environ)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"port": "9093"}, "KEYHOLE_KAFKA_PORT is 9093, which is its controller's"),
        (
            {"outside_port": "9095", "outside": "kafka:1"},
            "KEYHOLE_KAFKA_OUTSIDE_PORT is 9095, which is what it speaks to itself by",
        ),
        ({"port": "9094", "outside": "kafka:1"}, "KEYHOLE_KAFKA_OUTSIDE_PORT is 9094, which is KEYHOLE_KAFKA_PORT"),
    ],
)
def test_a_port_that_the_broker_has_taken_itself_is_named(tmp_path: Path, settings: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidConfiguration, match=named):
        prepare(configured(tmp_path, **settings), os.environ)


def test_a_folder_without_jars_is_named(tmp_path: Path) -> None:
    config = load(KafkaConfig, {"KEYHOLE_KAFKA_JARS": str(tmp_path)})
    with pytest.raises(MachineError, match="there are no jars in"):
        prepare(config, os.environ)


def test_a_machine_without_java_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(JavaMissing, match="no Java was found"):
        prepare(configured(tmp_path), {"PATH": str(tmp_path)})


def test_the_check_fails_where_nobody_listens() -> None:
    (port,) = free_ports(1)
    assert not answers(port)
    assert main(["--check"], {"KEYHOLE_KAFKA_PORT": str(port)}) == 1


def test_a_wrong_setting_ends_it_with_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([], {"KEYHOLE_KAFKA_PROT": "1"}) == 1
    assert "unknown setting KEYHOLE_KAFKA_PROT" in capsys.readouterr().err
