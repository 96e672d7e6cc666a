"""`import keyhole` is light, and shows the client all the same."""

from __future__ import annotations

import subprocess
import sys

import pytest

import keyhole
import keyhole.feed


def test_importing_keyhole_loads_neither_grpc_nor_protobuf() -> None:
    code = "import sys, keyhole; print(sorted({'grpc', 'google.protobuf', 'keyhole.client'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.strip() == "[]"


def test_importing_keyhole_feed_loads_no_client_of_kafka_and_shows_the_producer_all_the_same() -> None:
    code = "import sys, keyhole.feed as feed; print('confluent_kafka' in sys.modules, feed.Producer.__module__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.split() == ["False", "keyhole.feed.producer"]
    assert [getattr(keyhole.feed, name).__name__ for name in keyhole.feed.__all__] == keyhole.feed.__all__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = keyhole.feed.nothing


def test_the_client_can_be_had_where_processes_do_not_fork() -> None:
    code = "import os; del os.fork, os.register_at_fork; import keyhole; print(keyhole.Client.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.strip() == "Client"


@pytest.mark.parametrize("name", keyhole.__all__)
def test_everything_that_is_named_is_there(name: str) -> None:
    assert getattr(keyhole, name).__name__.rpartition(".")[2] == name  # one is a module
    assert name in dir(keyhole)


def test_what_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = keyhole.nothing
