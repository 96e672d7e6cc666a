"""Many answers as of one and the same epoch: how those of a later one are asked for again. Pure but for the reads.

    answers at epochs   7  7  8  7        server 2 has committed epoch 8 already
    asked again                7          as of epoch 7, which it has kept

Mostly all copies stand at one epoch, and nothing is asked twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from keyhole.errors import EpochGone, Unsupported
from keyhole.model.state import StateDescriptor

T = TypeVar("T")

Reading = Callable[[Sequence[int], int, int], Awaitable[Sequence[T]]]
"""(which keys, by their index; as of which epoch, 0: the last one; at which epoch at least) -> their answers."""


async def of_one_epoch(read: Reading[T], epoch_of: Callable[[T], int], count: int) -> list[T]:
    """The answers of `count` keys, all of one epoch: the first one that any of them is at.

    A copy that is further behind than others keep epochs is passed over: then all are asked for again, at least at an
    epoch that is kept. How long that may take is up to `read`.

    Raises: What `read` does, but for EpochGone.
    """
    everything = range(count)
    min_epoch = 0
    while True:
        answers = list(await read(everything, 0, min_epoch))
        epochs = {epoch_of(answer) for answer in answers}
        if len(epochs) <= 1:
            return answers
        first = min(epochs)
        if not first:
            # Of epoch 0, before the first one, nothing is kept: it is no answer of any epoch.
            min_epoch = min(epochs - {0})
            continue
        later = [index for index in everything if epoch_of(answers[index]) > first]
        try:
            again = await read(later, first, 0)
        except EpochGone as gone:
            min_epoch = max(first + 1, int(gone.facts.get("oldest", 0)))
            continue
        for index, answer in zip(later, again, strict=True):
            answers[index] = answer
        return answers


def one_query(descriptors: Iterable[StateDescriptor]) -> None:
    """Whether these states have epochs in common. Raises Unsupported where they don't."""
    queries: dict[tuple[str, str], str] = {}
    for of in descriptors:
        name = of.path
        if of.updates_topic_id:
            raise Unsupported(
                f"state {name} is fed by updates: each key group has epochs of its own, and there is no snapshot of it",
                state=name,
            )
        queries.setdefault((of.application, of.query), name)
    if len(queries) > 1:
        (_, first), (_, second) = list(queries.items())[:2]
        raise Unsupported(
            f"states {first} and {second} are written by two queries, whose epochs have nothing in common; make a "
            "snapshot of each",
        )
