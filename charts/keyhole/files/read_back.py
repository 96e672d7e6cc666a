"""What `helm test` runs: a record goes to each job's topic and is read back through the client proxy.

A job without such a test in the values is only looked for: its states must be listed by the proxy, with an epoch.
Settings: PROXY, BOOTSTRAP_SERVERS, TIMEOUT_SECONDS, TLS (the folder of a certificate), TOKEN (a file) and JOBS
as JSON.
"""

import json
import os
import sys
import time
import uuid
from datetime import UTC, datetime

from confluent_kafka import Producer

import keyhole
from keyhole.changelog.kafka.brokers import client_settings
from keyhole.errors import KeyholeError

FILES = {"tls_ca": "ca.crt", "tls_certificate": "tls.crt", "tls_key": "tls.key"}


def filled(text, identity):
    return text.replace("{id}", identity).replace("{now}", datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"))


def write(bootstrap_servers, topic, record):
    failed = []
    producer = Producer({**client_settings(bootstrap_servers), "message.timeout.ms": 30_000})
    producer.produce(topic, record.encode(), on_delivery=lambda error, _: failed.append(error) if error else None)
    producer.flush()
    if failed:
        raise SystemExit(f"Kafka did not take the record for the topic {topic}: {failed[0].str()}")


def until(question, seconds, what):
    """Asks until the answer is true; errors of Keyhole's count as a no, and the last one is told."""
    deadline = time.monotonic() + seconds
    why = "it was not there"
    while time.monotonic() < deadline:
        try:
            answer = question()
            if answer:
                return answer
        except KeyholeError as error:
            why = error.message
        time.sleep(0.5)
    raise SystemExit(f"{what} within {seconds:.0f} s: {why}")


def listed(client, application):
    """The names of the application's states, once an epoch of each has been committed."""
    names = {state.state for state in client.list_states(application)}
    holdings = [holding for server in client.status() for holding in server.holdings]
    begun = {of.descriptor.state for of in holdings if of.descriptor.application == application and of.source.epoch}
    return names if names and names <= begun else None


def read_back(client, job, seconds):
    identity = f"helm-test-{uuid.uuid4()}"
    write(os.environ["BOOTSTRAP_SERVERS"], job["topic"], filled(job["record"], identity))
    key = filled(job["key"], identity)

    def there():
        answer = client.get(job["application"], job["state"], key)
        if not answer.found or not job["field"]:
            return answer if answer.found else None
        return answer if getattr(answer.value, job["field"]) == json.loads(job["value"]) else None

    began = time.monotonic()
    answer = until(there, seconds, f"the record was not read back from {job['application']}/{job['state']}")
    took = time.monotonic() - began
    print(f"{job['application']}/{job['state']}: written, and read back after {took:.1f} s, in epoch {answer.epoch}")


def credentials(environ):
    if "TLS" not in environ:
        return keyhole.Credentials(tls=False)
    files = {name: f"{environ['TLS']}/{file}" for name, file in FILES.items()}
    return keyhole.Credentials(**files, token_file=environ.get("TOKEN", ""))


def main():
    seconds = float(os.environ["TIMEOUT_SECONDS"])
    jobs = json.loads(os.environ["JOBS"])
    with keyhole.Client(os.environ["PROXY"], credentials=credentials(os.environ)) as client:
        for job in jobs:
            if job["topic"]:
                read_back(client, job, seconds)
            else:
                application = job["application"]
                found = until(lambda a=application: listed(client, a), seconds, f"{application} has no states")
                print(f"{application}: {', '.join(sorted(found))}")
        if not jobs:
            until(lambda: client.list_states() is not None, seconds, "the proxy did not answer")
            print("the proxy answers; there are no jobs to write to")
    return 0


if __name__ == "__main__":
    sys.exit(main())
