"""Types that several threads decode to for the first time at once."""

from __future__ import annotations

import signal
import subprocess
import sys

DECODING = """
import sys, threading
import msgspec
from keyhole.hints import ready

sys.setswitchinterval(1e-6)
fields = [(f"a{at}", int | None) for at in range(5)]
for number in range(200):
    parts = [(f"part{at}", msgspec.defstruct(f"Part{number}_{at}", fields)) for at in range(10)]
    whole = ready(msgspec.defstruct(f"Whole{number}", parts))
    data = msgspec.msgpack.encode({name: {field: 1 for field, _ in fields} for name, _ in parts})
    begin = threading.Barrier(4)

    def decode():
        begin.wait()
        msgspec.msgpack.decode(data, type=whole)

    threads = [threading.Thread(target=decode) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_a_type_that_is_ready_is_decoded_to_by_many_threads_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", DECODING], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != -signal.SIGSEGV
    assert done.returncode == 0, done.stderr
