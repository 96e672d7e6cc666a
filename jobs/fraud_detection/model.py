"""What the job is about: payments, rules, aggregations and alerts. No logic, so that the reference may know it, too."""

from __future__ import annotations

from typing import NamedTuple


class Payment(NamedTuple):
    """From an account to a merchant.

    Attributes:
        payment: Its number, which no other has.
        time_ms: When it was made, milliseconds since 1970.
        cents: More than 0.
    """

    account: str
    payment: int
    merchant: str
    time_ms: int
    cents: int


class Rule(NamedTuple):
    """What is small and what is large, for payments from `since_ms` on, until the next rule's; of two with the same
    `since_ms`, the one with the higher number is in force. There was nothing small or large before the first.

    Attributes:
        small_cents: At most so much is small.
        large_cents: At least so much is large; more than small_cents.
    """

    rule: int
    since_ms: int
    small_cents: int
    large_cents: int


class Aggregation(NamedTuple):
    """What is added up, for payments in [since_ms, until_ms).

    Attributes:
        by: "account" or "merchant".
        window_ms: The length of its windows, which begin at multiples of it since 1970.
        until_ms: None: it goes on.
    """

    aggregation: str
    by: str
    window_ms: int
    since_ms: int
    until_ms: int | None


class Alert(NamedTuple):
    """A large payment that followed a small one of the account within a minute."""

    account: str
    payment: int
    time_ms: int
    cents: int


class Spent(NamedTuple):
    """What an account has spent since ever."""

    payments: int
    cents: int


class Total(NamedTuple):
    """What an aggregation amounts to in one of its windows."""

    spent_cents: int
    payments: int
    highest_cents: int
