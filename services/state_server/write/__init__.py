"""An epoch's way into the changelog and the stores. Host thread, but for the names of staged attempts."""
