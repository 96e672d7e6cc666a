"""The command `keyhole`, whose commands import what they need only when they run."""
