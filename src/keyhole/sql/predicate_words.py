"""A predicate as a person reads it: `spent > 100 and city in (Bern, Basel)`. Pure."""

from __future__ import annotations

from keyhole.model.predicates import And, Comparison, IsNull, Not, OneOf, Or, Predicate


def in_words(predicate: Predicate) -> str:
    """In the order of its parts; values as Python shows them."""
    match predicate:
        case Comparison(path, operator, value):
            return f"{path} {operator.value} {value!r}"
        case OneOf(path, values):
            return f"{path} in ({', '.join(map(repr, values))})"
        case IsNull(path):
            return f"{path} is null"
        case Not(IsNull(path)):
            return f"{path} is not null"
        case Not(part):
            return f"not ({in_words(part)})"
        case And(parts):
            return " and ".join(map(_within, parts))
        case Or(parts):
            return " or ".join(map(_within, parts))
    return repr(predicate)


def _within(part: Predicate) -> str:
    return f"({in_words(part)})" if isinstance(part, (And, Or)) else in_words(part)
