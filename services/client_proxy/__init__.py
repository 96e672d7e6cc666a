"""The client proxy: one address for all state servers."""
