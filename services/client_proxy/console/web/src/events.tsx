import { Ago, StateLink } from "./parts";
import { clock, moment, plural } from "./format";
import type { RouteEvent } from "./types";

const WORDS: Record<string, string> = {
  server_found: "answers",
  server_lost: "was lost",
  server_silent: "keeps silent",
  server_heard: "is heard again",
  server_draining: "begins to drain",
  server_gone: "is no longer among the servers",
  state_added: "appeared",
  state_removed: "is gone",
};

const LEVELS: Record<string, string> = { server_lost: "bad", server_silent: "warning", state_removed: "warning" };

export function EventLine({ of, full = false }: { of: RouteEvent; full?: boolean }) {
  const moves = of.moves ?? [];
  return (
    <span class={`event ${LEVELS[of.kind] ?? ""}`}>
      {of.state ? (
        <StateLink of={{ application: of.application ?? "", state: of.state }} />
      ) : (
        <span class="name">{of.server}</span>
      )}{" "}
      {of.kind === "key_groups_moved"
        ? moves
            .slice(0, full ? moves.length : 1)
            .map((move) => `${plural(move.key_groups, "key group")}: ${move.origin || "nobody"} → ${move.target || "nobody"}`)
            .join("; ") + (full || moves.length < 2 ? "" : ", …")
        : (WORDS[of.kind] ?? of.kind)}
      {full && of.reason ? <span class="muted reason">{of.reason}</span> : null}
    </span>
  );
}

export function EventsPage({ events, administers }: { events: RouteEvent[]; administers: boolean }) {
  return (
    <>
      <h1>Events</h1>
      <p class="muted">
        The last 200 that this proxy has noticed since it began: servers that came and went, and key groups that moved.
        {administers ? "" : " Events of servers are shown to those with the verb admin on all states."}
      </p>
      <section class="card">
        <ol class="rows timeline">
          {[...events].reverse().map((event) => (
            <li key={event.number}>
              <time class="muted at" dateTime={new Date(event.at_ms).toISOString()} title={moment(event.at_ms)}>
                {clock(event.at_ms)}
              </time>
              <EventLine of={event} full />
              <span class="muted end">
                <Ago ms={event.at_ms} />
              </span>
            </li>
          ))}
          {events.length === 0 ? <li class="muted">None so far.</li> : null}
        </ol>
      </section>
    </>
  );
}
