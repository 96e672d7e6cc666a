"""What a job says of itself, and which jobs there are: by module name, as the distribution imports no job."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from keyhole.config import SourceConfig, TopicJobConfig
from keyhole.encoding.key_values import KeyValue
from keyhole.errors import InvalidConfiguration
from keyhole.local.job_spec import JobSpec

_JOBS, _DESCRIPTION = "jobs", "description"


@dataclass(frozen=True, kw_only=True)
class JobDescription:
    """A job and its source. The value `JOB` of the module jobs.<name>.description, which imports no Spark.

    Attributes:
        name: The package below `jobs`; it can be run, and has the modules `source` and `verify`.
        application: The job's name where its settings say no other.
        shows: What one learns of it: its row in docs/demo.md, in Markdown.
        settings: Of the job.
        source_settings: Of its source.
        states: That it makes, by name, in order: tests/unit/test_described_states.py compares them with its queries'.
        probe: A state, and any key of it: by its answers it is seen how far the job is.
        example: What a person may type first, after `keyhole `; --proxy is put behind its first word.
        path: What they may ask for over HTTP, behind /v1/.
        topic, partitions: The source's, whose records are counted again.
        more_topics: By the part of a setting's name that names it, for the job and for the source: a topic of rules,
            say, of one partition.
        source_environ: Settings of the source.
        light_load: Settings of the source, in lower case and without the prefix, that have it send as little as a small
            cluster can take beside the other jobs; for the chart's scenario of every job.
        files: The name of the job's setting for where it writes files, if it has one.
        claim: How large the claim for its checkpoint is in that scenario.
        needs: Modules that it can't do without, beside Spark and Kafka.
        source_needs: Modules that its source can't do without, beside the demo's.
        extra: Of keyhole-spark; it brings both.
        runs: A module of the package that is run in its place, if one is.
        verifies: The module of the package that counts again.
        real_time: It is one query in Spark's real-time mode: it makes no epochs, and Spark's batches are logged as they
            end.
    """

    name: str
    application: str
    shows: str
    settings: type[TopicJobConfig]
    source_settings: type[SourceConfig]
    states: tuple[str, ...]
    probe: tuple[str, KeyValue | Sequence[KeyValue]]
    example: str
    path: str
    topic: str
    partitions: int
    more_topics: Mapping[str, str] = field(default_factory=dict)
    source_environ: Mapping[str, str] = field(default_factory=dict)
    light_load: Mapping[str, int] = field(default_factory=lambda: {"rate": 50})
    files: str = ""
    claim: str = "1Gi"
    needs: tuple[str, ...] = ()
    source_needs: tuple[str, ...] = ()
    extra: str = "jobs"
    runs: str = ""
    verifies: str = "verify"
    real_time: bool = False

    @property
    def kinds(self) -> tuple[type[TopicJobConfig], type[SourceConfig]]:
        """All that its processes know beside the library's settings; for keyhole.config.load."""
        return self.settings, self.source_settings

    @property
    def prefix(self) -> str:
        """What the names of the job's settings begin with."""
        return self.settings.PREFIX

    @property
    def source_prefix(self) -> str:
        """What the names of the source's settings begin with."""
        return self.source_settings.PREFIX

    @property
    def module(self) -> str:
        """The package, or its module, that is run."""
        return ".".join(filter(None, (_JOBS, self.name, self.runs)))

    @property
    def verify(self) -> str:
        """The module that counts again."""
        return f"{_JOBS}.{self.name}.{self.verifies}"

    def files_in(self, directory: Path, environ: Mapping[str, str]) -> str:
        """Where the job writes files, if it does: where the caller has them in an object store, else on this disk."""
        given = environ.get(self.prefix + self.files, "") if self.files else ""
        return given if "://" in given else str(directory / "files")

    def given(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The caller's settings of the job, by their names without the prefix."""
        return {name.removeprefix(self.prefix): value for name, value in _given(environ, self.prefix).items()}

    def spec(self, directory: Path, checkpoint: Path, jars: str, environ: Mapping[str, str]) -> JobSpec:
        """What the stack starts.

        Args:
            directory: For what Spark and the job write beside the checkpoint.
            jars: Spark's Kafka connector, separated by commas.
            environ: Of the caller: its settings of this job and of its source are taken, but for those made here.
        """
        ours = {
            "KEYHOLE_JOB_APPLICATION": self.application,
            f"{self.prefix}TOPIC": self.topic,
            f"{self.prefix}CHECKPOINT": str(checkpoint),
            f"{self.prefix}DIRECTORY": str(directory / "spark"),
            f"{self.prefix}JARS": jars,
        }
        of_source = {f"{self.source_prefix}TOPIC": self.topic, **self.source_environ}
        for setting, topic in self.more_topics.items():
            ours[f"{self.prefix}{setting}"] = of_source[f"{self.source_prefix}{setting}"] = topic
        if self.files:
            ours[f"{self.prefix}{self.files}"] = self.files_in(directory, environ)
        return JobSpec(
            job=self.module,
            source=f"{_JOBS}.{self.name}.source",
            source_prefix=self.source_prefix,
            topics={self.topic: self.partitions, **dict.fromkeys(self.more_topics.values(), 1)},
            job_environ=_given(environ, self.prefix) | ours,
            source_environ=_given(environ, self.source_prefix) | of_source,
        )


def job_names() -> tuple[str, ...]:
    """The packages below `jobs` that have a description, sorted. Nothing is imported, not `jobs` itself.

    Another package of that name may come first on the path, and every command asks for the names.
    """
    jobs = importlib.util.find_spec(_JOBS)
    return tuple(
        sorted(
            found.name
            for found in pkgutil.iter_modules(jobs.submodule_search_locations if jobs is not None else ())
            if found.ispkg and _DESCRIPTION in _modules_of(found)
        )
    )


def described(name: str) -> JobDescription:
    """What a job says of itself.

    Raises:
        ModuleNotFoundError: There is no job of that name.
        InvalidConfiguration: Its description is another job's.
    """
    job: JobDescription = importlib.import_module(f"{_JOBS}.{name}.{_DESCRIPTION}").JOB
    if job.name != name:
        raise InvalidConfiguration(
            f"{_JOBS}.{name}.{_DESCRIPTION} describes {job.name}; its name must be {name}, as its package's"
        )
    return job


def _modules_of(package: pkgutil.ModuleInfo) -> set[str]:
    spec = package.module_finder.find_spec(f"{_JOBS}.{package.name}", None)
    assert spec is not None
    return {module.name for module in pkgutil.iter_modules(spec.submodule_search_locations)}


def _given(environ: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(prefix)}
