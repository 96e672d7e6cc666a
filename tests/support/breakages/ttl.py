"""Of what expires: when it has, who sees it, and what removes it."""

from __future__ import annotations

from tests.support.breakages.breakage import Breakage

_STORED = "src/keyhole/encoding/envelope.py"
_SWEEP = "services/state_server/write/ttl_gc.py"
_VISIBILITY = "services/state_server/read/visibility.py"

TTL = (
    Breakage(
        "an entry lives on at the moment at which it expires",
        "ttl",
        _STORED,
        '        return (self._time(now) + 1).to_bytes(STAMP_BYTES, "big")\n',
        '        return self._time(now).to_bytes(STAMP_BYTES, "big")\n',
        ("test_expired_reads.py",),
    ),
    Breakage(
        "a scan shows what has expired",
        "ttl",
        _STORED,
        "            if _FIRST_STAMP <= entry < self._lives_from:\n",
        "            if _FIRST_STAMP > entry >= self._lives_from:\n",
        ("test_scans.py::test_what_has_expired_is_hidden_and_what_expires_while_it_is_read_is_not",),
    ),
    Breakage(
        "a clock that is set back brings expired entries back",
        "ttl",
        _VISIBILITY,
        "            self._latest_ms = max(self._latest_ms, self._clock.now_ms())\n",
        "            self._latest_ms = self._clock.now_ms()\n",
        ("test_expired_reads.py",),
    ),
    Breakage(
        "a reader whose clock is behind sees what the epoch's commit has found expired",
        "ttl",
        _VISIBILITY,
        "visible(Moment(max(now_ms, stamp.commit_time_ms), stamp.watermark_ms))",
        "visible(Moment(now_ms, stamp.watermark_ms))",
        ("test_expired_reads.py",),
    ),
    Breakage(
        "a new checkpoint's watermark brings expired entries back",
        "ttl",
        "src/keyhole/protocol/epochs.py",
        "        return replace(self, watermark_ms=max(self.watermark_ms, before.watermark_ms))\n",
        "        return self\n",
        ("test_expired_reads.py",),
    ),
    Breakage(
        "a new row is merged with one that has expired",
        "ttl",
        "services/state_server/write/merge_expiring.py",
        "        self._lives_from = lives.lives_from(context.moment)\n",
        "        self._lives_from = bytes(8)\n",
        ("test_merge_entries.py",),
    ),
    Breakage(
        "what expires at this very moment is not removed",
        "ttl",
        _SWEEP,
        "            elif expires <= expired:\n",
        "            elif expires < expired:\n",
        ("test_sweep.py",),
    ),
    Breakage(
        "an epoch that is run again removes what has expired since",
        "ttl",
        "services/state_server/write/commit.py",
        "None if part.replace or committed else amount)\n",
        "None if part.replace else amount)\n",
        ("test_sweep.py",),
    ),
)
