"""Savepoints: all states of an application at one complete epoch of each query, as files. docs/savepoints.md."""
