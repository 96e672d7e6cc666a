"""The arguments of queryable's functions that one kind of state alone takes, or does not take. Each function raises
InvalidConfiguration, which names the argument."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from keyhole.errors import InvalidConfiguration
from keyhole.spark.operators import MOST_SUBTASKS
from keyhole.spark.sink import Sink


def elements_kept(state: str, max_length: int | None, *, unbounded: bool) -> int:
    """How many elements of a key a list keeps; 0: any number. One of the two must have been given."""
    if (max_length is None) is not unbounded:
        raise InvalidConfiguration(
            f"state {state!r}: a list grows with the stream. Say how many elements of a key are kept with max_length=, "
            "or that it may grow for ever with unbounded=True, and not both",
            state=state,
        )
    if max_length == 0:  # the declaration's word for any number
        raise InvalidConfiguration(f"state {state!r}: max_length is 0; it must be 1 or more", state=state)
    return 0 if max_length is None else max_length


def check_mode(state: str, mode: str, modes: tuple[str, str]) -> None:
    """It must be one of the two that a list, or an operator state, has."""
    if mode not in modes:
        raise InvalidConfiguration(f"state {state!r}: mode is {mode!r}; it must be {' or '.join(modes)}", state=state)


def check_subtasks(state: str, subtasks: int | None) -> None:
    """None: as many as the batch has partitions."""
    if subtasks is not None and not (type(subtasks) is int and 1 <= subtasks <= MOST_SUBTASKS):
        raise InvalidConfiguration(
            f"state {state!r}: subtasks is {subtasks!r}; it must be a whole number from 1 to {MOST_SUBTASKS:,}",
            state=state,
        )


def check_none_deletes(state: str, options: Mapping[str, object]) -> None:
    """An operator state takes no option by which rows delete."""
    for given in ("op", "delete_when"):
        if options.get(given) is not None:
            raise InvalidConfiguration(
                f"state {state!r}: {given} can't be given, as the rows of an operator state delete nothing by "
                "themselves: let the operator's process() leave out of its elements what is to go",
                state=state,
            )


def check_none_places(state: str, options: Mapping[str, object]) -> None:
    """A broadcast state takes no option that says where it is."""
    for fixed in ("key_groups", "standbys"):
        if fixed in options:
            raise InvalidConfiguration(
                f"state {state!r}: {fixed} can't be chosen, leave it out: a broadcast state is on every server",
                state=state,
            )


def check_sinks(given: Sequence[object]) -> None:
    """Of what `together` takes, all must be sinks."""
    for of in given:
        if not isinstance(of, Sink):
            raise InvalidConfiguration(
                f"together takes sinks, made by queryable.value and the like, and not a {type(of).__name__}; "
                "of a list, give each: together(*sinks)"
            )
