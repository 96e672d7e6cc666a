"""Small breakages of the product: what a typing mistake or a lost line would make of it. Each is noticed by a test."""

from __future__ import annotations

from tests.support.breakages.breakage import Breakage
from tests.support.breakages.client import CLIENT
from tests.support.breakages.feeding import FEEDING
from tests.support.breakages.indexes import INDEXES
from tests.support.breakages.kinds import KINDS
from tests.support.breakages.latest import LATEST
from tests.support.breakages.protocol import PROTOCOL
from tests.support.breakages.readers import READERS
from tests.support.breakages.realtime import REALTIME
from tests.support.breakages.restore import RESTORE
from tests.support.breakages.routing import ROUTING
from tests.support.breakages.savepoint import SAVEPOINT
from tests.support.breakages.security import SECURITY
from tests.support.breakages.spark import SPARK
from tests.support.breakages.stores import STORES
from tests.support.breakages.ttl import TTL
from tests.support.breakages.up import UP
from tests.support.breakages.watches import WATCHES

BREAKAGES: tuple[Breakage, ...] = (
    *PROTOCOL,
    *RESTORE,
    *TTL,
    *ROUTING,
    *SECURITY,
    *CLIENT,
    *STORES,
    *KINDS,
    *SPARK,
    *SAVEPOINT,
    *REALTIME,
    *FEEDING,
    *UP,
    *WATCHES,
    *INDEXES,
    *LATEST,
    *READERS,
)
