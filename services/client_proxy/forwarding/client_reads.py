"""Answers lookups as callers ask for them: typed keys become storage keys, and rows what was asked for, JSON too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from keyhole.client.one_epoch import of_one_epoch, one_query
from keyhole.client.wire.segments import Answers
from keyhole.errors import KeyholeError, StaleDescriptor
from keyhole.rpc.frames import FRAME_BYTES, AskAgain, answer_too_large, check_answer, cut_to_frame, of_key
from keyhole.rpc.read_requests import KeyLookup, lookup_of_keys
from keyhole.v1 import query_pb2 as pb
from services.client_proxy.counts import ProxyCounts
from services.client_proxy.directory import Directory
from services.client_proxy.forwarding.storage_reads import StorageReads

_RETRY_SECONDS = 0.02


class ClientReads:
    """See the module's text. Event loop's thread only; deadlines are on its clock.

    Args:
        reads: Looks the storage keys up.
    """

    def __init__(self, directory: Directory, counts: ProxyCounts, reads: StorageReads) -> None:
        self._directory = directory
        self._counts = counts
        self._reads = reads
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def frame(
        self, lookup: KeyLookup, deadline: float, done: Callable[[Answers], None], failed: Callable[[Exception], None]
    ) -> None:
        """Begins to look a frame up, and returns at once.

        Args:
            done: Gets its answers, as many values as one response carries; the others stand as AskAgain.
            failed: Is called where it can't be looked up, some time later.

        Raises:
            KeyholeError: It can't be looked up, as is known now.
        """
        if lookup.keys or lookup.as_json:
            # The slow way, for callers without a codec.
            task = self._loop.create_task(self._run(lookup, deadline, done, failed))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._reads.forward(lookup, deadline, done, in_parts=True)

    async def _run(
        self, lookup: KeyLookup, deadline: float, done: Callable[[Answers], None], failed: Callable[[Exception], None]
    ) -> None:
        try:
            done(await self._typed_frame(lookup, deadline))
        except Exception as error:  # noqa: BLE001 - the top of a task: nobody else would answer the frame
            failed(error)

    async def _typed_frame(self, lookup: KeyLookup, deadline: float) -> Answers:
        answers = await self._answers(lookup, deadline, FRAME_BYTES)
        values = list(await self._values(lookup, answers, deadline))
        failures = {**answers.failures, **cut_to_frame("/".join(lookup.state), values)}
        return answers._replace(values=values, failures=failures, message=None)

    async def many(self, request: pb.GetManyRequest, deadline: float, most_bytes: int) -> list[pb.Answer]:
        """The answers to Get and GetMany; with the consistency SNAPSHOT all of one epoch.

        Args:
            most_bytes: The values of all keys together may take.

        Raises:
            TooLarge: One of them, or all together, take more.
            Unsupported: SNAPSHOT, of a state that is fed by updates.
            KeyholeError: A key can't be answered.
        """
        if request.options.consistency != pb.CONSISTENCY_SNAPSHOT:
            return await self._committed(request, deadline, most_bytes)
        name = request.state.application, request.state.state
        await self._directory.known(name, deadline)
        one_query([self._directory.table(name).descriptor])

        async def read(which: Sequence[int], as_of: int, min_epoch: int) -> list[pb.Answer]:
            again = pb.GetManyRequest(state=request.state, options=request.options)
            again.keys.extend(request.keys[index] for index in which)
            again.options.consistency = pb.CONSISTENCY_COMMITTED
            if as_of:
                again.options.max_staleness_ms = again.options.min_epoch = 0
                again.options.min_epochs.clear()
                again.options.as_of_epoch = as_of
            elif min_epoch:
                again.options.min_epoch = max(min_epoch, again.options.min_epoch)
            return await self._committed(again, deadline, most_bytes)

        answers = await of_one_epoch(read, lambda answer: answer.source.epoch, len(request.keys))
        check_answer("/".join(name), [answer.value for answer in answers], len(answers), most_bytes)
        return answers

    async def _committed(self, request: pb.GetManyRequest, deadline: float, most_bytes: int) -> list[pb.Answer]:
        name, count = (request.state.application, request.state.state), len(request.keys)
        try:
            lookup = lookup_of_keys(request)
            answers = await self._answers(lookup, deadline, most_bytes)
        except KeyholeError as error:
            self._counts.refused(self._counts.of(name, self._directory.tables), error.reason, count)
            raise
        for index, failure in answers.failures.items():
            if isinstance(failure, AskAgain):  # there is no room for it; these are never answered in parts
                raise answer_too_large("/".join(name), count, most_bytes)
            raise of_key(failure, index, count)
        values = await self._values(lookup, answers, deadline)
        check_answer("/".join(name), values, count, most_bytes)
        source_of = answers.source_of or [0] * len(values)
        return [
            pb.Answer(found=bool(value), value=value, source=answers.sources[index])
            for value, index in zip(values, source_of, strict=True)
        ]

    async def _answers(self, lookup: KeyLookup, deadline: float, room: int) -> Answers:
        """Encodes the keys, where they are typed; again if the state was made anew meanwhile."""
        if not lookup.keys:
            return await self._stored(lookup, deadline, room)
        await self._directory.known(lookup.state, deadline)
        answers = await self._stored(self._encoded(lookup), deadline, room)
        if any(isinstance(error, StaleDescriptor) for error in answers.failures.values()):
            answers = await self._stored(self._encoded(lookup), deadline, room)
        return answers

    def _encoded(self, lookup: KeyLookup) -> KeyLookup:
        codec = self._directory.codec(lookup.state)
        return lookup._replace(storage_keys=codec.storage_keys(lookup.keys), topic_id=codec.descriptor.topic_id)

    async def _stored(self, lookup: KeyLookup, deadline: float, room: int) -> Answers:
        answered: asyncio.Future[Answers] = self._loop.create_future()

        def done(answers: Answers) -> None:
            if not answered.done():
                answered.set_result(answers)

        self._reads.forward(lookup, deadline, done, room=room)
        return await answered

    async def _values(self, lookup: KeyLookup, answers: Answers, deadline: float) -> Sequence[bytes]:
        """Makes of rows what the caller wants. Raises StaleDescriptor: a row's schema was not heard of in time."""
        while lookup.as_json and answers.values:
            try:
                return self._directory.codec(lookup.state).rows.each_to_json(answers.values)
            except StaleDescriptor:
                # A row has come before the word of its schema, which is under way.
                if self._loop.time() + _RETRY_SECONDS >= deadline:
                    raise
                await self._directory.clock.pause(_RETRY_SECONDS)
        return answers.values
