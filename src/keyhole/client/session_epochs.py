"""What a session has seen of each state, and so what its next reads must hold. Pure.

An epoch of the batch lane is of the whole state: one number. Where a state is fed by updates it is of one key group,
and another key group may never come to that number: so there is one for each. Epochs of a topic made anew begin anew:
what was seen of the state before says nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from keyhole.client.options import ReadOptions
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.storage_key import group_of
from keyhole.errors import KeyholeError, MalformedRequest
from keyhole.model.given import whole_of

StateName: TypeAlias = tuple[str, str]
"""Application and state."""

Epochs: TypeAlias = Mapping[StateName, int | Mapping[int, int]]
"""The highest epoch seen of each state; of one that is fed by updates, of each of its key groups."""


class Seen:
    """See the module's text. Used by one thread at a time.

    Raises:
        MalformedRequest: These are no `epochs` of a session.
    """

    def __init__(self, epochs: Epochs) -> None:
        self._whole: dict[StateName, int] = {}
        self._groups: dict[StateName, dict[int, int]] = {}
        # The updates topic whose epochs they are, where a read has said; empty: the state has none.
        self._topics: dict[StateName, tuple[str, str]] = {}
        for name, of in _checked(epochs):
            if isinstance(of, Mapping):
                self._groups[name] = dict(of)
            else:
                self._whole[name] = of

    @property
    def epochs(self) -> dict[StateName, int | dict[int, int]]:
        """The highest epoch seen of each state, or of each of its key groups; a copy."""
        return {**self._whole, **{name: dict(of) for name, of in self._groups.items()}}

    def needs_key_groups(self, name: StateName, options: ReadOptions) -> bool:
        """Whether `hold` must know the keys' key groups."""
        return name in self._groups or (name in self._whole and isinstance(options.get("min_epoch"), Mapping))

    def hold(
        self,
        name: StateName,
        options: ReadOptions,
        keys: Iterable[Any],
        codec: StateCodec | None,
        *,
        scan: bool = False,
    ) -> None:
        """Raises the `min_epoch` of a read's options to what was seen.

        Args:
            keys: That are read. One that does not fit the state is passed over: its read fails for that.
            codec: Of the state. Needed where `needs_key_groups`.
            scan: The keys are those of a scan, without map keys.
        """
        self._forget_another(name, codec)
        if options.get("as_of"):  # the reader says which, and may ask for the past
            return
        given = options.get("min_epoch", 0)
        if not _are_epochs(given):
            # The read is refused for it.
            return
        seen, whole = self._groups.get(name, {}), self._whole.get(name, 0)
        if not isinstance(given, Mapping) and not seen:
            options["min_epoch"] = max(given, whole)
            return
        if codec is None or not codec.descriptor.updates_topic_id:
            if whole and isinstance(given, Mapping):
                options["min_epoch"] = max([whole, *given.values()])
            return
        groups = {group for key in keys if (group := _group(codec, key, scan=scan)) is not None}
        wanted = {
            group: max(given.get(group, 0) if isinstance(given, Mapping) else given, seen.get(group, 0), whole)
            for group in groups
        }
        if wanted:
            options["min_epoch"] = wanted if len(wanted) > 1 else next(iter(wanted.values()))

    def note(
        self,
        name: StateName,
        epochs: Iterable[tuple[Any, int]],
        codec: StateCodec | None,
        *,
        scan: bool = False,
    ) -> None:
        """Remembers the newest: reads after this see none that is older.

        Args:
            epochs: By key, those of its answer.
            codec: Of the state. None, where it can't be known any more: then no key group may be behind the newest.
            scan: As of `hold`.
        """
        self._forget_another(name, codec)
        if codec is None or not codec.descriptor.updates_topic_id:
            newest = max((epoch for _, epoch in epochs), default=0)
            if name not in self._groups:
                self._whole[name] = max(newest, self._whole.get(name, 0))
            return
        whole = self._whole.pop(name, 0)
        seen = self._groups.setdefault(name, dict.fromkeys(range(codec.descriptor.key_groups), whole) if whole else {})
        for key, epoch in epochs:
            group = _group(codec, key, scan=scan)
            if group is not None:
                seen[group] = max(epoch, seen.get(group, 0))

    def _forget_another(self, name: StateName, codec: StateCodec | None) -> None:
        """What was seen of a state of that name that was another one, as its topics say, or in the other lane."""
        if codec is None:
            return
        descriptor = codec.descriptor
        topics = descriptor.topic_id, descriptor.updates_topic_id
        if self._topics.get(name, topics) != topics or (not descriptor.updates_topic_id and name in self._groups):
            self._whole.pop(name, None)
            self._groups.pop(name, None)
        self._topics[name] = topics


def _checked(epochs: Epochs) -> Iterable[tuple[StateName, int | Mapping[int, int]]]:
    if isinstance(epochs, Mapping) and all(_is_name(name) and _are_epochs(of) for name, of in epochs.items()):
        return epochs.items()
    raise MalformedRequest(
        'the epochs of a session are by (application, state), as `epochs` of an earlier one has them: {("shop", '
        '"orders"): 7}; of a state that is fed by updates by key group: {("shop", "orders"): {3: 7}}'
    )


def _is_name(name: object) -> bool:
    return isinstance(name, tuple) and len(name) == 2 and all(isinstance(part, str) for part in name)


def _are_epochs(given: object) -> bool:
    numbers = [*given, *given.values()] if isinstance(given, Mapping) else [given]
    return all((whole := whole_of(number)) is not None and whole >= 0 for number in numbers)


def _group(codec: StateCodec, key: Any, *, scan: bool) -> int | None:
    try:
        return group_of(codec.prefix(key) if scan else codec.storage_key(key))
    except KeyholeError:
        return None
