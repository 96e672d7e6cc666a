"""A state's name in one word, as people write it: APPLICATION/STATE."""

from __future__ import annotations

from keyhole.errors import InvalidConfiguration


def state_path(text: str) -> tuple[str, str]:
    """The application and the state in APPLICATION/STATE. Raises InvalidConfiguration where it is not of that form."""
    if not isinstance(text, str):
        raise InvalidConfiguration(f"a {type(text).__name__} names no state; write APPLICATION/STATE, as a str")
    application, slash, state = text.partition("/")
    if not (application and slash and state):
        raise InvalidConfiguration(f"{text!r} names no state; write APPLICATION/STATE, as `keyhole states` lists them")
    return application, state
