"""How deep the stacks of a driver's JVM are: the same on one machine and on a cluster, whoever starts the session.

Imports nothing of Spark's: the image's entry point has it too.
"""

from __future__ import annotations

from collections.abc import Mapping

# Why a query has ended Spark finds by a regular expression that needs three frames of the stack for each character of
# the error's text. Of a job that was cancelled that is so long that Java's own megabyte overflows: the thread ends by
# that, and says so in a thousand lines. Memory is taken as it is used; no multiple of a huge page's size, which the
# system would take at once.
STACKS = "-Xss16100k"
"""An option of Java's. Of several the last one counts."""

SUBMIT_OPTIONS = "SPARK_SUBMIT_OPTS"
"""Options of Java's by which spark-submit, which PySpark starts a driver's JVM with, begins its own. Those of
spark-defaults.conf and of the session follow: where they say another depth, they have it."""


def submit_options(environ: Mapping[str, str]) -> str:
    """What that variable must be for a driver: what it is, behind the depth of the stacks."""
    given = environ.get(SUBMIT_OPTIONS, "")
    return given if STACKS in given.split() else f"{STACKS} {given}".strip()
