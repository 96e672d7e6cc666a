"""What a Kafka of one node (KRaft) is started with, on this machine and in the image: settings, commands, storage.

For the demo, for tests and for trying out, not for anything that must last: one copy of everything, no authentication.
"""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

STARTED = "Kafka Server started"
EXPIRED = "because its session has timed out"
DATA = "data"
"""The folder of its data, in the directory of the node."""
SESSION_SECONDS = 3
# Long: on a machine that has much else to do, one start takes a minute, and who gives up begins it again.
START_TIMEOUT_SECONDS = 180

_SETTINGS: Mapping[str, str] = {
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    # One broker: one copy. Few partitions: each costs files, and time at the first transaction.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    # The cleaner's buffer (128 MiB by default) is taken from the heap at once.
    "log.cleaner.dedupe.buffer.size": str(16 << 20),
    # A killed broker can come back when its session has ended: after 9 s by default.
    "broker.session.timeout.ms": str(SESSION_SECONDS * 1000),
    "broker.heartbeat.interval.ms": "500",
    # So that a test that asks for compaction need not wait 15 s for the cleaner to look. Each look is at all
    # partitions: two in a second took a sixth of the processor time of a broker with a thousand.
    "log.cleaner.backoff.ms": "3000",
    "log.segment.delete.delay.ms": "1000",
}

_LOG4J = """\
<Configuration status="WARN">
  <Appenders>
    <Console name="out"><PatternLayout pattern="%d{HH:mm:ss.SSS} %p %c{1}: %m%n"/></Console>
  </Appenders>
  <Loggers>
    <!-- 300 lines of settings at every start. -->
    <Logger name="org.apache.kafka.common.config.AbstractConfig" level="WARN"/>
    <Root level="INFO"><AppenderRef ref="out"/></Root>
  </Loggers>
</Configuration>
"""


@dataclass(frozen=True, slots=True)
class Listener:
    """Where clients come, and the host:port that the broker gives them to come back to. `host` empty: on all addresses.

    Attributes:
        protocol: Of Kafka's security protocols; what it needs is among the broker's settings.
    """

    name: str
    host: str
    port: int
    advertised: str
    protocol: str = "PLAINTEXT"


class KafkaNode:
    """The files and the commands of one node; runs nothing itself.

    Args:
        directory: Its data, settings and temporary files. Made by `configure`.
        java: The executable.
        jars: The broker's.
        heap_megabytes: The Java heap's maximum.
        settings: Broker settings that come before the built-in ones.
        options: Further options of its JVMs.
    """

    def __init__(
        self,
        directory: Path,
        java: Path,
        jars: Sequence[Path],
        heap_megabytes: int,
        settings: Mapping[str, str],
        options: Sequence[str] = (),
    ) -> None:
        self._directory = directory
        self._data = directory / DATA
        self._settings = settings
        self._java = java
        self._options = [
            *options,
            f"-Xmx{heap_megabytes}m",
            # Small footprint, and nothing to tune on a machine that runs everything else too.
            "-XX:+UseSerialGC",
            # What the optimising compiler takes is won back after some 500 epochs, and most of these brokers live for
            # fewer (measured: benchmarks.broker).
            "-XX:TieredStopAtLevel=1",
            # What it unpacks goes with its directory, even after a SIGKILL.
            f"-Djava.io.tmpdir={directory}",
            "-XX:-UsePerfData",
            f"-Dlog4j2.configurationFile={directory / 'log4j2.xml'}",
            "-cp",
            ":".join(map(str, jars)),
        ]

    def configure(self, listeners: Sequence[Listener], controller: str) -> None:
        """Writes its settings: as broker and controller, and as a controller alone (at host:port `controller`).

        Args:
            listeners: By the first one the broker speaks to itself.
        """
        listener = f"CONTROLLER://{controller}"
        settings = {
            **_SETTINGS,
            "controller.quorum.voters": f"1@{controller}",
            "log.dirs": str(self._data),
            **self._settings,
        }
        both = {
            "process.roles": "broker,controller",
            "listeners": ",".join([*(f"{of.name}://{of.host}:{of.port}" for of in listeners), listener]),
            "advertised.listeners": ",".join(f"{of.name}://{of.advertised}" for of in listeners),
            "listener.security.protocol.map": ",".join(
                [*(f"{of.name}:{of.protocol}" for of in listeners), "CONTROLLER:PLAINTEXT"]
            ),
            "inter.broker.listener.name": listeners[0].name,
        }
        self._directory.mkdir(parents=True, exist_ok=True)
        (self._directory / "log4j2.xml").write_text(_LOG4J)
        self._write("server.properties", {**settings, **both})
        self._write("controller.properties", {**settings, "process.roles": "controller", "listeners": listener})

    @property
    def formatted(self) -> bool:
        """Whether it has been started before."""
        return (self._data / "meta.properties").exists()

    @property
    def ended_badly(self) -> bool:
        """Whether it was killed: see `controller_command`."""
        return (self._data / "__cluster_metadata-0").exists() and not (self._data / ".kafka_cleanshutdown").exists()

    @property
    def command(self) -> list[str]:
        """Broker and controller; prints STARTED."""
        return self._run("server.properties")

    @property
    def controller_command(self) -> list[str]:
        """The controller alone: after a bad end it must notice that the broker is gone before the broker comes back.

        Else the two start together, and the broker takes up its old transactions while its old session is still to
        expire. When it does, no partition has a leader for a moment, and Kafka 4.3.1 takes those for deleted: it skips
        the end of a committed transaction there, for ever. (In a cluster the controller outlives the broker.)

        It prints STARTED, then EXPIRED within twice the SESSION_SECONDS; a broker that was killed before it had
        registered has no session, and none expires.
        """
        return self._run("controller.properties")

    @property
    def format_command(self) -> list[str]:
        """Makes the storage of a new cluster."""
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        command = [str(self._java), *self._options, "kafka.tools.StorageTool", "format"]
        return [*command, "--cluster-id", f"x{cluster[1:]}", "--config", str(self._directory / "server.properties")]

    def _run(self, properties: str) -> list[str]:
        return [str(self._java), *self._options, "kafka.Kafka", str(self._directory / properties)]

    def _write(self, name: str, settings: Mapping[str, str]) -> None:
        text = "".join(f"{key}={value}\n" for key, value in settings.items())
        # Java reads such files as Latin-1. JSON has the same escapes for what is not ASCII.
        text = re.sub(r"[^\x00-\x7f]", lambda found: json.dumps(found[0])[1:-1], text)
        (self._directory / name).write_text(text)
