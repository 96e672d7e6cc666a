"""That no admin client of librdkafka ends in its own thread, whatever garbage is collected there."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.waiting import LONG_SECONDS

ABANDONED = """
import gc, sys, time
from keyhole.changelog.kafka import topic_watch

topic_watch._EVERY_SECONDS = 0
gc.disable()
gc.set_threshold(1, 1, 1)
pause, collect = time.sleep, gc.enable
for number in range(30):
    watch = topic_watch.TopicWatch(sys.argv[1])
    for _ in range(2):  # asks, and hears that there is no such topic
        watch.lost([f"nothing-{number}"])
        while not all(future.done() for future in watch._asked.values()):
            pause(0.001)
    watch.lost([f"nothing-{number}"])
    # The answer is under way: the thread that brings it is the first to collect garbage.
    del watch
    collect()
    pause(0.05)
    gc.disable()
"""


def test_a_follower_that_is_given_up_while_it_asks_does_not_take_the_process_with_it(kafka: str) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", ABANDONED, kafka],
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=10 * LONG_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
