"""One test of many things of a kind, for what takes microseconds: pytest's own part of a test takes milliseconds, so
that hundreds of such cases by `parametrize` are seconds of each run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

Test = Callable[..., None]


def of_all(
    cases: Iterable[Any], name: Callable[[Any], str] = str
) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Has a test called with each case in turn, a tuple as its arguments. It fails by an ExceptionGroup that has what
    each failed case raised, with the case's name as a note. Without any case it fails, too.
    """
    known = list(cases)

    def decorated(test: Test) -> Callable[[], None]:
        def run() -> None:
            assert known, "there is no case"
            failed = []
            for case in known:
                try:
                    test(*case) if type(case) is tuple else test(case)
                except Exception as error:  # noqa: BLE001 - whatever it is, the others have their turn, and it is raised
                    error.add_note(f"case: {name(case)}")
                    failed.append(error)
            if failed:
                raise ExceptionGroup(f"{len(failed)} of {len(known)} cases failed", failed)

        run.__name__, run.__qualname__, run.__module__ = test.__name__, test.__qualname__, test.__module__
        run.__doc__ = test.__doc__
        return run

    return decorated
