"""What a batch once settles and keeps to when it is run again, by whichever driver: files in its query's checkpoint."""

from __future__ import annotations

import msgspec

from keyhole.errors import CheckpointMismatch, Fenced
from keyhole.protocol.batch_decisions import Pin, following, pin_of, plain, written
from keyhole.spark.driver.checkpoint_files import CheckpointFiles, checkpoint_files
from keyhole.spark.driver.micro_batch import MicroBatch

# Of so many batches Spark keeps the logs.
_KEPT_BATCHES = "spark.sql.streaming.minBatchesToRetain"


def batch_pins(batch: MicroBatch, folder: str) -> BatchPins:
    """Of the query of the batch.

    Args:
        folder: In the checkpoint; see keyhole.protocol.batch_decisions.
    """
    session = batch.frame.sparkSession
    files = checkpoint_files(session, f"{batch.location}/{folder}")
    return BatchPins(files, batch.number, int(session.conf.get(_KEPT_BATCHES) or 0))


class BatchPins:
    """What a batch and those before it have settled of one thing: one file each.

    Args:
        files: Of the thing.
        number: The batch's.
        kept: What so many batches have settled is kept; at least two.
    """

    def __init__(self, files: CheckpointFiles, number: int, kept: int) -> None:
        self._files = files
        self._number = number
        self._oldest = number - max(kept, 2) + 1

    def now(self) -> Pin | None:
        """None: the batch has settled nothing yet."""
        return self._of(self._number)

    def before(self) -> Pin | None:
        """Of the last batch before this one that has settled something.

        Raises:
            Fenced: Later batches have settled something, of a driver that has taken the query over.
        """
        if (last := self._of(self._number - 1)) is not None:
            return last
        numbers = self._numbers()
        earlier = [number for number in numbers if number < self._number]
        last = self._of(max(earlier)) if earlier else None
        # Else what is gone may have been dropped, and what is left says nothing of what a successor needs.
        if max(numbers, default=0) > self._number or (earlier and last is None):
            raise self._overtaken()
        return last

    def content(self, pin: Pin) -> bytes:
        """The pin's content, from whichever batch's file has it.

        Raises:
            CheckpointMismatch: It isn't there.
        """
        if pin.content is not None:
            return pin.content
        holder = self._of(pin.contents[-1])
        if holder is None or holder.content is None or holder.sha256 != pin.sha256:
            raise CheckpointMismatch(
                f"what batch {pin.batch} has read is in the file {pin.contents[-1]} of the same folder of its query's "
                "checkpoint, and that is missing, or another one: bring the file back",
                batch=pin.batch,
                file=pin.contents[-1],
            )
        return holder.content

    def pin(self, content: bytes, before: Pin | None) -> Pin:
        """Settles this, whole or not at all; and drops what no batch can ask for any more.

        Args:
            content: Small, and no JSON that begins with "pin": it is the file as it is. Of one thing all batches do
                this, or all share.
            before: See `before`.

        Returns:
            It, or what has been settled meanwhile: a driver that was taken for dead, and wakes, changes nothing for its
            successor.

        Raises:
            Fenced: So much later that what was settled has been dropped.
        """
        return self._settled(plain(self._number, content), content, content, before)

    def share(self, content: bytes, note: str, before: Pin | None) -> Pin:
        """The same for a content that may be large, and seldom changes: it is written where it has changed.

        Args:
            content: Anything.
            note: Short, and not empty. It is the batch's own.
        """
        pin = following(before, self._number, content, note, self._oldest)
        return self._settled(pin, content, written(pin), before)

    def _settled(self, pin: Pin, content: bytes, data: bytes, before: Pin | None) -> Pin:
        # First: whoever is killed in between does it again.
        for number in self._past(pin, before):
            self._files.delete(str(number))
        self._files.create(str(self._number), data)
        settled = self.now()
        if settled is None:
            raise self._overtaken()
        if settled.sha256 != pin.sha256:
            return settled
        return msgspec.structs.replace(settled, content=content)

    def _past(self, pin: Pin, before: Pin | None) -> list[int]:
        """Which files no batch can ask for any more, that no kept batch refers to.

        What a driver that wakes late says here is a part of what its successor has said.
        """
        if before is None or before.batch != self._number - 1:  # not every batch settles something
            past = {*self._numbers()}
        else:
            past = {self._oldest - 1, *before.contents}
        kept = {*pin.contents, -1 if before is None else before.batch}
        return sorted(number for number in past - kept if 0 <= number < self._oldest)

    def _overtaken(self) -> Fenced:
        return Fenced(
            f"batches after batch {self._number} have been run: another driver has taken the query over while this one "
            "slept, and nothing is left to do here. If there is no other driver, the checkpoint was set back, and "
            "files of later batches were left in its folder keyhole: bring the checkpoint back as it was",
            batch=self._number,
        )

    def _numbers(self) -> list[int]:
        return [int(name) for name in self._files.names() if name.isdecimal()]

    def _of(self, number: int) -> Pin | None:
        data = self._files.read(str(number))
        return None if data is None else pin_of(number, data)
