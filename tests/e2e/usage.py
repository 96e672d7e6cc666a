"""What each container takes, as its node tells."""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.kube import Namespace, run

_Sample = dict[str, tuple[float, int]]
_CPU, _MEMORY = "container_cpu_usage_seconds_total", "container_memory_working_set_bytes"


def measured(space: Namespace, during: Callable[[], object]) -> dict[str, dict[str, float]]:
    """By component and container: cores on average meanwhile, and MiB at the end; the pods of a component added up."""
    before, began = _sample(space), time.monotonic()
    during()
    after, took = _sample(space), time.monotonic() - began
    found: dict[str, dict[str, float]] = {}
    for name, (cpu_seconds, memory_bytes) in after.items():
        if name not in before:
            continue
        _, component = name.split("\t")
        of = found.setdefault(component, {"cores": 0.0, "mebibytes": 0})
        of["cores"] = round(of["cores"] + (cpu_seconds - before[name][0]) / took, 3)
        of["mebibytes"] += memory_bytes >> 20
    return found


def _sample(space: Namespace) -> _Sample:
    """Processor seconds and bytes, by pod and container, tab, component and container."""
    components = {
        pod["metadata"]["name"]: pod["metadata"].get("labels", {}).get("app.kubernetes.io/component", "")
        for pod in space.objects("pods")
    }
    found: _Sample = {}
    for node in run("kubectl", "get", "nodes", "-o", "name").split():
        # Of the kubelet's pages the one that every runtime can fill.
        page = run("kubectl", "get", "--raw", f"/api/v1/nodes/{node.removeprefix('node/')}/proxy/metrics/resource")
        samples = {
            (of.name, of.labels["pod"], of.labels["container"]): of.value
            for family in text_string_to_metric_families(page)
            for of in family.samples
            if of.labels.get("namespace") == space.name and "container" in of.labels
        }
        for (what, pod, container), seconds in samples.items():
            if what == _CPU and components.get(pod):
                memory = int(samples.get((_MEMORY, pod, container), 0))
                found[f"{pod}/{container}\t{components[pod]}/{container}"] = (seconds, memory)
    return found
