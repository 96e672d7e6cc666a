"""`keyhole explain`: how keys are read, and why an answer is as it is, or why there is none."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from rich.console import Console

from keyhole import Client, Stale
from keyhole.cli.reads import Bounds, OutputFormat, role_of, seconds_since, typed_keys
from keyhole.client.explanation import Explanation, Hop, KeyGroupCopy
from keyhole.encoding.value_json import to_json
from keyhole.model.read import Answer, Role
from keyhole.model.state_path import state_path
from keyhole.terminal.json_output import print_json
from keyhole.terminal.written_out import written_out


def explain(client: Client, output: OutputFormat, path: str, keys: Sequence[str], bounds: Bounds) -> int:
    """Each key by itself, one after the other. Exit code 1 where one has no answer; an absent key has one."""
    application, state = state_path(path)
    descriptor = client.describe_state(application, state)
    rows, answered = [], True
    for key, typed in zip(keys, typed_keys(descriptor, path, keys), strict=True):
        found = client.explain(application, state, typed, **bounds.options)
        answered = answered and found.answer is not None
        if output.as_json:
            rows.append(as_row(key, found, bounds))
        else:
            _show(output, path, key, found, bounds)
    if output.as_json:
        print_json(rows)
    return 0 if answered else 1


def as_row(key: str, found: Explanation, bounds: Bounds) -> dict[str, Any]:
    """For programs; times in seconds."""
    answer = found.answer
    source = None if answer is None else answer.source
    return {
        "key": key,
        "key_group": found.key_group,
        "all_key_groups": found.descriptor.key_groups,
        "found": None if answer is None else answer.found,
        "value": to_json(answer.value) if answer else None,
        "epoch": None if source is None else source.epoch,
        "commit_age_seconds": seconds_since(source.commit_time) if source else None,
        "staleness_seconds": seconds_since(source.as_of) if source else None,
        "lag_epochs": None if source is None else source.lag_epochs,
        "server": None if source is None else source.server,
        "role": role_of(source) if source else None,
        "error": None if found.error is None else {"reason": found.error.reason, "message": found.error.message},
        "why": list(reasons(found, bounds)),
        "seconds": {
            "read": (found.whole - found.in_target + found.lookup).total_seconds(),
            "to_target_and_back": (found.whole - found.in_target).total_seconds(),
            "in_target": found.lookup.total_seconds(),
        },
        "hops": [_hop_row(hop, found) for hop in found.hops],
        "hops_left_out": found.hops_left_out,
        "copies": [_copy_row(copy, found) for copy in found.copies],
    }


def _show(output: OutputFormat, path: str, key: str, found: Explanation, bounds: Bounds) -> None:
    def say(text: str) -> None:
        Console().print(written_out(text), markup=False, highlight=False, soft_wrap=True)

    say(f"{path} {key}: key group {found.key_group} of {found.descriptor.key_groups}")
    if found.answer is not None:
        value = json.dumps(to_json(found.answer.value), default=str, ensure_ascii=False)
        say(f"  {_answered(found.answer)}")
        say(f"  value: {value}" if found.answer else "  the key is absent")
    else:
        say("  no answer")
    for reason in reasons(found, bounds):
        say(f"  why: {reason}")
    output.rows(list(_way(found)), "its way")
    if found.hops_left_out:
        say(f"{found.hops_left_out:,} attempts in between are left out")
    output.rows(
        [_copy_row(copy, found) for copy in found.copies], f"who holds key group {found.key_group}, in this order"
    )


def _answered(answer: Answer) -> str:
    source = answer.source
    committed, age = seconds_since(source.commit_time), seconds_since(source.as_of)
    parts = [
        f"answered by {source.server}, {role_of(source)}, as of epoch {source.epoch}",
        "never committed" if committed is None else f"committed {committed:.1f} s ago",
        "age not known" if age is None else f"age {age:.1f} s",
    ]
    return ", ".join(parts)


def _way(found: Explanation) -> Iterator[dict[str, Any]]:
    """The hops, one a line, with their times: first those of this process."""
    through = "proxy" if found.hops or found.answer is None else "server"
    yield {
        "hop": f"here to the {through} and back",
        "time": _millis(found.whole - found.in_target),
        "in server": None,
        "came of it": None,
    }
    waited = max((hop.began + hop.took for hop in found.hops if hop.took is not None), default=timedelta(0))
    yield {
        "hop": f"in the {through}",
        "time": _millis(found.lookup - waited) if found.hops else _millis(found.lookup),
        "in server": None,
        "came of it": None,
    }
    for hop in found.hops:
        yield {
            "hop": f"the proxy to {_name(hop, found)} and back",
            "time": "-" if hop.took is None else _millis(hop.took - (hop.in_server or timedelta(0))),
            "in server": None if hop.in_server is None else _millis(hop.in_server),
            "came of it": _outcome(hop),
        }


def _outcome(hop: Hop) -> str:
    if hop.error is not None:
        return f"{hop.error.reason}: {hop.error.message}"
    said = "answered" if hop.took is not None else "no answer"
    return f"{said}, after the hop deadline" if hop.overdue else said


def _hop_row(hop: Hop, found: Explanation) -> dict[str, Any]:
    return {
        "address": hop.address,
        "server": next((copy.server for copy in found.copies if copy.address == hop.address), None) or None,
        "began_seconds": hop.began.total_seconds(),
        "took_seconds": None if hop.took is None else hop.took.total_seconds(),
        "in_server_seconds": None if hop.in_server is None else hop.in_server.total_seconds(),
        "overdue": hop.overdue,
        "error": None if hop.error is None else {"reason": hop.error.reason, "message": hop.error.message},
    }


def _copy_row(copy: KeyGroupCopy, found: Explanation) -> dict[str, Any]:
    source = copy.source
    epoch = None if source is None else source.epoch
    if found.descriptor.updates_topic_id:
        # An epoch is of one key group then, and not of all that a server holds: who has answered has said it.
        answer = found.answer
        epoch = answer.epoch if answer is not None and answer.server == copy.server else None
    return {
        "server": copy.server or None,
        "address": copy.address,
        "role": copy.role,
        "ready": None if source is None else copy.ready,
        "epoch": epoch,
        "lag_epochs": None if source is None else source.lag_epochs,
        "staleness_seconds": None if source is None else seconds_since(source.as_of),
        "unconfirmed": None if source is None else source.unconfirmed,
        "wrong": "; ".join(_troubles(copy)) or None,
    }


def _troubles(copy: KeyGroupCopy) -> Iterator[str]:
    if copy.unreachable:
        yield copy.unreachable
    elif copy.source is None:
        yield "it holds nothing of this key group now"
    elif not copy.ready:
        yield f"it restores: {copy.restored_records:,} of {copy.records_to_restore:,} records"
    if copy.draining:
        yield "it drains: its key groups go to others"
    if copy.silent:
        yield "it has kept silent lately"


def reasons(found: Explanation, bounds: Bounds) -> Iterator[str]:
    """Why the answer is stale, unconfirmed or absent, or why there is none; nothing where all is as it should be."""
    answer = found.answer
    if answer is None:
        yield from _no_answer(found)
        return
    source = answer.source
    if source.epoch == 0:
        yield "no epoch is complete yet, so that nothing is known of any key"
    elif not answer.found:
        ttl = found.descriptor.ttl_ms
        expired = f", or not for {ttl / 1000:g} s, after which it expires" if ttl else ", or was deleted"
        yield f"the key was not written up to epoch {source.epoch}{expired}"
    if source.role is Role.STANDBY:
        yield from _not_the_owner(found, bounds)
    if source.unconfirmed:
        yield (
            f"unconfirmed: {source.server} owns the key group and has not heard of its coordinator for the lease time. "
            "The job has ended, hangs, or can't reach it; a newer owner may exist"
        )
    if source.lag_epochs:
        yield (
            f"stale: this copy follows the changelog, and has not read the last {source.lag_epochs:,} complete epochs "
            "yet"
        )


def _not_the_owner(found: Explanation, bounds: Bounds) -> Iterator[str]:
    if bounds.stale == Stale.ALWAYS:
        yield "a standby has answered, as any copy may: --stale always"
        return
    owner = next((copy for copy in found.copies if copy.owner), None)
    if owner is None:
        yield f"a standby has answered: the key group has no owner{f' ({found.missing})' if found.missing else ''}"
        return
    asked = next((hop for hop in found.hops if hop.address == owner.address), None)
    trouble = "; ".join(_troubles(owner))
    if asked is not None and asked.error is not None:
        trouble = f"{asked.error.reason}, {asked.error.message}"
    elif asked is not None:
        trouble = trouble or "it was silent for the hop deadline"
    said = f": {trouble}" if trouble else ", and answers again by now"
    yield f"a standby has answered, as the owner, {owner.server or owner.address}, did not{said}"


def _no_answer(found: Explanation) -> Iterator[str]:
    if found.error is not None:
        yield f"{found.error.reason}: {found.error.message}"
    if not found.copies:
        yield (
            "no server holds the key group. The job gives key groups to servers: is it running, and does it reach them?"
        )
    for copy in found.copies:
        if trouble := "; ".join(_troubles(copy)):
            yield f"{copy.role} {copy.server or copy.address}: {trouble}"


def _name(hop: Hop, found: Explanation) -> str:
    return next((copy.server for copy in found.copies if copy.address == hop.address), "") or hop.address


def _millis(time: timedelta) -> str:
    return f"{max(0.0, time.total_seconds() * 1000):.2f} ms"
