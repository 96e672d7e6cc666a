"""`python -m jobs.temperature_monitor.verify`: counts the topic again, and asks the proxy for every key."""

from __future__ import annotations

import sys

from jobs.temperature_monitor.recount import recount
from keyhole import Client
from keyhole.cli.verify import Subject, Verdict, entries, main, records_before

# As the pipeline has it, of which nothing here may know.
APPLICATION, STATE = "temperature-monitor", "max_temperature"


def check(subject: Subject, client: Client) -> Verdict:
    """Every key at exactly the subject's epoch: no newer one may come meanwhile."""
    messages = records_before(subject.bootstrap_servers, subject.topic, subject.ends)
    counted, events = recount(message.value() for message in messages)
    answers = client.get_many(APPLICATION, STATE, list(counted), min_epoch=subject.epoch)
    agreed = sum(
        answer.found and answer.epoch == subject.epoch and (answer.value.temperature, answer.value.readings) == expected
        for answer, expected in zip(answers, counted.values(), strict=True)
    )
    surplus = max(0, entries(client, APPLICATION, STATE) - sum(answer.found for answer in answers))
    return Verdict(subject.epoch, len(counted), agreed, surplus, events)


if __name__ == "__main__":
    sys.exit(main(check))
