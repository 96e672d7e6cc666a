"""Compares every copy of a state with its changelog, record by record, and with its indexes: `keyhole verify`."""
