"""Whatever happens to pods and to the connection, the servers that are found become the pods that live."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.kubernetes_api import KubernetesApi, found_by, kubernetes_api
from tests.support.waiting import PATIENCE_SECONDS, until

NAMES = st.sampled_from(["exec-1", "exec-2", "exec-3", "exec-4"])
HOSTS = st.sampled_from([None, "10.0.0.1", "10.0.0.2", "fd00::3"])
PHASES = st.sampled_from(["Pending", "Running", "Running", "Succeeded", "Failed", "Unknown"])
VERBS = st.sampled_from(["list", "watch"])
STEPS = st.one_of(
    st.tuples(st.just("put"), NAMES, HOSTS, PHASES, st.booleans()),
    st.tuples(st.just("delete"), NAMES),
    st.tuples(st.just("drop")),
    st.tuples(st.just("forget")),
    st.tuples(st.just("bookmark")),
    st.tuples(st.just("fail"), VERBS, st.sampled_from([403, 410, 429, 500])),
    st.tuples(st.just("say"), st.sampled_from([b"{", b"{}", b'{"type":"ERROR","object":{"code":410}}'])),
    st.tuples(st.just("settle")),
)


def take(api: KubernetesApi, step: tuple[object, ...]) -> None:
    match step:
        case ("put", str(name), host, str(phase), bool(deleting)):
            api.put(name, host, phase, deleting=deleting)  # type: ignore[arg-type]
        case ("settle",):
            until(lambda: api.watching > 0)
        case (str(what), *arguments):
            getattr(api, what)(*arguments)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEPS, max_size=25), st.sampled_from([None, 1, 2]))
def test_any_sequence_of_events_breaks_and_new_lists_converges_to_the_pods_that_live(
    steps: list[tuple[object, ...]], page: int | None
) -> None:
    with kubernetes_api() as api:
        api.page = page
        with found_by(api) as servers:
            servers.wait(PATIENCE_SECONDS)
            for step in steps:
                take(api, step)
            until(lambda: servers.known() == api.live())
            api.drop()
            api.put("last", "10.9.9.9")
            until(lambda: servers.known() == api.live())
