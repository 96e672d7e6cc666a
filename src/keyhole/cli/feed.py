"""`keyhole feed APP/STATE`: a Kafka topic becomes a queryable state, each of its rows counted once."""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import msgspec
from rich.console import Console

from keyhole import logs
from keyhole.changelog.kafka.changelog import KafkaChangelog
from keyhole.changelog.settings import dead_letter_topic
from keyhole.cli.patience import beside
from keyhole.cli.wrong_usage import as_usage
from keyhole.clock import Clock, SystemClock
from keyhole.config import CallerSettings, JobConfig, load
from keyhole.coordinator.counts import JobCounts
from keyhole.coordinator.feed_run import FeedRun
from keyhole.coordinator.stats import stats_of
from keyhole.demo.progress_line import ProgressLine
from keyhole.demo.signals import StopSignals
from keyhole.discovery.parse import read as read_servers
from keyhole.errors import InvalidConfiguration, UnknownApplication, UnknownState
from keyhole.feed.column_text import column_and_value, column_name
from keyhole.feed.deleting_records import Deletions, Unordered
from keyhole.feed.feed_options import (
    FeedOptions,
    RecordFormat,
    describe,
    key_columns,
    reduced_columns,
    source_columns,
    value_columns,
)
from keyhole.feed.kafka.last_records import last_records, partitions_of
from keyhole.feed.kafka.recorded import recorded_state
from keyhole.feed.preview import check_records
from keyhole.feed.process import FeedProcess
from keyhole.feed.rates import Rates
from keyhole.feed.record_encoding import JSON, RecordEncoding, RegistryAway
from keyhole.feed.topic_feed import FeedFigures, TopicFeed
from keyhole.installing import require
from keyhole.model.state import DEFAULT_KEEP_DELETED_MS, FED_KEY_GROUPS, StateDescriptor
from keyhole.model.state_path import state_path

_BROKEN_OFF = 130
_SHOW_SECONDS = 0.5
_OURS = "keyhole."
_LONGEST_TOPIC = 249 - len(dead_letter_topic(""))
# More is refused as it is; a number of seconds may be one of which no milliseconds can be made.
_MOST_SECONDS = 1e15
_TO_SERVE = ("aiohttp", "grpc_health", "prometheus_client")
_TO_ASK_A_REGISTRY = ("authlib", "cachetools", "fastavro")
_TO_READ_PROTOBUF = ("grpc_tools",)


def feed_options(options: argparse.Namespace) -> FeedOptions:
    """What the command line says of the state and the topic's records.

    Raises:
        InvalidConfiguration: It contradicts itself; the message says what to write instead.
    """
    application, state = state_path(options.state)
    if not options.key:
        raise InvalidConfiguration("name the column by which the state is read: --key customer")
    if options.value and options.reduce:
        raise InvalidConfiguration(
            "--value keeps a key's last row, --reduce makes one of all of them: give one of the two. For a last value "
            "beside a sum, write --reduce note=last"
        )
    if RecordFormat(options.format).of_registry and not options.registry:
        raise InvalidConfiguration(
            f"--format {options.format} needs --registry http://HOST:PORT, of the schema registry"
        )
    if options.registry and not RecordFormat(options.format).of_registry:
        raise InvalidConfiguration(
            "--registry is for --format avro, debezium-avro and protobuf: give one of these, or leave it out"
        )
    if not options.value and not options.reduce:
        raise InvalidConfiguration("say what is kept of a key: --reduce amount=sum, or --value amount:double")
    if options.topic.startswith(_OURS):
        raise InvalidConfiguration(f"topic {options.topic!r} is one of Keyhole's own: name the topic that has the rows")
    if len(options.topic) > _LONGEST_TOPIC:
        raise InvalidConfiguration(
            f"topic {options.topic!r} has a name of more than {_LONGEST_TOPIC} characters: Kafka takes no topic "
            "of its dead letters then"
        )
    reducers: tuple[str, ...]
    value, reducers = value_columns(options.value), ()
    if options.reduce:
        value, reducers = reduced_columns(options.reduce)
    return FeedOptions(
        application,
        state,
        key_columns(options.key),
        value,
        reducers,
        key_columns(options.map_key),
        column_name(options.order_by or ""),
        options.max_length or 0,
        math.ceil(1000 * min(options.ttl or 0, _MOST_SECONDS)),
        options.key_groups or FED_KEY_GROUPS,
        RecordFormat(options.format),
        source_columns(options.reduce),
        tuple(map(column_name, options.index)),
        *_deletions(options),
    )


def _deletions(options: argparse.Namespace) -> tuple[int, Deletions]:
    """For how many milliseconds deletions are remembered, which rows delete, and what those without an order do."""
    for option, given in (("--keep-deleted", options.keep_deleted), ("--unordered-deletes", options.unordered_deletes)):
        if given is not None and not options.order_by:
            raise InvalidConfiguration(
                f"{option} is for --order-by COLUMN: without it a deletion counts where it stands in the topic"
            )
    keep = DEFAULT_KEEP_DELETED_MS if options.order_by else 0
    if options.keep_deleted is not None:
        keep = math.ceil(1000 * min(options.keep_deleted, _MOST_SECONDS))
    unordered = Unordered(options.unordered_deletes or (Unordered.REFUSE if keep else Unordered.DELETE))
    if options.delete_when is None:
        return keep, Deletions(unordered=unordered)
    if (said := column_and_value(options.delete_when)) is None or not said[0]:
        raise InvalidConfiguration(f"--delete-when takes COLUMN=VALUE, as gone=true, not {options.delete_when!r}")
    return keep, Deletions(*said, unordered)


def feed_config(options: argparse.Namespace, application: str) -> JobConfig:
    """Where Kafka and the servers are, and who asks: by the options, else by the environment.

    Raises:
        InvalidConfiguration: Something is wrong; the message names the variable.
    """
    given = {field.name: getattr(options, field.name) for field in dataclasses.fields(CallerSettings)}
    if given["tls"] is None and any(value for name, value in given.items() if name.startswith("tls_")):
        given["tls"] = "on"
    servers = tuple(part.strip() for part in options.servers.split(",") if part.strip()) if options.servers else None
    return load(
        JobConfig,
        os.environ,
        application=application,
        bootstrap_servers=options.bootstrap_servers,
        servers=servers,
        **given,
    )


def run(options: argparse.Namespace) -> int:
    """Feeds until Ctrl-C or SIGTERM comes; must be called from the main thread.

    Returns:
        The exit code: 0; 130 where it was broken off before it had begun to feed.

    Raises:
        WrongUsage: The command line contradicts itself, or lacks something.
        KeyholeError: It can't begin, and nothing was made; or it can't go on, and the next start goes on behind it.
    """
    chosen, descriptor = as_usage(lambda: _wanted(options))
    config = feed_config(options, chosen.application)
    clock = SystemClock()
    encoding = _encoding(options, clock)
    if config.stats or config.metrics:
        require("what KEYHOLE_JOB_STATS and KEYHOLE_JOB_METRICS serve", "service", _TO_SERVE)
    console = Console(highlight=False)
    # In a terminal the line says how far it is; what is logged at INFO is for machines.
    logs.configure("WARNING" if console.is_terminal else "INFO")
    logs.tell_crashes()
    try:
        with StopSignals() as signals:
            with ProgressLine(console) as line, _shown_meanwhile(line, f"looking at topic {options.topic}", clock):
                descriptor = _looked_at(options, config, descriptor, chosen, encoding)
            process = _process(options, config, descriptor, chosen, encoding, clock)
            with closing(process), ProgressLine(console) as line:
                with _shown_meanwhile(line, f"taking {options.state} over", clock):
                    process.start()
                _say(console, f"feeding {options.state} from topic {options.topic}; it can be read now")
                with signals.gently():
                    shown = _ShownProgress(line, options.topic, clock, stats_of(config).counts)
                    try:
                        done = process.feed(signals.came, shown)
                    finally:
                        signals.ignore()  # what it ended with is shown, whoever is impatient
    except KeyboardInterrupt:
        _say(console, "broken off before it had begun to feed")
        return _BROKEN_OFF
    _say(console, f"stopped: {shown.total(done)}. {options.state} can be read; the same command goes on from here")
    return 0


def _wanted(options: argparse.Namespace) -> tuple[FeedOptions, StateDescriptor]:
    """What is to be fed, once the command line has all that it takes. Raises InvalidConfiguration."""
    chosen = feed_options(options)
    descriptor = describe(chosen)
    for name in ("bootstrap_servers", "servers"):
        variable = f"{JobConfig.PREFIX}{name.upper()}"
        if not (getattr(options, name) or os.environ.get(variable)):
            option = f"--{name.replace('_', '-')}"
            raise InvalidConfiguration(
                f"give {option} HOST:PORT, or set {variable}: where `keyhole up` or `keyhole dev` runs, type "
                'eval "$(keyhole env)" in its folder; `keyhole demo` prints its own',
                variable=variable,
            )
    if options.servers:
        read_servers(options.servers)
    return chosen, descriptor


def _say(console: Console, what: str) -> None:
    console.print(what, markup=False, soft_wrap=True)


def _encoding(options: argparse.Namespace, clock: Clock) -> RecordEncoding:
    """Of the topic's records. Raises InvalidConfiguration: what reads it isn't installed, or --registry is wrong."""
    if not options.registry:
        return JSON
    of_protobuf = options.format == RecordFormat.PROTOBUF
    require(f"--format {options.format}", "registry", _TO_ASK_A_REGISTRY + (_TO_READ_PROTOBUF if of_protobuf else ()))
    from keyhole.feed.registry.client import ConfluentRegistry
    from keyhole.feed.registry.encodings import AvroEncoding, ProtobufEncoding

    encoding = ProtobufEncoding if of_protobuf else AvroEncoding
    return encoding(ConfluentRegistry(options.registry), clock)


def _recorded(config: JobConfig, descriptor: StateDescriptor) -> StateDescriptor | None:
    """The state as it is on record. None: it is not there yet."""
    try:
        return recorded_state(config.bootstrap_servers, descriptor.application, descriptor.state)
    except (UnknownApplication, UnknownState):
        return None


def _looked_at(
    options: argparse.Namespace,
    config: JobConfig,
    descriptor: StateDescriptor,
    chosen: FeedOptions,
    encoding: RecordEncoding,
) -> StateDescriptor:
    """The state, with as many key groups as are on record, unless the command line says how many.

    Raises:
        InvalidConfiguration: The topic is not there; or the state is new, and the topic's records don't fit it.
    """
    partitions = partitions_of(config.bootstrap_servers, options.topic, config.kafka_deadline_seconds)
    recorded = _recorded(config, descriptor)
    if recorded is not None:
        return msgspec.structs.replace(descriptor, key_groups=options.key_groups or recorded.key_groups)
    if options.unchecked:
        return descriptor
    records = last_records(config.bootstrap_servers, options.topic, partitions)
    try:
        check_records(records, descriptor, chosen.format, options.topic, encoding, chosen.columns, chosen.deletions)
    except RegistryAway as error:
        raise InvalidConfiguration(f"{error}: check --registry, and what it needs in the file behind it") from None
    return descriptor


def _process(
    options: argparse.Namespace,
    config: JobConfig,
    descriptor: StateDescriptor,
    chosen: FeedOptions,
    encoding: RecordEncoding,
    clock: Clock,
) -> FeedProcess:
    changelog = KafkaChangelog(config.bootstrap_servers, config.application)
    counts = stats_of(config).counts.query(descriptor.query)
    run = FeedRun(config, descriptor.query, changelog, clock, counts=counts)

    def feed_of(recorded: StateDescriptor, topic_id: str) -> TopicFeed:
        return TopicFeed(
            config.bootstrap_servers,
            recorded,
            options.topic,
            chosen.format,
            clock,
            from_earliest=options.from_earliest,
            encoding=encoding,
            columns=chosen.columns,
            deletions=chosen.deletions,
            topic_id=topic_id,
            strict=options.strict,
        )

    return FeedProcess(run, descriptor, options.standbys, feed_of, clock, take_over=options.take_over)


@contextmanager
def _shown_meanwhile(line: ProgressLine, what: str, clock: Clock) -> Iterator[None]:
    """The line grows older while the block runs, in a thread of its own: the block may wait for minutes."""
    began = clock.monotonic()

    def tell(over: threading.Event) -> None:
        while not clock.wait(over, _SHOW_SECONDS):
            line.show(what, clock.monotonic() - began)

    with beside(tell):
        yield


class _ShownProgress:
    """Shows how far a feed is, and counts what it reads and refuses, as a job does."""

    def __init__(self, line: ProgressLine, topic: str, clock: Clock, counts: JobCounts) -> None:
        self._line = line
        self._topic = topic
        self._clock = clock
        self._began = clock.monotonic()
        self._rates = Rates()
        self._counts = counts
        self._counted = FeedFigures()
        counts.check(topic, 0, 0)  # a first record that is refused is to be an increase

    def __call__(self, figures: FeedFigures) -> None:
        self._count(figures)
        seconds = self._clock.monotonic() - self._began
        per_second = self._rates.note(seconds, figures.records)
        self._line.show(f"feeding {self._topic} ({progress(figures, per_second)})", seconds)

    def total(self, figures: FeedFigures) -> str:
        """All that was fed, for the last line."""
        self._count(figures)
        return f"{figures.records:,} records read{_refused(figures, self._topic)}"

    def _count(self, figures: FeedFigures) -> None:
        before, self._counted = self._counted, figures
        self._counts.check(self._topic, figures.records - before.records, figures.refused - before.refused)


def progress(figures: FeedFigures, per_second: float) -> str:
    """How far a feed is, in words: rows a second, how many are not read yet, and what was refused."""
    if not figures.feeding:
        return f"waiting for {figures.waits_for}"
    behind = "" if figures.behind is None else f", {figures.behind:,} behind"
    return f"{per_second:,.0f} rows/s{behind}, {figures.records:,} in all{_refused(figures)}"


def _refused(figures: FeedFigures, topic: str = "") -> str:
    if not figures.refused:
        return ""
    where = f" to {dead_letter_topic(topic)}" if topic else ""
    return f", {figures.refused:,} refused{where}, the last one as {figures.why_refused}"
