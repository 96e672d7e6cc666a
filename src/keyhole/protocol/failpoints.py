"""The steps of an epoch, as seen by an observer. Tests hand one in that kills the process there (keyhole.testing)."""

from __future__ import annotations

import enum
from typing import Protocol


class Step(enum.StrEnum):
    """Where a process can be stopped. The first group is the state server's, the second the driver's.

    DRIVER_STAGED: all is staged, nothing decided. DRIVER_BEFORE_COMMIT: decided, no server has heard of it.
    DRIVER_COMMITTED: all servers have committed, there is no complete record. DRIVER_COMPLETE: there is, and Spark does
    not know it.
    """

    SERVER_BEFORE_STAGE = "server-before-stage"
    SERVER_STAGED = "server-staged"
    SERVER_BEFORE_TRANSACTION = "server-before-transaction"
    SERVER_TRANSACTION_COMMITTED = "server-transaction-committed"
    SERVER_STORE_WRITTEN = "server-store-written"
    SERVER_COMMITTED = "server-committed"

    DRIVER_BEFORE_STAGE = "driver-before-stage"
    DRIVER_STAGED = "driver-staged"
    DRIVER_BEFORE_COMMIT = "driver-before-commit"
    DRIVER_COMMITTED = "driver-committed"
    DRIVER_COMPLETE = "driver-complete"


class StepObserver(Protocol):
    """Called on the thread that takes the step, before the next one begins. May block; must not raise."""

    def reached(self, step: Step, epoch: int) -> None: ...


class NoObserver:
    """Observes nothing: what production uses."""

    def reached(self, step: Step, epoch: int) -> None:
        pass
