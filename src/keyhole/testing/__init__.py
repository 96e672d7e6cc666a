"""For tests, ours and those of users: fakes, a changelog in memory, the contract of stores, Keyhole on Docker."""
