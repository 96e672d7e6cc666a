"""How the embedded broker is started, with a script in Java's place."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyhole.errors import MachineError
from keyhole.local.java import Java
from keyhole.local.kafka import LocalKafka
from keyhole.local.kafka_node import KafkaNode, Listener


def test_it_runs_in_its_directory_whatever_that_is_called_and_can_open_every_path(tmp_path: Path) -> None:
    java, directory = tmp_path / "java", tmp_path / "Bücher, neu"
    java.write_text('#!/bin/sh\necho "LC_ALL=$LC_ALL" "$(pwd -P)"\nexit 1\n')
    java.chmod(0o755)
    with pytest.raises(MachineError):
        LocalKafka(directory, [], Java(java, 17), options=[]).start()
    assert (directory / "kafka.log").read_text() == f"LC_ALL=C.UTF-8 {directory.resolve()}\n"
    assert "log.dirs=data\n" in (directory / "server.properties").read_text()


def test_settings_are_written_as_java_reads_them(tmp_path: Path) -> None:
    node = KafkaNode(tmp_path / "Bücher", Path("java"), [], 256, {"a": "€ 😀"})
    node.configure([Listener("PLAINTEXT", "", 9092, "host:9092")], "127.0.0.1:9093")
    lines = (tmp_path / "Bücher" / "server.properties").read_bytes().splitlines()
    assert rf"log.dirs={tmp_path}/B\u00fccher/data".encode() in lines
    assert rb"a=\u20ac \ud83d\ude00" in lines
