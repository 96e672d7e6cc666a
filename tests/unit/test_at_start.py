"""What Python processes load at their start where tests run: tests/support/at_start."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

SECRET = b"known to both"
WORKER = "pyspark.sql.streaming.transform_with_state_driver_worker"


def number(data: bytes) -> int:
    return int.from_bytes(data, "big")


def test_a_processor_s_worker_connects_before_it_loads_pyspark_and_then_does_as_ever() -> None:
    with socket.create_server(("127.0.0.1", 0)) as spark:
        given = {
            "PYTHON_WORKER_FACTORY_PORT": str(spark.getsockname()[1]),
            "PYTHON_WORKER_FACTORY_SECRET": SECRET.decode(),
        }
        worker = subprocess.Popen([sys.executable, "-m", WORKER], env=os.environ | given, stdout=subprocess.DEVNULL)
        try:
            spark.settimeout(60)
            connection, _ = spark.accept()
            with connection, connection.makefile("rwb") as file:
                loaded = Path(f"/proc/{worker.pid}/maps").read_text()
                assert "pyarrow" not in loaded, "it has loaded all first, as PySpark by itself does"
                assert file.read(number(file.read(4))) == SECRET
                file.write(len(b"ok").to_bytes(4, "big") + b"ok")
                file.flush()
                assert number(file.read(4)) == worker.pid
        finally:
            worker.send_signal(signal.SIGKILL)
            worker.wait()
