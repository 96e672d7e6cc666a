"""The images on plain Docker: what they answer, what ends them, and what brings them back."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from keyhole import Client
from keyhole.errors import KeyholeError, MachineError
from keyhole.testing.containers import KeyholeContainer, KeyholeContainers, StateServerContainer

# Of a test alone: building the images has a limit of its own.
pytestmark = pytest.mark.timeout(600, func_only=True)

STATE = "sensors"
AT = datetime(2026, 11, 21, 10, tzinfo=UTC)
PATIENCE_SECONDS = 120


def rows(count: int, celsius: float = 20.0) -> list[dict[str, Any]]:
    return [{"sensor": f"sensor-{n}", "celsius": celsius + n, "at": AT} for n in range(count)]


@pytest.fixture
def client(keyhole: KeyholeContainers) -> Iterator[Client]:
    with keyhole.client(timeout=60) as made:
        yield made


def await_(done: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    last: KeyholeError | None = None
    while time.monotonic() < until:
        try:
            if done():
                return
        except KeyholeError as error:
            last = error
        time.sleep(0.1)
    raise AssertionError(f"no {what} within {PATIENCE_SECONDS} s ({last})")


def celsius(client: Client, application: str, sensor: str, **options: Any) -> float | None:
    answer = client.get(application, STATE, sensor, **options)
    return answer.value.celsius if answer.found else None


def docker(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def await_healthy(container: KeyholeContainer, command: list[str]) -> None:
    await_(lambda: container.exec(command).exit_code == 0, f"healthy {container.alias}")


def inspected(container: KeyholeContainer) -> Any:
    return json.loads(docker("inspect", container.get_container_id()))[0]


def test_what_was_written_is_read_through_the_proxy(
    keyhole: KeyholeContainers, client: Client, application: str
) -> None:
    epoch = keyhole.write(application, STATE, rows(20), key="sensor")
    answers = client.get_many(application, STATE, [f"sensor-{n}" for n in range(21)])
    assert [answer.found and answer.value.celsius for answer in answers] == [*(20.0 + n for n in range(20)), False]
    assert answers[0].value.at == AT
    assert {answer.epoch for answer in answers} == {epoch}


def test_epochs_replace_and_delete(keyhole: KeyholeContainers, client: Client, application: str) -> None:
    first = keyhole.write(application, STATE, rows(3), key="sensor")
    second = keyhole.write(application, STATE, rows(1, 99.0), key="sensor", delete=[{"sensor": "sensor-1"}])
    assert second > first
    assert [celsius(client, application, f"sensor-{n}") for n in range(3)] == [99.0, None, 22.0]


def test_maps_and_lists_are_scanned(keyhole: KeyholeContainers, client: Client, application: str) -> None:
    hours = [{"sensor": "a", "hour": hour, "mean": float(hour)} for hour in range(5)]
    keyhole.write(application, "hourly", hours, key="sensor", map_key="hour")
    found = client.scan(application, "hourly", "a", start=1, stop=4)
    assert [(hour, value.mean) for hour, value in found] == [(1, 1.0), (2, 2.0), (3, 3.0)]
    steps = [{"sensor": "a", "step": step} for step in ("up", "down", "up")]
    keyhole.write(application, "steps", steps, key="sensor", kind="list")
    assert [value.step for value in client.scan(application, "steps", "a").values] == ["up", "down", "up"]


def test_a_second_writer_goes_on_where_the_first_one_ended(
    keyhole: KeyholeContainers, client: Client, application: str
) -> None:
    from keyhole.testing.containers import Writer

    epochs = []
    for number in range(2):
        with Writer(keyhole.config(application), STATE, key="sensor") as writer:
            epochs.append(writer.write(rows(1 + number, 10.0 * number)))
    assert epochs[1] > epochs[0]
    assert [celsius(client, application, f"sensor-{n}") for n in range(2)] == [10.0, 11.0]


def test_a_killed_state_server_restores_from_kafka(
    keyhole: KeyholeContainers, client: Client, application: str
) -> None:
    epoch = keyhole.write(application, STATE, rows(50), key="sensor")
    (server,) = keyhole.state_servers
    server.kill()
    assert server.exit_code == 137
    server.start_again()
    await_(lambda: celsius(client, application, "sensor-49") == 69.0, "answer after the restart")
    assert [celsius(client, application, f"sensor-{n}", min_epoch=epoch) for n in range(50)] == [
        20.0 + n for n in range(50)
    ]
    keyhole.write(application, STATE, rows(1, 0.0), key="sensor")
    assert celsius(client, application, "sensor-0") == 0.0


def test_a_proxy_that_was_killed_answers_again_on_its_address(
    keyhole: KeyholeContainers, client: Client, application: str
) -> None:
    keyhole.write(application, STATE, rows(1), key="sensor")
    keyhole.proxy.kill()
    with pytest.raises(KeyholeError):
        client.get(application, STATE, "sensor-0", timeout=1)
    keyhole.proxy.start_again()
    await_(lambda: celsius(client, application, "sensor-0") == 20.0, "answer of the proxy")


def test_reads_go_on_while_kafka_is_away_and_writes_when_it_is_back(
    keyhole: KeyholeContainers, client: Client, application: str
) -> None:
    keyhole.write(application, STATE, rows(1), key="sensor")
    keyhole.kafka.kill()
    assert celsius(client, application, "sensor-0") == 20.0
    keyhole.kafka.start_again()
    keyhole.write(application, STATE, rows(1, 30.0), key="sensor")
    assert celsius(client, application, "sensor-0") == 30.0


def test_each_runs_as_user_185_on_a_root_that_cannot_be_written(keyhole: KeyholeContainers) -> None:
    for container in (keyhole.kafka, *keyhole.state_servers, keyhole.proxy):
        (_, printed) = container.exec(["python", "-c", "import os; print(os.getuid(), os.getgid())"])
        assert printed.decode().split() == ["185", "185"]
        (code, printed) = container.exec(["python", "-c", "open('/opt/keyhole/x', 'w')"])
        assert code != 0
        assert "Read-only file system" in printed.decode()
        assert inspected(container)["HostConfig"]["ReadonlyRootfs"] is True


def test_no_image_holds_what_it_was_built_with_and_only_kafka_has_java(built: Mapping[str, str]) -> None:
    for target, name in built.items():
        look = (
            "for tool in gcc make git uv pip pip3 java; do command -v $tool; done; find / -xdev -name '*.jar' | head -3"
        )
        found = docker("run", "--rm", "--user", "0", "--entrypoint", "sh", name, "-c", look).splitlines()
        tools = {path.rsplit("/", 1)[-1] for path in found if not path.endswith(".jar")}
        jars = [path for path in found if path.endswith(".jar")]
        assert tools == ({"java"} if target == "kafka" else set()), target
        assert bool(jars) == (target == "kafka"), target


def test_labels_tell_what_an_image_is(built: Mapping[str, str]) -> None:
    for name in built.values():
        labels = json.loads(docker("image", "inspect", "--format", "{{json .Config.Labels}}", name))
        assert labels["org.opencontainers.image.title"]
        assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
        assert "org.opencontainers.image.version" in labels
        assert "org.opencontainers.image.revision" in labels


def test_the_health_command_turns_healthy_unhealthy_and_healthy_again(keyhole: KeyholeContainers) -> None:
    for container in (*keyhole.state_servers, keyhole.proxy, keyhole.kafka):
        command = inspected(container)["Config"]["Healthcheck"]["Test"]
        assert command[0] == "CMD"
        await_healthy(container, command[1:])
        container_id = container.get_container_id()
        docker("kill", "--signal", "STOP", container_id)
        try:
            (code, printed) = container.exec(command[1:])
            assert code == 1, printed
        finally:
            docker("kill", "--signal", "CONT", container_id)
        await_healthy(container, command[1:])


def test_a_proxy_without_a_server_is_not_healthy_and_says_so(built: Mapping[str, str]) -> None:
    environ = ["-e", "KEYHOLE_CLIENT_PROXY_SERVERS=127.0.0.1:1", "-e", "KEYHOLE_CLIENT_PROXY_PORT=7499"]
    name = docker("run", "--detach", *environ, built["client-proxy"])
    check = ["docker", "exec", name, "python", "-m", "keyhole.rpc.health_check", "client-proxy"]
    try:
        await_(lambda: "NOT_SERVING" in subprocess.run(check, capture_output=True, text=True).stderr, "answer")
        assert subprocess.run(check, capture_output=True).returncode == 1
    finally:
        docker("rm", "--force", "--volumes", name)


def test_a_state_server_that_finds_no_kafka_ends_and_names_the_address(built: Mapping[str, str]) -> None:
    environ = {"KEYHOLE_STATE_SERVER_KAFKA_WAIT_SECONDS": "2"}
    with StateServerContainer("no-such-host.invalid:9092", built["state-server"], environ=environ) as container:
        await_(lambda: container.exit_code is not None, "end")
        assert container.exit_code == 1
        with pytest.raises(MachineError, match=r"Kafka at no-such-host\.invalid:9092 could not be reached within 2 s"):
            container.wait_until_it_serves()


def test_a_kafka_that_cannot_write_its_directory_says_so_and_ends(built: Mapping[str, str]) -> None:
    environ = ["-e", "KEYHOLE_KAFKA_DIRECTORY=/opt/kafka/data"]
    done = subprocess.run(
        ["docker", "run", "--rm", "--read-only", *environ, built["kafka"]], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "kafka: /opt/kafka/data can't be written by user 185" in done.stderr
