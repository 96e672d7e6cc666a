"""What the job is about: payments, rules, aggregations and alerts. No logic, so that the reference may know it, too."""

from __future__ import annotations

from typing import NamedTuple

FIELDS = ("account", "payment", "merchant", "time", "cents", "fee")
"""Of a payment's record, in the order of Payment's: an aggregation is by some of them, or by none."""
AMOUNTS = ("cents", "fee")
"""Those that are added up. A sum of times, or of numbers of payments, would be none, and too large at that."""


class Payment(NamedTuple):
    """From an account to a merchant.

    Attributes:
        payment: Its number, which no other has.
        time_ms: When it was made, milliseconds since 1970.
        cents: More than 0.
        fee_cents: What the merchant pays for it.
    """

    account: str
    payment: int
    merchant: str
    time_ms: int
    cents: int
    fee_cents: int = 0


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
        by: Fields of the payment, separated by commas: there is a total for each of their values. "": one for all.
        window_ms: The length of its windows, which begin at multiples of it since 1970.
        until_ms: None: it goes on.
        of: The field that is added up.
    """

    aggregation: str
    by: str
    window_ms: int
    since_ms: int
    until_ms: int | None
    of: str = "cents"


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
    """What an aggregation amounts to in one of its windows: of the field that is added up, if another than cents."""

    spent_cents: int
    payments: int
    highest_cents: int
