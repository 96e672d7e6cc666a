"""Reads all the time, in a pod of its own, and checks each answer; standard output gets one JSON line for each read.

Runs with nothing but the client library: it is given to the interpreter of the proxy's image as a file. The probe of
temperature_monitor's source rises by a hundredth of a degree with every reading, so each answer can be checked by
itself: with n readings the last and the highest are n/100, the lowest is 0.01, and the mean lies between. A reading
counted twice, left out, or taken from a half-applied epoch breaks that.
"""

from __future__ import annotations

import json
import sys
import time

from keyhole import Client, Credentials
from keyhole.errors import KeyholeError

APPLICATION, STATE, PROBE = "temperature-monitor", "sensors", "probe"

_PAUSE_SECONDS = 0.05
TIMEOUT_SECONDS = 2.0


def wrong(value: object) -> str:
    """What can't be so; empty: nothing."""
    readings = value.readings  # type: ignore[attr-defined]  # columns of the state
    last, least, most, mean = value.last, value.min, value.max, value.mean  # type: ignore[attr-defined]
    expected = round(readings / 100, 2)
    if (last, least, most) != (expected, 0.01, expected):
        return f"{readings} readings, but last {last}, min {least}, max {most}"
    if abs(mean - (readings + 1) / 200) > 1e-6:
        return f"{readings} readings, but mean {mean}"
    return ""


def main(proxy: str, secrets: str = "") -> None:
    """Until it is killed. An epoch before one that this session has seen already is wrong, too.

    Args:
        secrets: The folder of the authority's certificate and of a token; empty: plaintext.
    """
    how = Credentials(tls_ca=f"{secrets}/ca.crt", token_file=f"{secrets}/token") if secrets else Credentials(tls=False)
    with Client(proxy, timeout=TIMEOUT_SECONDS, credentials=how) as client:
        session = client.session()
        highest = 0
        while True:
            began = time.time()
            line: dict[str, object] = {"at": began}
            try:
                answer = session.get(APPLICATION, STATE, PROBE)
            except KeyholeError as error:
                line["error"] = error.reason
                line["why"] = error.message
            else:
                line |= {"found": answer.found, "epoch": answer.source.epoch, "role": str(answer.source.role)}
                line["server"] = answer.source.server
                if answer.found:
                    line["readings"] = answer.value.readings
                    line["wrong"] = wrong(answer.value)
                if answer.source.epoch < highest:
                    line["wrong"] = f"epoch {answer.source.epoch} after {highest}"
                highest = max(highest, answer.source.epoch)
            line["seconds"] = round(time.time() - began, 4)
            print(json.dumps(line), flush=True)
            time.sleep(_PAUSE_SECONDS)


if __name__ == "__main__":
    main(*sys.argv[1:])
