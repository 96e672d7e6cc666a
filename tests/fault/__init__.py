"""The fault harness: real processes under a seeded schedule of faults, readers that record every answer, and a checker.

`uv run python -m tests.fault --seed 1 --minutes 120 --json out.json`; tests/fault/README.md.
"""
