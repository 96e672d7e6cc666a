"""The root of all errors, and the one of a bug."""

from __future__ import annotations

from typing import ClassVar


class KeyholeError(Exception):
    """The root. `reason` is the name in the proto's enum Reason without its prefix; `code` a gRPC status code's name.

    Args:
        message: What is wrong and what to do about it. No key, no value.
        facts: The same facts by name, for programs; carried over the wire.
    """

    reason: ClassVar[str] = "INTERNAL"
    code: ClassVar[str] = "INTERNAL"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.facts = {name: str(value) for name, value in facts.items()}

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process boundaries (a Spark task's to its driver): keep the facts.
        return _rebuild, (type(self), self.message, self.facts)


def _rebuild(kind: type[KeyholeError], message: str, facts: dict[str, str]) -> KeyholeError:
    return kind(message, **facts)


class InternalError(KeyholeError):
    """A bug of Keyhole's. Report it; there is nothing that a caller could do about it."""
