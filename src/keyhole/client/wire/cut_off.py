"""Which reads are sent again, and the error of a read that was sent again in vain. Pure."""

from __future__ import annotations

from keyhole.errors import DeadlineExceeded, Draining, KeyholeError, ServerLost


def is_cut_off(error: KeyholeError) -> bool:
    """Whether what it ended may be sent again: whoever was asked is gone, or goes. A read changes nothing.

    All else is an answer: a refusal stays one, what a proxy has tried until the deadline needs no second one, and who
    is overloaded is not asked for more.
    """
    return isinstance(error, (ServerLost, Draining))


def error_for_caller(error: KeyholeError, attempts: int, before: KeyholeError | None) -> KeyholeError:
    """What a caller gets who has no answer; an object of its own, where it differs.

    Args:
        attempts: How often the read was sent.
        before: What cut it off before this; None: nothing.
    """
    if is_cut_off(error):
        also = f"; sent {_times(attempts)}" if attempts else ""
        facts = {"attempts": str(attempts)}
    elif isinstance(error, DeadlineExceeded) and before is not None:
        also = f"; sent {_times(attempts)}, and cut off before because {before.message}"
        facts = {"attempts": str(attempts), "cause": before.reason}
    else:
        return error
    copy = type(error)(error.message + also)
    copy.facts = error.facts | facts
    copy.__cause__ = error.__cause__
    return copy


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
