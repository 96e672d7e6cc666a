"""What lists all jobs, made of their descriptions: the table in docs/demo.md, and the chart's scenario of every job.

`uv run python docs/generate.py` writes both; tests/meta/test_job_lists.py checks that they are current.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from keyhole.demo.described_jobs import JobDescription, described, job_names

_ROOT = Path(__file__).resolve().parents[1]
DEMO = _ROOT / "docs" / "demo.md"
SCENARIO = _ROOT / "charts" / "keyhole" / "ci" / "every-job-values.yaml"

_BEGIN, _END = "<!-- made of jobs/*/description.py by docs/generate.py: begin -->", "<!-- end -->"
_CHECKPOINTS = "/var/lib/keyhole/checkpoint"
_OF_ALL = """\
# Every job that there is, with its source: what each must be given.
# Made of jobs/*/description.py by `uv run python docs/generate.py`: don't edit it.
kafka: {enabled: true}
clientProxy: {replicas: 1}
jobDefaults:
  # One executor each, which asks for little: so many jobs are much for two cores.
  executors: {instances: 1, cpuRequest: 50m}
jobs:
"""


def demo_page(page: str) -> str:
    """The page with the table of the jobs as it should be now."""
    head, _, rest = page.partition(_BEGIN)
    _, _, tail = rest.partition(_END)
    return f"{head}{_BEGIN}\n\n{table()}\n{_END}{tail}"


def table() -> str:
    """A row of each job."""
    rows = (f"| [{of.name}](../jobs/{of.name}/README.md) | {of.shows} | {_code(of.states)} |\n" for of in _jobs())
    return "".join(["| job | what it shows | its states |\n|---|---|---|\n", *rows])


def scenario() -> str:
    """The chart's values for all jobs."""
    return _OF_ALL + "".join(map(_in_the_chart, _jobs()))


def _jobs() -> Iterable[JobDescription]:
    return map(described, job_names())


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _in_the_chart(job: JobDescription) -> str:
    topics = {"topic": job.topic, **{setting.lower(): topic for setting, topic in job.more_topics.items()}}
    # Executors have no other folder that all of them share.
    files = {job.files.lower(): f"{_CHECKPOINTS}/{job.application}-files"} if job.files else {}
    return f"""\
  - name: {job.application}
    checkpoint: {{claim: {{size: {job.claim}}}}}
    settings: {_flow(topics | files)}
    source:
      enabled: true
      settingsPrefix: {job.source_prefix}
      settings: {_flow(topics | job.light_load)}
"""


def _flow(settings: Mapping[str, str | int]) -> str:
    return f"{{{', '.join(f'{name}: {value}' for name, value in settings.items())}}}"
