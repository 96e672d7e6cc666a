"""`python -m services.metrics_exporter`: one metrics exporter, configured by KEYHOLE_METRICS_EXPORTER_*
(docs/configuration.md)."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from keyhole.config import MetricsExporterConfig
from keyhole.rpc.deployable import run_deployable
from services.metrics_exporter.app import serve


def main(environ: Mapping[str, str]) -> int:
    """Returns the process's exit code."""
    return run_deployable("metrics-exporter", MetricsExporterConfig, serve, environ)


if __name__ == "__main__":
    sys.exit(main(os.environ))
