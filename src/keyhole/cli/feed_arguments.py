"""The words of `keyhole feed`. Nothing is run here."""

from __future__ import annotations

import argparse

from keyhole.cli import run_commands
from keyhole.cli.argument_values import count, count_or_none, kafka, seconds, seconds_or_none, state, topic
from keyhole.cli.credential_arguments import add_credentials
from keyhole.model.state import FED_KEY_GROUPS

FORMATS = ("json", "debezium", "avro", "debezium-avro", "protobuf")
UNORDERED = ("refuse", "delete", "ignore")

_EXAMPLES = """\
keyhole feed shop/totals --topic orders --key customer --reduce amount=sum     a sum for each customer
keyhole feed shop/totals --topic orders --key customer --reduce spent=sum:amount --reduce largest=max:amount
keyhole feed shop/last --topic orders --key customer --value amount:double     the last order of each
keyhole feed shop/days --topic orders --key customer --map-key day:date --value amount:double
keyhole feed shop/recent --topic orders --key customer --value amount:double --max-length 10
"""


def add_feed(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command `feed` to the others."""
    feed = commands.add_parser(
        "feed",
        help="make a Kafka topic a queryable state, without Spark; it runs until it is stopped",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    feed.add_argument(
        "state", type=state, metavar="APP/STATE", help="made at the first start; later ones go on with it"
    )
    feed.add_argument("--topic", type=topic, required=True, metavar="TOPIC", help="what is fed into it")
    feed.add_argument(
        "--format",
        choices=FORMATS,
        default="json",
        help="of its records: rows, or Debezium's changes, in JSON or in Avro; rows in Protobuf (%(default)s)",
    )
    feed.add_argument(
        "--registry",
        metavar="URL",
        help="of the schema registry, for Avro and Protobuf; ?settings=FILE behind it for passwords and TLS",
    )
    columns = feed.add_argument_group("columns: NAME, or NAME:TYPE by Spark's names of types; may be repeated")
    _add_columns(columns, "--key", "COLUMN", "of the key (a string)")
    _add_columns(columns, "--value", "COLUMN", "of the value (a string), of which the last row of a key counts")
    _add_columns(
        columns,
        "--reduce",
        "COLUMN=REDUCER",
        "in place of --value: how a key's rows become one, as amount=sum; FIELD=REDUCER:COLUMN, as spent=sum:amount",
    )
    _add_columns(columns, "--map-key", "COLUMN", "of the map key: a key then has an entry for each of these")
    kind = feed.add_argument_group("what is kept")
    kind.add_argument("--max-length", type=count, metavar="N", help="a list of the last N rows of each key")
    kind.add_argument("--order-by", metavar="COLUMN", help="the row of its highest value counts, not the last one")
    kind.add_argument(
        "--delete-when", metavar="COLUMN=VALUE", help="rows that delete, as gone=true; so does a record without a value"
    )
    kind.add_argument(
        "--keep-deleted",
        type=seconds_or_none,
        metavar="SECONDS",
        help="with --order-by: how long a deletion is remembered, with its order (a day); 0: deletions have none",
    )
    kind.add_argument(
        "--unordered-deletes",
        choices=UNORDERED,
        help="with --order-by: what a deletion without an order does (refuse; with --keep-deleted 0 delete)",
    )
    kind.add_argument("--ttl", type=seconds, metavar="SECONDS", help="how long after its last row an entry is kept")
    _add_columns(kind, "--index", "FIELD", "of the value, by which scans find rows; may be repeated")
    kind.add_argument(
        "--key-groups",
        type=count,
        metavar="N",
        help=f"the parts in which servers share it, for good ({FED_KEY_GROUPS}; of one that is there its own)",
    )
    kind.add_argument(
        "--standbys", type=count_or_none, default=0, metavar="N", help="how many servers follow each part (%(default)s)"
    )
    start = feed.add_argument_group("where it begins")
    start.add_argument(
        "--from-earliest", action="store_true", help="accept that records, or the topic before, are gone"
    )
    start.add_argument(
        "--take-over", action="store_true", help="take the state from a process that feeds it now, and ends then"
    )
    start.add_argument("--unchecked", action="store_true", help="make the state without a look at the topic's records")
    feed.add_argument(
        "--strict", action="store_true", help="end at the first record that can't be fed; else it is a dead letter"
    )
    stack = feed.add_argument_group(
        "where Kafka and the state servers are (or KEYHOLE_JOB_BOOTSTRAP_SERVERS and so on)"
    )
    stack.add_argument(
        "--bootstrap-servers", type=kafka, metavar="HOST:PORT", help="Kafka; ?settings=FILE behind it for TLS and SASL"
    )
    stack.add_argument("--servers", metavar="HOST:PORT,...", help="the state servers; also dns: and kubernetes:")
    add_credentials(feed, "KEYHOLE_JOB")
    feed.set_defaults(run=run_commands.start_feed)


def _add_columns(to: argparse._ArgumentGroup, option: str, metavar: str, text: str) -> None:
    to.add_argument(option, action="append", default=[], metavar=metavar, help=text)
