"""`python -m tests.fault.fed_feeder`: `keyhole feed`, but that it may begin behind its place, and notes why it ended.

Environment: FAULT_FEED, JSON, see FeederSettings.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from keyhole.cli.arguments import parser_of_all
from keyhole.errors import KeyholeError
from keyhole.feed import feeder
from tests.fault.history import Ended


class FeederSettings(msgspec.Struct, frozen=True):
    """What the harness tells a feeder.

    Attributes:
        words: Of the command line.
        steps: A file that it appends an Ended to, one JSON a line.
        rewound: How many records of each partition of the source it sends once more when it begins.
    """

    words: tuple[str, ...]
    steps: str
    rewound: int = 0


def rewind(records: int) -> None:
    """A feeder begins so many records before the last boundary: its source was rewound."""
    where_to_begin = feeder.where_to_begin

    def earlier(*of: Any, **more: Any) -> Any:
        described, found, positions = where_to_begin(*of, **more)
        back = {partition: max(described.starts[partition], at - records) for partition, at in positions.items()}
        return described, found, back

    feeder.where_to_begin = earlier


def main() -> int:
    """Returns the exit code."""
    settings = msgspec.json.decode(os.environ["FAULT_FEED"], type=FeederSettings)
    rewind(settings.rewound)
    options = parser_of_all().parse_args(settings.words)
    try:
        return int(options.run(options))
    except KeyholeError as error:
        ended = Ended(time.monotonic(), f"driver {os.getpid()}", type(error).reason, error.message)
        with Path(settings.steps).open("ab", buffering=0) as file:
            file.write(msgspec.json.encode(ended) + b"\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
