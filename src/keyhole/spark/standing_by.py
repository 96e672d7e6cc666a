"""A driver that stands by: its Spark is up and warm, and it waits until no other driver of the job leads.

    await_lead()                       # KEYHOLE_JOB_DRIVER_GROUP=orders; returns at once where that is not set
    df.writeStream....start()          # takes the query over, as each start does

`keyhole.spark.session` and `keyhole.spark.running.session` call it. A job that makes its session itself calls it before
it starts its queries.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import threading
from collections.abc import Callable

from pyspark.sql import SparkSession

from keyhole.changelog.kafka.driver_group import KafkaDriverGroup
from keyhole.config import JobConfig, job_config
from keyhole.coordinator.stats import stats_of
from keyhole.model.names import checked_name
from keyhole.spark.driver.warming import warm_up

_log = logging.getLogger(__name__)

GROUP_VARIABLE = f"{JobConfig.PREFIX}DRIVER_GROUP"

_LOCK = threading.Lock()
_JOINED: dict[tuple[str, str, str], KafkaDriverGroup] = {}
"""By Kafka, application and group: those that this process is a member of, until it ends."""


def await_lead(
    session: SparkSession | None = None,
    config: JobConfig | None = None,
    *,
    given_up: Callable[[], bool] = lambda: False,
) -> bool:
    """Returns once this driver leads the group of KEYHOLE_JOB_DRIVER_GROUP; at once where that is empty. Blocks.

    A driver that leads does so until its process ends. One that dies is missed after six seconds, one that ends in
    order at once.

    Args:
        session: Is warmed before the wait; default: the active one, if there is any.
        config: Default: the environment's.
        given_up: Asked a few times a second.

    Returns:
        False: it was given up.

    Raises:
        InvalidConfiguration: As `job_config`; the group's name is not 1 to 100 letters, digits, '_' or '-'; or Kafka
            refuses this driver as a member of the group `keyhole.APPLICATION.GROUP.drivers`.
        PortTaken, InvalidConfiguration: As keyhole.coordinator.stats.stats_of.
        KafkaUnreachable: No broker answers.
    """
    if config is None and not os.environ.get(GROUP_VARIABLE):
        return True
    config = config or job_config()
    if not config.driver_group:
        return True
    checked_name(GROUP_VARIABLE, config.driver_group, "give all drivers of the job another one")
    checked_name("the application's name", config.application, "set KEYHOLE_JOB_APPLICATION to another one")
    # Who asks a driver for its figures finds one that stands by, too.
    stats_of(config)
    session = session or SparkSession.getActiveSession()
    if session is not None:
        warm_up(session, given_up)
    return _joined(config).await_lead(given_up, lambda: _say(config))


def end_at_sigterm() -> None:
    """From now on SIGTERM ends a driver of a group as Python ends: another one leads at once then.

    Else it would be killed; or, as the first process of a container, not hear of it. Only where
    KEYHOLE_JOB_DRIVER_GROUP is set or this is process 1, in the main thread, and where the job has no handler.
    """
    if not (os.environ.get(GROUP_VARIABLE) or os.getpid() == 1):
        return
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _end)


def _end(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _joined(config: JobConfig) -> KafkaDriverGroup:
    name = config.bootstrap_servers, config.application, config.driver_group
    with _LOCK:
        # One that was refused may be let in by now: whoever asks again joins again.
        if (group := _JOINED.get(name)) is None or group.failed:
            group = KafkaDriverGroup(*name)
            group.join()
            # The next one need not wait until this one is missed.
            atexit.register(group.close)
            _JOINED[name] = group
    return group


def _say(config: JobConfig) -> None:
    extra = {"application": config.application, "group": config.driver_group}
    _log.warning("standing by: another driver of the job leads", extra=extra)
