"""What a process says of itself, as messages (`Stats`) and as text for Prometheus (/metrics)."""
