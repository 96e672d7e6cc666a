"""`keyhole jars`: Spark's connectors by path, as `spark-submit --jars` takes them."""

from __future__ import annotations

import os

from rich.console import Console

from keyhole.demo.fetching import fetch_jars
from keyhole.local.jars import JarSet


def run(*, s3: bool) -> None:
    """Prints the paths, with commas between them. What lacks is fetched first, with progress on standard error.

    Args:
        s3: Also those for checkpoints at s3a://.

    Raises:
        JarsUnavailable: One can't be fetched.
    """
    sets = [JarSet.SPARK_KAFKA, *([JarSet.SPARK_S3] if s3 else [])]
    found = fetch_jars(Console(stderr=True, highlight=False), os.environ, *sets)
    print(",".join(str(path) for jars in found for path in jars))
