"""The configuration of each deployable: a frozen dataclass, read from `KEYHOLE_*` variables by `load` alone."""

from __future__ import annotations

from keyhole.config.deployables import (
    DEFAULT_EXPORTER_PORT,
    DEFAULT_HTTP_PORT,
    DEFAULT_PROXY_PORT,
    DEFAULT_STATE_SERVER_PORT,
    LEAST,
    MOST,
    PROXY_VARIABLE,
    CliConfig,
    ClientProxyConfig,
    JobConfig,
    KafkaConfig,
    MetricsExporterConfig,
    StateServerConfig,
)
from keyhole.config.jobs import CLUSTER, LOCAL, PART, SourceConfig, TopicJobConfig
from keyhole.config.loading import (
    job_config,
    load,
)
from keyhole.security.security_settings import CallerSettings, SecuritySettings

__all__ = [
    "CLUSTER",
    "DEFAULT_EXPORTER_PORT",
    "DEFAULT_HTTP_PORT",
    "DEFAULT_PROXY_PORT",
    "DEFAULT_STATE_SERVER_PORT",
    "LEAST",
    "LOCAL",
    "MOST",
    "PART",
    "PROXY_VARIABLE",
    "CallerSettings",
    "CliConfig",
    "ClientProxyConfig",
    "JobConfig",
    "KafkaConfig",
    "MetricsExporterConfig",
    "SecuritySettings",
    "SourceConfig",
    "StateServerConfig",
    "TopicJobConfig",
    "job_config",
    "load",
]
