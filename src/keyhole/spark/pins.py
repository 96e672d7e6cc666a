"""What a batch once settles and keeps to when it is run again, by whichever driver: files in its query's checkpoint."""

from __future__ import annotations

from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from keyhole.spark.batch import MicroBatch
from keyhole.spark.checkpoint_files import checkpoint_files

# Of so many batches Spark keeps the logs.
_KEPT_BATCHES = "spark.sql.streaming.minBatchesToRetain"


class BatchPins:
    """What a batch and those before it have settled of one thing: one file each.

    Args:
        frame: The batch's, or made of that.
        folder: In the checkpoint; see keyhole.pinned.
    """

    def __init__(self, frame: ClassicDataFrame, batch: MicroBatch, folder: str) -> None:
        self._number = batch.number
        self._kept = int(frame.sparkSession.conf.get(_KEPT_BATCHES) or 0)
        self._files = checkpoint_files(frame.sparkSession, f"{batch.query.resolvedCheckpointRoot()}/{folder}")

    def now(self) -> bytes | None:
        """None: the batch has settled nothing yet."""
        return self._files.read(str(self._number))

    def before(self) -> bytes | None:
        """Of the last batch before this one that has settled something."""
        if (last := self._files.read(str(self._number - 1))) is not None:
            return last
        earlier = [int(name) for name in self._files.names() if name.isdigit() and int(name) < self._number]
        return self._files.read(str(max(earlier))) if earlier else None

    def pin(self, content: bytes) -> bytes:
        """Settles this, whole or not at all; and drops what no batch can ask for any more.

        Returns:
            It, or what has been settled meanwhile: a driver that was taken for dead, and wakes, changes nothing for its
            successor.
        """
        if self._files.has(str(self._number - 1)):  # else an older one is the last before this batch
            self._files.delete(str(self._number - max(self._kept, 2)))
        self._files.create(str(self._number), content)
        pinned = self.now()
        assert pinned is not None
        return pinned
