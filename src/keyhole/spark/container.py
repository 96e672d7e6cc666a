"""What the job's image runs: `python -m keyhole.spark.container driver MODULE [ARGUMENT...]` or `... executor`.

Spark's own images have a shell script for it, which PySpark's package does not ship. Spark's scheduler on Kubernetes
starts an executor's container with the argument `executor`, and says the rest in variables SPARK_*.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from keyhole.errors import InvalidConfiguration
from keyhole.spark.stacks import SUBMIT_OPTIONS, submit_options

USAGE = "usage: python -m keyhole.spark.container driver MODULE [ARGUMENT...] | executor"

_BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_OPTION = re.compile(r"SPARK_JAVA_OPT_(\d+)")
# Flag of the backend, and the variable in which Spark's scheduler says what to pass.
_FLAGS = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
_MEMORY = "SPARK_EXECUTOR_MEMORY"


def command_of(arguments: list[str], environ: Mapping[str, str], spark_home: Path) -> list[str]:
    """What the process is to become, from its arguments and environment.

    Raises:
        InvalidConfiguration: An unknown role, or a variable of Spark's scheduler is missing.
    """
    match arguments:
        case ["driver", module, *rest]:
            return [sys.executable, "-m", module, *rest]
        case ["executor"]:
            return _executor(environ, spark_home)
    raise InvalidConfiguration(USAGE)


def _executor(environ: Mapping[str, str], spark_home: Path) -> list[str]:
    missing = [name for name in (*_FLAGS.values(), _MEMORY) if not environ.get(name)]
    if missing:
        raise InvalidConfiguration(
            f"{', '.join(missing)} is not set; executors are started by Spark's scheduler, which sets it"
        )
    java = Path(environ["JAVA_HOME"], "bin", "java") if environ.get("JAVA_HOME") else Path("java")
    numbered = ((int(match[1]), value) for name, value in environ.items() if (match := _OPTION.fullmatch(name)))
    options = [value for _, value in sorted(numbered)]
    heap = environ[_MEMORY]
    # The connector's jars come by spark.executor.extraClassPath, which Spark puts into SPARK_CLASSPATH.
    classpath = ":".join(part for part in (environ.get("SPARK_CLASSPATH"), str(spark_home / "jars" / "*")) if part)
    flags = [word for flag, name in _FLAGS.items() for word in (flag, environ[name])]
    return [str(java), *options, f"-Xms{heap}", f"-Xmx{heap}", "-cp", classpath, _BACKEND, *flags]


def environ_of(arguments: list[str], environ: Mapping[str, str], spark_home: Path) -> dict[str, str]:
    """The environment that it is to have.

    An executor's Python workers are this interpreter too, and the driver's JVM finds its settings by SPARK_CONF_DIR.
    A driver's JVM has deep stacks, also where the session is the module's own.
    """
    found = {**environ, "SPARK_HOME": str(spark_home), "PYSPARK_PYTHON": sys.executable}
    return found | ({SUBMIT_OPTIONS: submit_options(environ)} if arguments[0] == "driver" else {})


def spark_home() -> Path:
    """Where PySpark's package is.

    Raises:
        InvalidConfiguration: It is not installed.
    """
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise InvalidConfiguration("PySpark is not installed here")
    return Path(found.origin).parent


def main(arguments: list[str]) -> NoReturn:
    """Becomes the driver or the executor, or ends with an error."""
    try:
        home = spark_home()
        command = command_of(arguments, os.environ, home)
    except InvalidConfiguration as error:
        print(error.message, file=sys.stderr)  # noqa: T201 - for a person
        sys.exit(2)
    os.execvpe(command[0], command, environ_of(arguments, os.environ, home))  # noqa: S606 - it becomes it, so that signals reach it


if __name__ == "__main__":
    main(sys.argv[1:])
