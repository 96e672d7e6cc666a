"""What a process counts of itself, by one catalogue, and how it exposes it: the service Stats, and /metrics.

In drivers and services. The catalogue and the counters are pure; prometheus-client has one home, here.
"""
