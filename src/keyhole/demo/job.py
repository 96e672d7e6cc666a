"""`keyhole job NAME`: a job on embedded defaults, and a live table of its states."""

from __future__ import annotations

from datetime import UTC, datetime

from rich.console import RenderableType
from rich.table import Table

from keyhole import Answer, Client
from keyhole.client.server_status import StateHolding
from keyhole.demo.described_jobs import described
from keyhole.demo.runner import RunOptions, run_locally
from keyhole.errors import KeyholeError
from keyhole.local.stack import Stack
from keyhole.terminal.tables import age


def run_job(name: str, options: RunOptions) -> int:
    """Runs a job and all that it needs on this machine, until it is stopped; see `run_locally`."""
    job = described(name)
    return run_locally(job, StatesTable(job.application), options)


class StatesTable:
    """The runner's LiveView: how many entries each state has, and of which epoch they are."""

    def __init__(self, application: str) -> None:
        self._application = application
        self._holdings: list[StateHolding] = []
        self._trouble = ""

    def note(self, probe: Answer) -> None:
        """Nothing is shown of it."""

    def update(self, client: Client) -> None:
        held = [holding for server in client.status() for holding in server.holdings]
        mine = [holding for holding in held if holding.descriptor.application == self._application]
        self._holdings = sorted(mine, key=lambda holding: (holding.descriptor.state, holding.server))
        self._trouble = ""

    def fail(self, error: KeyholeError) -> None:
        self._trouble = f"no answers now: {error.reason}"

    def render(self) -> RenderableType:
        table = Table(title=self._application, title_justify="left")
        table.caption, table.caption_justify = self._trouble or None, "left"
        table.add_column("state")
        table.add_column("kind")
        for name in ("entries", "epoch", "age"):
            table.add_column(name, justify="right")
        table.add_column("server")
        now = datetime.now(UTC)
        for holding in self._holdings:
            source = holding.source
            of = holding.descriptor
            entries, epoch = f"{holding.entries:,}", str(source.epoch)
            table.add_row(of.state, str(of.kind), entries, epoch, age(source, now), holding.server)
        return table

    def result(self, stack: Stack) -> dict[str, object]:
        return {"application": self._application}
