"""Every Python process of the tests loads this as it starts: a processor's worker connects to Spark before all else.

Spark gives such a worker ten seconds until it has connected (`createSimpleWorker`), whatever else the machine does, and
there is no setting for it. PySpark connects once all is loaded, which is a second of processor time: on a machine with
ten others at work the query ends by "Python worker failed to connect back". tests/conftest.py puts this folder on
PYTHONPATH. In other processes nothing happens.
"""

from __future__ import annotations

import os
import sys

_WORKER = "pyspark.sql.streaming.transform_with_state_driver_worker"
_PORT, _SECRET = "PYTHON_WORKER_FACTORY_PORT", "PYTHON_WORKER_FACTORY_SECRET"


def _connect() -> None:
    """As `pyspark.util.local_connect_and_auth` does, which is then given what is connected."""
    import socket

    # For so long Spark's own waits for each answer.
    seconds = int(os.environ.get("SPARK_AUTH_SOCKET_TIMEOUT", "15"))
    connected = socket.create_connection(("127.0.0.1", int(os.environ[_PORT])), timeout=seconds)
    file = connected.makefile("rwb", int(os.environ.get("SPARK_BUFFER_SIZE", "65536")))
    secret = os.environ[_SECRET].encode()
    file.write(len(secret).to_bytes(4, "big") + secret)
    file.flush()
    if file.read(int.from_bytes(file.read(4), "big")) != b"ok":
        raise SystemExit("Spark does not know this worker's secret")

    import pyspark.util

    pyspark.util.local_connect_and_auth = lambda *_: (file, connected)


if sys.orig_argv[1:3] == ["-m", _WORKER] and {_PORT, _SECRET} <= os.environ.keys():
    _connect()
