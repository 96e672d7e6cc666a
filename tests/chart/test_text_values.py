"""Texts among the values stay texts, whatever YAML would take them for without quotes: `on`, `null`, `1e3`, `0x10`."""

from __future__ import annotations

import copy
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.support.chart import CHART, OPERATOR, rendered_text

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())

# Each contradicts something else where it is given.
EMPTY = {"jobDefaults.checkpoint", "jobDefaults.stateServer.store", "kafka.clientSecret"}
# Each pattern of the schema takes one of these, or needs more than a word.
WORDS = ("null", "on", "yes", "no", "y", "true", "off", "n", "false", "on-1", "null-1", "yes-1")
# What is a switch to Kubernetes itself.
SWITCHES = {
    *("allowPrivilegeEscalation", "automountServiceAccountToken", "enableServiceLinks", "honorLabels"),
    *("publishNotReadyAddresses", "readOnly", "readOnlyRootFilesystem", "runAsNonRoot"),
}
# Of nothing else in the chart, so that it is found again.
NUMBER = "1e{}"
# What is no YAML without quotes.
MARKS = "mark{}: \"'#{{[*&!%@`>\\|é"

JOBS: list[dict[str, Any]] = [
    {"name": "", "application": "", "checkpoint": {"claim": {"existingClaim": ""}}, "tokenSecretName": ""},
    {"name": "", "application": "", "checkpoint": {"url": "s3a://a/b"}, "driver": {"standby": True}},
    {
        "name": "",
        "application": "",
        "checkpoint": {"claim": {"size": "1Gi", "storageClassName": ""}},
        "stateServer": {"store": {"volume": "persistentClaim", "size": "1Gi", "storageClassName": ""}},
    },
]
FEEDS: list[dict[str, Any]] = [
    {"name": "", "state": "a/b", "topic": "", "key": [""], "value": [""], "orderBy": "", "format": "avro"}
    | {"registry": "", "registrySecret": ""},
    {"name": "", "state": "c/d", "topic": "", "key": [""], "reduce": ["amount=sum"], "mapKey": [""]},
]
SECURITY = {"tls": {"enabled": True}, "access": {"jwks": "https://a/b"}}
CLAIM = {"volume": "persistentClaim", "size": "1Gi", "storageClassName": ""}

WORLDS: dict[str, dict[str, Any]] = {
    "all of it": {
        "image": {"pullSecrets": [""]},
        "kafka": {"bootstrapServers": "kafka:9092"},
        "security": SECURITY,
        "jobDefaults": {
            "source": {"enabled": True, "settingsPrefix": "KEYHOLE_A_"},
            "test": dict.fromkeys(("topic", "record", "state", "key", "field", "value"), ""),
        },
        "jobs": JOBS,
        "feeds": FEEDS,
        "replica": {"enabled": True, "store": CLAIM},
        "stateServers": {"enabled": True, "store": CLAIM},
        "networkPolicy": {"enabled": True},
        "monitoring": {name: {"enabled": True} for name in ("monitors", "alerts")},
    },
    "Kafka and servers of its own alone": {
        "kafka": {"enabled": True, "persistence": {"size": "1Gi", "storageClassName": ""}},
        "discovery": {"kind": "dns"},
        "security": SECURITY,
        "feeds": FEEDS[1:],
        "replica": {"enabled": True, "applications": ["", ""], "store": CLAIM},
    },
}


class _LikeKubernetes(yaml.SafeLoader):
    """Takes for no text what Kubernetes' reader takes for none, beside what Python's does."""


for _tag, _pattern in {"float": r"[-+]?[0-9][0-9.]*[eE][-+]?[0-9]+", "bool": "[yYnN]"}.items():
    _LikeKubernetes.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"^{_pattern}$"), list("+-0123456789yYnN")
    )
_LikeKubernetes.add_constructor("tag:yaml.org,2002:bool", lambda loader, node: node.value in ("y", "yes", "true", "on"))


def _merged(values: Any, more: Any) -> Any:
    if isinstance(values, dict) and isinstance(more, dict):
        return {name: _merged(values.get(name), more[name]) if name in more else values[name] for name in values | more}
    return copy.deepcopy(more)


class _Filled:
    """Values with something in each text that may be one, and in each map whose names are free."""

    def __init__(self, *, marks: bool) -> None:
        self._marks = marks
        self._numbers = itertools.count(100)
        self._words = itertools.cycle(WORDS)
        self.texts: list[str] = []

    def of(self, schema: dict[str, Any], value: Any, path: str = "") -> Any:
        if path in EMPTY:
            return value
        if "$ref" in schema:
            schema = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]
        if isinstance(value, list):
            return [self.of(schema.get("items", {}), below) for below in value]
        if isinstance(value, dict) and "properties" in schema:
            inside = f"{path}." if path else ""
            return {name: self.of(schema["properties"][name], below, inside + name) for name, below in value.items()}
        if isinstance(value, dict) and isinstance(schema.get("additionalProperties"), dict):
            named = schema.get("propertyNames", {"pattern": ""})
            prefix = "spark." if "spark" in named["pattern"] else ""
            return value | {f"{prefix}{name}": self._text(schema["additionalProperties"]) for name in ("on", "null")}
        kinds = schema.get("type", ())
        if (
            isinstance(value, str)
            and (kinds == "string" or "boolean" in kinds)
            and "enum" not in schema
            and value in ("", "{id}")
        ):
            return self._text(schema) or value
        return value

    def _text(self, schema: dict[str, Any]) -> str:
        """Empty: it takes none of these."""
        pattern = schema.get("pattern", "")
        number = next(self._numbers)
        first = [MARKS.format(number)] if self._marks and not pattern else []
        # In turn, as names must differ.
        for text in itertools.chain(first, [NUMBER.format(number)], itertools.islice(self._words, len(WORDS))):
            if re.search(pattern, text):
                self.texts.append(text)
                return text
        return ""


def _scalars(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """All that stands in it, with its place; names, too."""
    if isinstance(value, dict):
        for name, below in value.items():
            yield f"{path}, a name", name
            yield from _scalars(below, f"{path}.{name}")
    elif isinstance(value, list):
        for number, below in enumerate(value):
            yield from _scalars(below, f"{path}[{number}]")
    elif isinstance(value, str) and path.endswith(".executor-pod.yaml"):
        yield from _scalars(yaml.load(value, _LikeKubernetes), path)
    elif isinstance(value, str) and value.startswith("[{"):
        yield from _scalars(json.loads(value), path)
    else:
        yield path, value


def _rendered(values: dict[str, Any], *, release: str, namespace: str) -> list[tuple[str, Any]]:
    text = rendered_text(values, release=release, namespace=namespace, api=[OPERATOR])
    objects = [of for of in yaml.load_all(text, _LikeKubernetes) if of]
    return [found for of in objects for found in _scalars(of, f"{of['kind']}/{of['metadata']['name']}")]


@pytest.mark.parametrize("world", WORLDS)
def test_a_text_that_looks_like_something_else_is_a_text(world: str) -> None:
    values = _merged(DEFAULTS, WORLDS[world])
    filled = _Filled(marks=False)
    found = _rendered(filled.of(SCHEMA, values), release="1e98", namespace="1e99")
    wrong = [f"{path}: {value!r}" for path, value in found if isinstance(value, float) or value is None]
    wrong += [f"{path}: {value!r}" for path, value in found if path.endswith(", a name") and not isinstance(value, str)]
    switches = {path.rpartition(".")[2] for path, value in found if isinstance(value, bool)}
    assert not wrong + sorted(switches - SWITCHES)


@pytest.mark.parametrize("world", WORLDS)
def test_a_text_with_yaml_s_own_marks_comes_through_whole(world: str) -> None:
    values = _merged(DEFAULTS, WORLDS[world])
    filled = _Filled(marks=True)
    found = [value for _, value in _rendered(filled.of(SCHEMA, values), release="keyhole", namespace="data")]
    parts = [text for text in filled.texts if text.startswith("mark")]
    texts = [value for value in found if isinstance(value, str)]
    begun = {text for text in parts if any(text.partition(":")[0] in value for value in texts)}
    assert len(begun) > 20
    assert not [text for text in begun if not any(text in value for value in texts)]
