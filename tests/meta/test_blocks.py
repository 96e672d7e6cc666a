"""Every block of code in README and docs is run by a test, is checked as what it is, or stands here with the reason why
it is not.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable

import jsonschema
import yaml

from tests.meta.test_snippets import RUN as RUN_PYTHON
from tests.support.shell_words import refused
from tests.support.snippets import INDENTED, ROOT, Block, blocks_of, commands

PAGES = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/*.md"))]
BLOCKS = [block for page in PAGES for block in blocks_of(page)]

RUN = {
    **{(page, "python"): test for page, test in RUN_PYTHON.items()},
    ("docs/updates.md", "json"): "tests/unit/test_documented_updates.py",
}
"""By page and language, the test that runs all of these blocks."""

_FIRST_STATE = "tests/processes/test_first_state.py"
_FEEDS = "tests/spark/test_documented_feeds.py"
_HTTP = "tests/rpc/test_documented_http.py"
_SIZE = "tests/unit/test_size.py"

RUN_ALONE = {
    ("README.md", "uv run --no-dev keyhole new ~/shop"): _FIRST_STATE,
    ("README.md", "uv run keyhole get shop/totals c1"): _FIRST_STATE,
    ("docs/clients.md", "curl http://proxy:7402/openapi.json"): _HTTP,
    ("docs/clients.md", 'const answer = await fetch("http://proxy:7402/v1/shop/totals/c1?integers=text", {'): _HTTP,
    (
        "docs/clients.md",
        """grpcurl -plaintext -d '{"state": {"application": "temperature-monitor", "state": "sensors"},""",
    ): _HTTP,
    (
        "docs/compose.md",
        "export KEYHOLE_JOB_SERVERS=127.0.0.1:7410 KEYHOLE_JOB_BOOTSTRAP_SERVERS=127.0.0.1:9094",
    ): _FEEDS,
    ("docs/first-state.md", "uv run --no-dev keyhole new ~/shop"): _FIRST_STATE,
    (
        "docs/first-state.md",
        """echo '{"customer": "c1", "product": "cake", "amount": 21.5}' > more.json""",
    ): _FIRST_STATE,
    ("docs/operations.md", "kh() {"): "tests/unit/test_cli_image.py",
    (
        "docs/clients.md",
        "curl 'http://proxy:7402/v1/temperature-monitor/sensors/sensor-42?stale=always&max_staleness=5'",
    ): _HTTP,
    ("docs/clients.md", "curl -i http://localhost:7402/v1/shop/totals/c1"): _HTTP,
    ("docs/sizing.md", "$ keyhole size --keys 100M --updates 1.2M/s --reads 200k/s --standbys 1"): _SIZE,
    ("docs/sizing.md", "$ keyhole size --keys 100M --updates 1.2M/s --reads 200k/s --store rocksdb \\"): _SIZE,
    ("docs/sizing.md", "$ keyhole size --keys 7.1M --written-keys 118333 --updates 71M/min --reads 10k/s \\"): _SIZE,
    ("docs/sizing.md", "$ keyhole size --keys 71M --updates 71M/min --reads 10k/s --batch 60"): _SIZE,
    ("docs/stores.md", "[[stores]]"): "tests/unit/test_store_choices.py",
    ("docs/up.md", "keyhole up --topic orders"): _FEEDS,
    ("docs/watch.md", "curl -N 'http://proxy:7402/v1/shop/orders:watch?key=o1&key=o2'"): _HTTP,
}
"""By page and first line, the test that runs the block. Beside these, tests/rpc/test_documented_commands.py runs each
`keyhole` that reads and needs no more than a proxy.
"""

_OTHER_SYSTEM = "another system's, to compare with: its release is not among what tests have"
_BROWSER = "a browser's: tests/processes/test_console_pages.py runs pages in one, and this is not of them"

NOT_RUN = {
    ("docs/watch.md", 'const orders = new EventSource("/v1/shop/orders:watch?snapshot=false");'): _BROWSER,
    (
        "docs/coming-from.md",
        'ValueStateDescriptor<Totals> descriptor = new ValueStateDescriptor<>("totals", Totals.class);',
    ): _OTHER_SYSTEM,
    (
        "docs/coming-from.md",
        'orders.groupByKey().aggregate(Totals::new, Totals::add, Materialized.as("totals"));',
    ): _OTHER_SYSTEM,
    ("docs/coming-from.md", "CREATE TABLE totals AS"): _OTHER_SYSTEM,
}
"""By page and first line, why the block isn't run."""


def _json(block: Block) -> None:
    json.loads(block.code)


def _yaml(block: Block) -> None:
    """Of docs/kubernetes.md the values of the chart, by its schema. tests/chart renders what they are like."""
    values = yaml.safe_load(block.code)
    assert isinstance(values, dict)
    if values.keys() - {"spec", "scrape_configs"}:
        schema = json.loads((ROOT / "charts/keyhole/values.schema.json").read_text())
        jsonschema.validate(values, schema)


def _toml(block: Block) -> None:
    tomllib.loads(block.code)


def _properties(block: Block) -> None:
    assert all(re.fullmatch(r"[a-z]+(\.[a-z]+)+=\S+", line) for line in block.code.splitlines())


def _dockerfile(block: Block) -> None:
    """It begins with an image that there is."""
    (image,) = re.findall(r"^FROM keyhole/([\w-]+):", block.code)
    assert f" AS {image}\n" in (ROOT / "Dockerfile").read_text()
    assert {line.split()[0] for line in block.code.splitlines()} <= {"FROM", "COPY", "ENV", "RUN", "USER"}


def _shell(block: Block) -> None:
    """tests/support/shell_words.py says what is known of a command without running it."""
    assert [fault for command in commands(block.code) for fault in refused(command)] == []


def _picture(block: Block) -> None:
    """What draws it is no part of the tests; the site's build shows it."""
    assert block.first.split()[0] in ("sequenceDiagram", "flowchart", "graph", "stateDiagram-v2")


def _text(block: Block) -> None:
    """Is no code: bytes, names of files, addresses, and what programs print."""


def _sql(block: Block) -> None:
    import duckdb

    assert len(duckdb.extract_statements(block.code)) == 1


CHECKED: dict[str, Callable[[Block], None]] = {
    "bash": _shell,
    "dockerfile": _dockerfile,
    INDENTED: _shell,
    "json": _json,
    "mermaid": _picture,
    "properties": _properties,
    "sh": _shell,
    "sql": _sql,
    "text": _text,
    "toml": _toml,
    "yaml": _yaml,
}
"""By language, what looks at each block that no test runs."""


def _name(block: Block) -> tuple[str, str]:
    """Its page, and its first line without what a shell takes for a comment."""
    return block.page, re.sub(r"\s+# .*$", "", block.first)


def _runs_alone(block: Block) -> bool:
    """Whether a test runs it, and it is no list of commands: of these one may be new."""
    listed = block.language in (INDENTED, "sh") and not block.first.startswith("$ ")
    return _name(block) in RUN_ALONE and not listed


def test_every_block_runs_is_checked_or_is_named_with_the_reason() -> None:
    known = Counter(map(_name, BLOCKS))
    assert not [one for one in (*NOT_RUN, *RUN_ALONE) if known[one] != 1], "these are on no page any more, or twice"
    unknown, wrong = [], {}
    for block in BLOCKS:
        if _name(block) in NOT_RUN or (block.page, block.language) in RUN or _runs_alone(block):
            continue
        check = CHECKED.get(block.language)
        if check is None:
            unknown.append(f"{block.page}:{block.line}: {block.language}: {block.first}")
            continue
        try:
            check(block)
        except Exception as error:  # noqa: BLE001 - whatever a parser raises
            wrong[f"{block.page}:{block.line}"] = f"{type(error).__name__}: {error}"
    assert unknown == [], "have a test run these, or say in NOT_RUN why none does"
    assert wrong == {}


def test_what_is_said_to_run_is_there_and_its_test_names_the_page() -> None:
    shown = {(block.page, block.language) for block in BLOCKS}
    for (page, language), test in RUN.items():
        assert (page, language) in shown or page not in PAGES
        assert page.rpartition("/")[2] in (ROOT / test).read_text(), (page, test)
    assert not RUN_ALONE.keys() & NOT_RUN.keys()
    for (page, first), test in RUN_ALONE.items():
        assert page.rpartition("/")[2] in (ROOT / test).read_text(), (page, first, test)


def test_what_is_wrong_in_a_block_of_a_shell_is_found() -> None:
    for wrong in (
        "keyhole gte shop/totals c1",
        "uv run keyhole get shop/totals --no-such-option c1",
        "docker build --target no-such-target -t keyhole/x:0.1.0 .",
        "KEYHOLE_NO_SUCH_SETTING=1",
        "pip install '.[no-such-extra]'",
        "uv run python docs/no_such_file.py",
        "uv run python -m benchmarks.no_such_module",
        "helm install keyhole charts/no-such-chart",
        "no-such-program --help",
        'eval "$(keyhole no-such-command)"',
    ):
        assert refused(wrong), wrong
    for right in (
        'eval "$(uv run keyhole env)" && curl "$KEYHOLE_HTTP/v1/shop/totals/c1"',
        "keyhole scan weather/sensors --where 'max > 30' --where 'city in Bern,Basel' --fields max,city",
        "KEYHOLE_JOB_DRIVER_GROUP=orders python job.py",
    ):
        assert refused(right) == [], right
