"""Spark's own log of a query's batches: what each has read. Of old batches it keeps none, so a run keeps copies.

Imports nothing of Keyhole, so that a mistake of Keyhole's can't hide here.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PINS = "keyhole/broadcast"
_POLL_SECONDS = 0.1


def keep(checkpoint: Path, copies: Path) -> None:
    """Copies what is new in the logs of a checkpoint, and of others beside it whose names begin with its name.

    Spark, and Keyhole, drop what is older than a hundred batches: call it more often than that. A batch that is run
    again has the same log.
    """
    for of in checkpoint.parent.glob(f"{checkpoint.name}*"):
        for folder in [of / "offsets", *(of / _PINS).glob("*")]:
            for file in folder.glob("*"):
                copy = copies / file.relative_to(checkpoint.parent)
                if not file.name.isdecimal() or copy.exists():  # Spark's temporary files, and checksums
                    continue
                copy.parent.mkdir(parents=True, exist_ok=True)
                try:
                    shutil.copyfile(file, copy.with_suffix(".part"))
                except FileNotFoundError:
                    continue  # dropped this very moment: it was copied before, or never ours to keep
                copy.with_suffix(".part").rename(copy)


class BatchLogs:
    """The log of one query's batches.

    Args:
        checkpoint: Spark's.
        copies: Made by `keep`.
    """

    def __init__(self, checkpoint: Path, copies: Path) -> None:
        self._checkpoint = checkpoint
        self._copies = copies / checkpoint.name

    def newest(self) -> int:
        """The last batch that is finished; -1: none is."""
        return self._newest("commits")

    def begun(self) -> int:
        """The last batch that has begun, though perhaps not finished; -1: none has."""
        return self._newest("offsets")

    def _newest(self, folder: str) -> int:
        files = (self._checkpoint / folder).glob("*")
        return max((int(file.name) for file in files if file.name.isdecimal()), default=-1)

    def ends(self, batch: int) -> dict[int, int]:
        """Where the batch ends in each partition of the query's only source topic."""
        *_, offsets = self._lines(batch)
        (partitions,) = json.loads(offsets).values()
        return {int(partition): end for partition, end in partitions.items()}

    def await_ends(self, ends: Mapping[int, int], seconds: float) -> int:
        """Waits for the last finished batch to end there, in each partition; returns that batch's number.

        Raises:
            TimeoutError: It doesn't within so many seconds.
        """
        until = time.monotonic() + seconds
        while (newest := self.newest()) < 0 or self.ends(newest) != ends:
            if time.monotonic() > until:
                raise TimeoutError(f"the query of {self._checkpoint.name} has not taken all within {seconds:.0f} s")
            time.sleep(_POLL_SECONDS)
        return newest

    def watermark_ms(self, batch: int) -> int:
        """The batch's, milliseconds since 1970."""
        watermark: int = json.loads(self._lines(batch)[1])["batchWatermarkMs"]
        return watermark

    def broadcast(self, state: str, batch: int) -> tuple[int, bytes]:
        """What the batch has read of a broadcast state (application.state): its epoch, and a stream of Arrow's.

        A file is a line of JSON, and then the stream, or nothing: then it is in the last one of the batches that the
        line names.
        """
        head, content = self._pin(state, batch)
        holder: int = head["contents"][-1]
        return int(head["note"]), content if holder == batch else self._pin(state, holder)[1]

    def _pin(self, state: str, batch: int) -> tuple[dict[str, Any], bytes]:
        head, _, content = self._file(f"{_PINS}/{state}/{batch}").read_bytes().partition(b"\n")
        return json.loads(head), content

    def _lines(self, batch: int) -> list[str]:
        return self._file(f"offsets/{batch}").read_text().splitlines()

    def _file(self, name: str) -> Path:
        copy = self._copies / name
        return copy if copy.exists() else self._checkpoint / name
