"""`python -m keyhole.local.kafka_container`: the image's Kafka, configured by KEYHOLE_KAFKA_* (docs/configuration.md).

It becomes the broker (same process id), so that signals and the exit code are Kafka's own. `--check` is the image's
health command: whether a broker in the same container answers requests.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

from keyhole.config import KafkaConfig, load
from keyhole.errors import InvalidConfiguration, KeyholeError, MachineError
from keyhole.local.java import find_java
from keyhole.local.kafka_node import EXPIRED, SESSION_SECONDS, STARTED, KafkaNode, Listener

_CONTROLLER_PORT, _ITSELF_PORT = 9093, 9095
_CONTROLLER = f"127.0.0.1:{_CONTROLLER_PORT}"
_CHECK_SECONDS = 5
# A pod may have a tenth of a core, where Java needs a minute for what it does in two seconds elsewhere.
_JAVA_SECONDS = 300
# ApiVersions, version 0, correlation id 1, no client id: what every broker answers to anyone.
_ASK = struct.pack(">ihhih", 10, 18, 0, 1, -1)


def main(arguments: list[str], environ: Mapping[str, str]) -> int:
    """Returns the process's exit code; where the broker starts, it doesn't return."""
    try:
        config = load(KafkaConfig, environ)
        if arguments == ["--check"]:
            return 0 if answers(config.port) else 1
        node = prepare(config, environ)
    except KeyholeError as error:
        print(f"kafka: {error.message}", file=sys.stderr)  # noqa: T201 - for a person
        return 1
    return os.execv(node.command[0], node.command)  # noqa: S606 - an argument list of our own


def listeners(config: KafkaConfig, hostname: str) -> list[Listener]:
    """The listeners of the broker itself, the clients beside it, and those outside of its network, if there are any.

    The end of a transaction is a message of the broker to itself. Were it sent to the address that clients get, no
    reader would see what is committed while that leads nowhere: as a Service's may for a while, when its pod is new.
    """
    itself = Listener("ITSELF", "127.0.0.1", _ITSELF_PORT, f"127.0.0.1:{_ITSELF_PORT}")
    inside = Listener("PLAINTEXT", "", config.port, config.advertise or f"{hostname}:{config.port}")
    outside = [Listener("OUTSIDE", "", config.outside_port, config.outside)] if config.outside else []
    return [itself, inside, *outside]


def prepare(config: KafkaConfig, environ: Mapping[str, str]) -> KafkaNode:
    """Settings and storage are as the broker needs them when this returns.

    Raises:
        InvalidConfiguration: A broker setting that isn't key=value, or a port that is taken by the broker itself.
        MachineError, JavaMissing: The directory can't be written, or Java does not do what it should.
    """
    jars = sorted(config.jars.glob("*.jar"))
    if not jars:
        raise MachineError(f"there are no jars in {config.jars}; KEYHOLE_KAFKA_JARS must lead to Kafka's")
    settings = _settings(config.settings)
    _check_ports(config)
    node = KafkaNode(config.directory, find_java(environ).executable, jars, config.heap_megabytes, settings)
    try:
        node.configure(listeners(config, socket.gethostname()), _CONTROLLER)
    except OSError as error:
        raise MachineError(
            f"{config.directory} can't be written by user {os.getuid()} ({error.strerror}): give it a volume of its own"
        ) from error
    if not node.formatted:
        _format(node)
    elif node.ended_badly:
        _expire_session(node)
    return node


def answers(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a broker answers requests there. Blocks for at most five seconds."""
    try:
        with socket.create_connection((host, port), timeout=_CHECK_SECONDS) as connection:
            connection.sendall(_ASK)
            # Size, correlation id, error code.
            head = connection.recv(10, socket.MSG_WAITALL)
    except OSError:
        return False
    return len(head) == 10 and struct.unpack(">iih", head)[1:] == (1, 0)


def _settings(given: tuple[str, ...]) -> dict[str, str]:
    wrong = [one for one in given if "=" not in one]
    if wrong:
        raise InvalidConfiguration(
            f"KEYHOLE_KAFKA_SETTINGS has {wrong[0]!r}; it must be key=value, or several separated by commas"
        )
    return {key.strip(): value.strip() for key, _, value in (one.partition("=") for one in given)}


def _check_ports(config: KafkaConfig) -> None:
    taken = {_CONTROLLER_PORT: "its controller's", _ITSELF_PORT: "what it speaks to itself by"}
    wanted = {"PORT": config.port} | ({"OUTSIDE_PORT": config.outside_port} if config.outside else {})
    for name, port in wanted.items():
        if port in taken:
            raise InvalidConfiguration(f"KEYHOLE_KAFKA_{name} is {port}, which is {taken[port]}; choose another one")
        taken[port] = "KEYHOLE_KAFKA_PORT"


def _format(node: KafkaNode) -> None:
    done = subprocess.run(node.format_command, stdin=subprocess.DEVNULL, timeout=_JAVA_SECONDS, check=False)
    if done.returncode != 0:
        raise MachineError("Kafka's storage can't be formatted; what it printed stands before this")


def _expire_session(node: KafkaNode) -> None:
    """Runs the controller alone until it has noticed that the broker was killed: see KafkaNode.controller_command."""
    with subprocess.Popen(node.controller_command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as controller:
        try:
            seen = _ChildOutput(controller)
            if not seen.until(lambda text: STARTED in text, _JAVA_SECONDS):
                raise MachineError("Kafka's controller did not start; what it printed stands before this")
            seen.until(lambda text: EXPIRED in text, 2 * SESSION_SECONDS)
        finally:
            controller.terminate()
            try:
                controller.communicate(timeout=_JAVA_SECONDS)
            except subprocess.TimeoutExpired:
                controller.kill()


class _ChildOutput:
    """What a child prints, passed on to our own standard output."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None
        self._pipe = child.stdout.fileno()
        self._text = ""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._pipe, selectors.EVENT_READ)

    def until(self, reached: Callable[[str], bool], seconds: float) -> bool:
        """Whether it came to that within the time."""
        deadline = time.monotonic() + seconds
        while not reached(self._text):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if self._selector.select(left):
                data = os.read(self._pipe, 1 << 16)
                if not data:
                    return False
                sys.stdout.buffer.write(data)
                sys.stdout.flush()
                self._text += data.decode(errors="replace")
        return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
