"""A policy allows what an entry of it allows, and nothing else; in whatever order its entries stand."""

from __future__ import annotations

import itertools
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.security.policy import SEEING, Allow, Policy, Verb

EVERY_NAME = ("token:a", "token:ab", "certificate:a", "jwt:a.b", "jwt:axb")
EVERY_WHO = ("token:a", "token:*", "certificate:a", "jwt:a.b", "*", "token:a*")
EVERY_STATE = ("app/x", "app/y", "other/x", "app/[xy]")
EVERY_PATTERN = ("app/*", "app/x", "*/x", "*/*", "a*/?", "none/*")
NAMES = st.sampled_from(EVERY_NAME)
WHO = st.sampled_from(EVERY_WHO)
STATES = st.sampled_from(EVERY_STATE)
PATTERNS = st.sampled_from(EVERY_PATTERN)
OF_STATES = [verb for verb in Verb if verb is not Verb.METRICS]
VERBS = st.sampled_from([verb for verb in OF_STATES if verb not in (Verb.PLATFORM, Verb.WRITE)])
ENTRIES = st.one_of(
    st.builds(
        Allow,
        who=st.lists(WHO, min_size=1, max_size=2).map(tuple),
        verbs=st.lists(VERBS, min_size=1, max_size=2).map(tuple),
        states=st.lists(PATTERNS, min_size=1, max_size=2).map(tuple),
    ),
    st.builds(
        Allow, who=st.tuples(WHO), verbs=st.just((Verb.WRITE,)), states=st.tuples(st.sampled_from(["app/*", "*/*"]))
    ),
    st.builds(Allow, who=st.tuples(WHO), verbs=st.sampled_from([(Verb.PLATFORM,), (Verb.METRICS,)])),
)
POLICIES = st.lists(ENTRIES, max_size=5)
IDENTITIES = st.lists(NAMES, max_size=2, unique=True)
EVERY_VERB = st.sampled_from(OF_STATES)


def _fits(who: str, name: str) -> bool:
    before, star, after = who.partition("*")
    if not star:
        return who == name
    return len(name) >= len(before) + len(after) and name.startswith(before) and name.endswith(after)


def _allowed(entries: list[Allow], names: list[str], verb: Verb, state: str) -> bool:
    """The rules again, as one sentence each."""
    for entry in entries:
        if not any(_fits(who, name) for who in entry.who for name in names):
            continue
        if Verb.PLATFORM in entry.verbs and verb is not Verb.WRITE:
            return True
        if verb in entry.verbs and any(fnmatchcase(state, pattern) for pattern in entry.states):
            return True
    return False


@pytest.mark.parametrize("who", EVERY_WHO)
def test_an_entry_alone_allows_exactly_what_it_says(who: str) -> None:
    entries = [Allow((who,), (Verb.READ,), (pattern,)) for pattern in EVERY_PATTERN]
    entries += [Allow((who,), (Verb.WRITE,), ("app/*",)), Allow((who,), (Verb.PLATFORM,))]
    for entry, name, verb, state in itertools.product(entries, EVERY_NAME, OF_STATES, EVERY_STATE):
        allowed = Policy((entry,)).of([name]).may(verb, *state.split("/"))
        assert allowed == _allowed([entry], [name], verb, state), (entry, name, verb, state)


@given(POLICIES, IDENTITIES, EVERY_VERB, STATES)
def test_what_no_entry_allows_is_refused_and_what_one_allows_is_allowed(
    entries: list[Allow], names: list[str], verb: Verb, state: str
) -> None:
    rights = Policy(tuple(entries)).of(names)
    assert rights.may(verb, *state.split("/")) == _allowed(entries, names, verb, state)


@given(POLICIES, IDENTITIES, EVERY_VERB, STATES, st.randoms())
def test_the_order_of_entries_does_not_matter(
    entries: list[Allow], names: list[str], verb: Verb, state: str, random: object
) -> None:
    shuffled = list(entries)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    application, name = state.split("/")
    one, other = Policy(tuple(entries)).of(names), Policy(tuple(shuffled)).of(names)
    assert one.may(verb, application, name) == other.may(verb, application, name)
    assert one.may_everywhere(verb) == other.may_everywhere(verb)


@given(POLICIES, IDENTITIES, STATES, ENTRIES)
def test_another_entry_takes_nothing_away(entries: list[Allow], names: list[str], state: str, more: Allow) -> None:
    application, name = state.split("/")
    before, after = Policy(tuple(entries)).of(names), Policy((*entries, more)).of(names)
    for verb in Verb:
        assert after.may(verb, application, name) or not before.may(verb, application, name)
        assert after.may_everywhere(verb) or not before.may_everywhere(verb)


@given(POLICIES, IDENTITIES, STATES)
def test_who_may_do_nothing_with_a_state_may_not_see_it_and_who_may_everywhere_may_here(
    entries: list[Allow], names: list[str], state: str
) -> None:
    rights = Policy(tuple(entries)).of(names)
    application, name = state.split("/")
    assert rights.may_see(application, name) == any(rights.may(verb, application, name) for verb in SEEING)
    for verb in OF_STATES:
        assert rights.may(verb, application, name) or not rights.may_everywhere(verb)


@given(POLICIES, EVERY_VERB, STATES)
def test_who_has_no_identity_may_do_nothing(entries: list[Allow], verb: Verb, state: str) -> None:
    assert not Policy(tuple(entries)).of(()).may(verb, *state.split("/"))
