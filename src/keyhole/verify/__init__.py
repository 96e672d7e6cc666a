"""Compares every copy of a state with its changelog, record by record: `keyhole verify`."""
