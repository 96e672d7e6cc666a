"""Grafana's dashboards of Keyhole, as readable descriptions. `python -m charts.dashboards` makes the chart's JSON.

One module per dashboard says what is on it; queries.py makes PromQL of the catalogue's metrics, grafana.py the JSON.
"""
