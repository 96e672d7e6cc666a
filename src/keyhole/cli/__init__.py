"""The command `keyhole`."""
