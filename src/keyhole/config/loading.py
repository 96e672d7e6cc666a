"""From `KEYHOLE_*` variables to a configuration: what is unknown, malformed or can't be is refused by its name."""

from __future__ import annotations

import dataclasses
import math
import os
import types
import typing
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from keyhole.config.deployables import (
    LEAST,
    MOST,
    CliConfig,
    ClientProxyConfig,
    JobConfig,
    KafkaConfig,
    MetricsExporterConfig,
    StateServerConfig,
)
from keyhole.config.jobs import CLUSTER, LOCAL, SourceConfig, TopicJobConfig
from keyhole.config.spelling import with_the_nearest
from keyhole.errors import InvalidConfiguration
from keyhole.model.names import TOPIC_NAME
from keyhole.security.security_settings import CallerSettings

_LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")

_MAX_PORT = 65_535
_CHOICES = {
    "_LOG_LEVEL": _LOG_LEVELS,
    "_TLS": ("off", "on"),
    "_TLS_CLIENT_CERTIFICATES": ("required", "off"),
    "_PLAINTEXT": ("allow",),
    "_CONSOLE": ("on", "off"),
}
_Kind = type[CallerSettings | TopicJobConfig | SourceConfig | KafkaConfig]
# Of the library. A job's own are known to its processes.
_KINDS: tuple[_Kind, ...] = (
    CliConfig,
    StateServerConfig,
    ClientProxyConfig,
    MetricsExporterConfig,
    JobConfig,
    KafkaConfig,
)
_Config = TypeVar("_Config", bound=CallerSettings | TopicJobConfig | SourceConfig | KafkaConfig)


def load(kind: type[_Config], environ: Mapping[str, str], beside: Iterable[_Kind] = (), **overrides: object) -> _Config:
    """Reads a configuration; `overrides` (from a command line) come before the environment, None counts as absent.

    Args:
        beside: Kinds whose names may be set as well, beside those of `kind` and of the library: a job's and its
            source's. A misspelt one of theirs is refused.

    Raises:
        InvalidConfiguration: A name with the prefix of a kind that is known, and which none of them has; a missing or a
            malformed value. The message names the variable.
    """
    _refuse_unknown(environ, {*_KINDS, kind, *beside})
    hints = typing.get_type_hints(kind)
    # The values are checked one by one against the hints; the type checker can't follow that through **values.
    values: dict[str, Any] = {}
    missing = []
    for item in dataclasses.fields(kind):
        variable = kind.PREFIX + item.name.upper()
        if overrides.get(item.name) is not None:
            values[item.name] = overrides[item.name]
        elif variable in environ:
            values[item.name] = _parse(variable, environ[variable], hints[item.name])
            _refuse_impossible(variable, environ[variable], values[item.name], item)
        elif item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
            missing.append(variable)
    if missing:
        are = "is not set; it has" if len(missing) == 1 else "are not set; they have"
        raise InvalidConfiguration(
            f"{', '.join(missing)} {are} no default (docs/configuration.md)", variable=missing[0]
        )
    _refuse_one_topic_twice(kind, values)
    return kind(**values)


def job_config() -> JobConfig:
    """The configuration of the streaming job in this process. Raises as `load`."""
    return load(JobConfig, os.environ)


def _refuse_unknown(environ: Mapping[str, str], kinds: Collection[type[Any]]) -> None:
    known = {kind.PREFIX + item.name.upper() for kind in kinds for item in dataclasses.fields(kind)}
    prefixes = tuple(kind.PREFIX for kind in kinds)
    unknown = sorted(name for name in environ if name.startswith(prefixes) and name not in known)
    if unknown:
        names = "; ".join(with_the_nearest(name, known) for name in unknown)
        raise InvalidConfiguration(
            f"unknown setting {names}. All settings are in docs/configuration.md", unknown=unknown
        )


def _refuse_impossible(variable: str, text: str, value: object, of: dataclasses.Field[Any]) -> None:
    """What a value must be follows from its name and its type, alike for every deployable; and from its field."""
    wanted = ""
    # 0 is what a number that is no cap by default says itself.
    least, most = of.metadata.get(LEAST, int(of.default != 0)), of.metadata.get(MOST, math.inf)
    choices = next((choices for end, choices in _CHOICES.items() if variable.endswith(end)), ())
    if choices and value not in choices:
        wanted = f"one of {', '.join(choices)}"
    elif variable.endswith("_SPARK") and value not in (LOCAL, CLUSTER):
        wanted = f"{LOCAL} or {CLUSTER}"
    elif isinstance(value, Path) and "://" in text:
        wanted = "a path of this machine's files, where a volume may be mounted: an object store is none"
    elif variable.endswith("_SERVERS") and not value:
        wanted = "host:port, or several separated by commas"
    elif isinstance(value, float):
        wanted = _wanted_of_a_number_with_a_point(value, of.metadata.get(LEAST, 0), most)
    elif isinstance(value, str) and variable.endswith("_TOPIC") and not TOPIC_NAME.fullmatch(value):
        wanted = "a topic's name: letters, digits, '.', '_' and '-', at most 249"
    elif not text.strip() and of.default is dataclasses.MISSING and of.default_factory is dataclasses.MISSING:
        wanted = "said: it has no default (docs/configuration.md)"
    elif isinstance(value, int) and variable.endswith("_PORT") and not 0 <= value <= _MAX_PORT:
        wanted = f"a port from 0 (any free one) to {_MAX_PORT}"
    elif isinstance(value, int) and not variable.endswith("_PORT") and not least <= value <= most:
        wanted = f"{least} or more" if most == math.inf else f"from {least} to {most}"
    if wanted:
        raise InvalidConfiguration(f"{variable} is {text!r}; it must be {wanted}", variable=variable)


def _wanted_of_a_number_with_a_point(value: float, least: float, most: float) -> str:
    if math.isfinite(value) and (value == 0 or least <= value <= most):
        return ""
    if least:
        return f"0, or from {least:g} to {most:g}"
    return "0 or more, and finite" if most == math.inf else f"from 0 to {most:g}"


def _refuse_one_topic_twice(kind: type[Any], values: Mapping[str, Any]) -> None:
    """Each has records of its own kind: those of another one would all be dead letters."""
    named: dict[str, str] = {}
    for name, topic in values.items():
        if name != "topic" and not name.endswith("_topic"):
            continue
        variable = kind.PREFIX + name.upper()
        if (other := named.setdefault(topic, variable)) != variable:
            raise InvalidConfiguration(
                f"{other} and {variable} are both {topic!r}; each must be a topic of its own", variable=variable
            )


def _parse(variable: str, text: str, hint: object) -> object:
    if isinstance(hint, types.GenericAlias):  # tuple[str, ...]
        return tuple(part.strip() for part in text.split(",") if part.strip())
    try:
        if hint is int:
            return int(text)
        if hint is float:
            return float(text)
        if hint is Path or hint is str:
            return hint(text)
    except ValueError as error:
        raise InvalidConfiguration(
            f"{variable} is {text!r}; it must be {'a whole number' if hint is int else 'a number'}", variable=variable
        ) from error
    raise TypeError(f"no parser for {hint}")
