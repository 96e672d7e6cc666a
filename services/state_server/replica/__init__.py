"""Which key groups a server owns and follows, and how they get there: restores, standby copies, replicas."""
