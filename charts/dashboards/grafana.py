"""The JSON of a dashboard, as Grafana 11 and later read it (classic schema). Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from charts.dashboards.model import Dashboard, Kind, Panel, Query, Row, Variable
from charts.dashboards.queries import RELEASE, within

_SCHEMA_VERSION = 41
_COLUMNS = 24
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_TAG = "keyhole"
_RELEASE = dict(zip(RELEASE, ("Namespace", "Release"), strict=True))
_OF_EACH_RELEASE = "keyhole_exporter_view_age_seconds"
# Nothing, where the labels aren't there; and a panel of one number has its name only beside others.
_IN_LEGEND = " ".join(f"{{{{{label}}}}}" for label in RELEASE)

_Json = dict[str, Any]


def text(dashboard: Dashboard) -> str:
    """The whole file."""
    return json.dumps(document(dashboard), indent=2, ensure_ascii=False) + "\n"


def document(dashboard: Dashboard) -> _Json:
    """The dashboard as Grafana has it."""
    return {
        "uid": f"keyhole-{dashboard.name}",
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": [_TAG],
        "schemaVersion": _SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,  # one crosshair for all panels
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [
            {
                "type": "dashboards",
                "title": "Keyhole",
                "tags": [_TAG],
                "asDropdown": False,
                "icon": "external link",
                "includeVars": True,
                "keepTime": True,
                "targetBlank": False,
                "tooltip": "",
                "url": "",
            }
        ],
        "templating": {"list": [_datasource(), *_release(), *map(_variable, dashboard.variables)]},
        "panels": list(_panels(dashboard.rows)),
    }


def _datasource() -> _Json:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "regex": "",
        "current": {},
        "options": [],
        "hide": 0,
        "includeAll": False,
        "multi": False,
        "refresh": 1,
        "skipUrlSync": False,
    }


def _release() -> Iterator[_Json]:
    """Each of its labels, among what the ones before it leave. Where nothing has them there is only "all"."""
    for at, (label, title) in enumerate(_RELEASE.items()):
        yield _query_variable(Variable(label, title, _OF_EACH_RELEASE), RELEASE[:at])


def _variable(variable: Variable) -> _Json:
    return _query_variable(variable, (*RELEASE, *variable.within))


def _query_variable(variable: Variable, chosen: tuple[str, ...]) -> _Json:
    query = f"label_values({variable.metric}{within(chosen)}, {variable.label})"
    several = not variable.single
    return {
        "name": variable.label,
        "label": variable.title,
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"qryType": 1, "query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery"},
        "regex": "",
        "sort": 1,
        "refresh": 2,  # whenever the time range changes
        "hide": 0,
        "skipUrlSync": False,
        "multi": several,
        "includeAll": several,
        "allValue": ".*" if several else None,
        "current": {"text": ["All"], "value": ["$__all"]} if several else {},
        "options": [],
    }


def _panels(rows: tuple[Row, ...]) -> Iterator[_Json]:
    """From left to right, as many in a line as there is room for."""
    number, top = 1, 0
    for row in rows:
        place = {"h": 1, "w": _COLUMNS, "x": 0, "y": top}
        yield {"id": number, "type": "row", "title": row.title, "collapsed": False, "gridPos": place, "panels": []}
        number, top, left, height = number + 1, top + 1, 0, 0
        for panel in row.panels:
            if left + panel.width > _COLUMNS:
                top, left, height = top + height, 0, 0
            place = {"h": panel.height, "w": panel.width, "x": left, "y": top}
            yield {"id": number, **_panel(panel), "gridPos": place}
            number, left, height = number + 1, left + panel.width, max(height, panel.height)
        top += height


def _panel(panel: Panel) -> _Json:
    defaults: _Json = {"unit": panel.unit, "thresholds": _thresholds(panel.thresholds), "mappings": []}
    made: _Json = {
        "type": panel.kind.value,
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "targets": [_target(query, panel.kind, at) for at, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": defaults, "overrides": []},
    }
    if panel.kind is Kind.STAT:
        defaults["color"] = {"mode": "thresholds"}
        made["options"] = _STAT_OPTIONS
    elif panel.kind is Kind.TABLE:
        defaults["color"] = {"mode": "thresholds"}
        made["fieldConfig"]["overrides"] = [
            {"matcher": {"id": "byName", "options": of.legend}, "properties": [{"id": "unit", "value": of.unit}]}
            for of in panel.queries
            if of.unit
        ]
        made["transformations"] = _columns(panel)
        made["options"] = {"showHeader": True, "cellHeight": "sm", "footer": {"show": False, "reducer": ["sum"]}}
    elif panel.kind is Kind.HEATMAP:
        made["options"] = _HEATMAP_OPTIONS | {"yAxis": {"unit": panel.unit, "axisPlacement": "left"}}
    else:
        defaults["color"] = {"mode": "palette-classic"}
        defaults["min"] = 0
        defaults["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 25 if panel.stacked else 8,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"group": "A", "mode": "normal" if panel.stacked else "none"},
            "thresholdsStyle": {"mode": "line" if panel.thresholds else "off"},
        }
        made["options"] = _GRAPH_OPTIONS
    return made


_STAT_OPTIONS: _Json = {
    "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    "colorMode": "value",
    "graphMode": "none",
    "justifyMode": "auto",
    "orientation": "auto",
    "textMode": "auto",
}
_GRAPH_OPTIONS: _Json = {
    "legend": {"displayMode": "table", "placement": "bottom", "showLegend": True, "calcs": ["lastNotNull", "max"]},
    "tooltip": {"mode": "multi", "sort": "desc"},
}
_HEATMAP_OPTIONS: _Json = {
    "calculate": False,
    "cellGap": 1,
    "color": {"mode": "scheme", "scheme": "Oranges", "exponent": 0.5, "fill": "dark-orange", "steps": 64},
    "filterValues": {"le": 1e-9},
    "legend": {"show": True},
    "rowsFrame": {"layout": "auto"},
    "tooltip": {"mode": "single", "yHistogram": False},
}


def _thresholds(thresholds: Mapping[float, str]) -> _Json:
    steps: list[_Json] = [{"color": "green", "value": None}]
    return {"mode": "absolute", "steps": steps + [{"color": of, "value": at} for at, of in sorted(thresholds.items())]}


def _target(query: Query, kind: Kind, at: int) -> _Json:
    table, heatmap = kind is Kind.TABLE, kind is Kind.HEATMAP
    # A number's last value within the dashboard's range would outlive the exporter that told it.
    instant = kind in (Kind.TABLE, Kind.STAT)
    return {
        "refId": chr(ord("A") + at),
        "datasource": _SOURCE,
        "editorMode": "code",
        "expr": query.expression,
        "legendFormat": "{{le}}" if heatmap else query.legend if table else f"{query.legend} {_IN_LEGEND}".lstrip(),
        "format": "table" if table else "heatmap" if heatmap else "time_series",
        "instant": instant,
        "range": not instant,
    }


def _columns(panel: Panel) -> list[_Json]:
    """The queries' results side by side, a line for each set of labels."""
    several = len(panel.queries) > 1
    names = {f"Value #{chr(ord('A') + at)}" if several else "Value": of.legend for at, of in enumerate(panel.queries)}
    columns = {**_RELEASE, **panel.columns}
    order = [*columns, *names]
    return [
        {"id": "merge", "options": {}},
        {
            "id": "organize",
            "options": {
                "excludeByName": {"Time": True},
                "indexByName": {name: at for at, name in enumerate(order)},
                "renameByName": {**columns, **names},
            },
        },
    ]
