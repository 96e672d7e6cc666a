"""`python -m jobs.golden_signals.verify`: measures the topic again, and asks the proxy for every service and minute."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta

from jobs.golden_signals.recount import recount
from keyhole import Client
from keyhole.demo.recount import RecountVerdict, VerifiedJob, asked, entries, main, records_before, unkept

# As the pipeline has it, of which nothing here may know.
APPLICATION, STATE = "golden-signals", "golden_signals"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def check(subject: VerifiedJob, client: Client) -> RecountVerdict:
    """Every service and minute, and that every record that is no measurement was kept."""
    messages = list(records_before(subject.bootstrap_servers, subject.topic, subject.ends))
    measured = recount(message.value() for message in messages)
    keys = {
        (service, _EPOCH + timedelta(milliseconds=minute_ms)): (service, minute_ms) for service, minute_ms in measured
    }
    answers = asked(client, APPLICATION, STATE, keys, subject.epoch)
    agreed = sum(answer.found and not measured[key].wrong(answer.value.asdict()) for key, answer in answers.items())
    surplus = max(0, entries(client, APPLICATION, STATE) - sum(answer.found for answer in answers.values()))
    rejected = {(m.partition(), m.offset()) for m in messages if not recount([m.value()])}
    return RecountVerdict(
        subject.epoch,
        keys=len(measured),
        agreed=agreed,
        surplus=surplus,
        events=len(messages),
        rejected={subject.topic: len(rejected)},
        unkept=unkept(subject, rejected),
    )


if __name__ == "__main__":
    sys.exit(main(check))
