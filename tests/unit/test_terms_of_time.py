"""Committed, as of and age mean what docs/reads-reference.md says of them, wherever an answer's times are told."""

from __future__ import annotations

import pytest

from keyhole import Client
from keyhole.cli.reads import Bounds, OutputFormat
from keyhole.cli.scan_command import Range, WantedEntries, scan
from keyhole.metrics.catalogue import CATALOGUE
from keyhole.terminal.fitting import title_of
from keyhole.terminal.tables import as_said
from keyhole.testing.fake_server import FakeServer
from keyhole.testing.served_states import ServedStates
from tests.support.waiting import LONG_SECONDS


@pytest.mark.parametrize(("name", "said"), [("commit_age_seconds", "committed"), ("staleness_seconds", "age")])
def test_a_time_is_called_alike_in_every_table(name: str, said: str) -> None:
    assert title_of(name) == said
    assert list(as_said({name: 1.0})) == [said]


def test_a_metric_of_a_commit_says_when_it_was_and_not_the_age_of_what_readers_get() -> None:
    helps = {metric.name: metric.help for metric in CATALOGUE if "commit_age" in metric.name}
    assert len(helps) >= 3
    assert {name: text for name, text in helps.items() if "committed" not in text or "Age" in text} == {}


@pytest.mark.parametrize("aggregate", [(), ("count",)])
def test_a_scan_of_all_keys_before_the_first_epoch_does_not_read_as_if_there_were_none(
    aggregate: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with ServedStates() as served, Client(served.address, timeout=LONG_SECONDS) as client:
        served.write("shop/totals", [{"customer": "c1", "spent": 1.0}], key="customer")

        def printed(**within: str) -> str:
            of = Range(None, None, descending=False, limit=None, **within)
            scan(
                client,
                OutputFormat(as_json=False),
                "shop/totals",
                None,
                of,
                Bounds(),
                WantedEntries(aggregate=aggregate),
            )
            return capsys.readouterr().err

        assert printed(prefix="z") == ""
        served._run(lambda: _begun(served._server))
        assert "epoch 0: no epoch is complete yet" in printed(prefix="z")


def _begun(server: FakeServer) -> None:
    """The state is declared, and has no epoch."""
    (state,) = server.states.values()
    state.epoch = 0
