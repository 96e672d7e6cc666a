"""Writes docs/metrics.md from the catalogue, docs/errors.md, cli.md and grpc.md, and what lists all jobs.

`uv run python docs/generate.py`; tests/meta checks that they are current.
"""

from pathlib import Path

from keyhole.metrics.catalogue import CATALOGUE
from keyhole.metrics.labels import LABELS
from keyhole.metrics.metric import Component, Metric

PAGE = Path(__file__).resolve().parent / "metrics.md"

_TITLES = {
    Component.STATE_SERVER: ("State server", "Under `Stats` and on its own /metrics; and by the exporter."),
    Component.CLIENT_PROXY: ("Client proxy", "Under `Stats` and on its own /metrics; and by the exporter."),
    Component.JOB: ("Job", "Under `Stats` of the Spark driver and on its own /metrics; and by the exporter."),
    Component.EXPORTER: ("Exporter", "By the exporter alone."),
}

_INTRODUCTION = """# Metrics

Reference, for operators: every metric, its type, unit and labels, and where it is exposed. The page is made from
`src/keyhole/metrics/catalogue.py` by `uv run python docs/generate.py`: don't edit it.

State servers, client proxies and jobs answer `keyhole.v1.Stats`, on their gRPC ports (a job: where `KEYHOLE_JOB_STATS`
says). The metrics exporter asks them all every few seconds. On its /metrics (port 7420) it exposes their figures, and
those that only show from all of them together. A service has a /metrics of its own where its setting `..._METRICS`
gives it an address. It shows the same figures as the exporter does, so let Prometheus scrape one of the two: sums would
count them twice.

Grafana dashboards and alerts that are made of these are in the chart; [operations](operations.md#dashboards-and-alerts)
says what to do when one fires.

Counters begin at 0 with the process. A client proxy of several processes gives the figures of all of them, each under
its own name; a state server gives the sums over its reader processes. The exporter's of a job go on with what its
ended processes had counted, until none has answered for 5 minutes. A metric of which nothing is known yet is left out.
The labels `application` and `state` are `other` beyond the bound; there, times are the oldest and counts are sums.

Of which release of the chart a series is, Prometheus says: `namespace` and `keyhole_release` are
[set where it scrapes](operations.md#several-releases-in-one-prometheus).

"""


def page() -> str:
    """docs/metrics.md as Markdown: labels, then a table of each process's metrics."""
    parts = [_INTRODUCTION, "| label | is | how many values |\n|---|---|---|\n"]
    parts += [f"| `{name}` | {label.meaning} | {label.text} |\n" for name, label in LABELS.items()]
    for component, (title, exposed) in _TITLES.items():
        parts.append(f"\n## {title}\n\n{exposed}\n\n| metric | type | unit | labels | |\n|---|---|---|---|---|\n")
        parts += [_row(metric) for metric in CATALOGUE if metric.component is component]
    histograms = [metric for metric in CATALOGUE if metric.buckets]
    parts.append("\n## Buckets\n\n| histogram | upper bounds |\n|---|---|\n")
    parts += [f"| `{one.name}` | {', '.join(f'{bound:g}' for bound in one.buckets)} |\n" for one in histograms]
    return "".join(parts)


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.type} | {metric.unit} | {labels} | {metric.help} |\n"


if __name__ == "__main__":
    import cli_page
    import errors_page
    import grpc_page
    import job_lists

    PAGE.write_text(page())
    (PAGE.parent / "errors.md").write_text(errors_page.page())
    (PAGE.parent / "cli.md").write_text(cli_page.page())
    (PAGE.parent / "grpc.md").write_text(grpc_page.page())
    job_lists.DEMO.write_text(job_lists.demo_page(job_lists.DEMO.read_text()))
    job_lists.SCENARIO.write_text(job_lists.scenario())
