"""The metrics exporter: asks every process for its Stats, and exposes them to Prometheus."""
