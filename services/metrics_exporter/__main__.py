"""`python -m services.metrics_exporter`: one metrics exporter, configured by KEYHOLE_METRICS_EXPORTER_*
(docs/configuration.md)."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from keyhole import logs
from keyhole.config import MetricsExporterConfig, load
from keyhole.errors import KeyholeError
from keyhole.rpc.server import run
from services.metrics_exporter.app import serve


def main(environ: Mapping[str, str]) -> int:
    """Returns the process's exit code."""
    try:
        config = load(MetricsExporterConfig, environ)
        logs.configure(config.log_level)
        run(serve(config))
    except KeyholeError as error:
        print(f"metrics-exporter: {error.message}", file=sys.stderr)  # noqa: T201 - for a person, where logs may not be set up
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(os.environ))
