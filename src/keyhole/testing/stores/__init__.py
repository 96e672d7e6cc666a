"""What every store engine must do, as tests that a third party's engine runs as well as ours
(docs/store-of-your-own.md).

    class TestMyStore(StoreContract):
        def make_engine(self, limits: StoreLimits) -> StoreEngine:
            return MyEngine(limits)

Needs pytest. Beside it, `keyhole.testing.stores.machine` looks for sequences of calls that go wrong; that needs
hypothesis. Both come with keyhole-spark[testing].
"""

from keyhole.testing.stores.contract import StoreContract

__all__ = ["StoreContract"]
