import { Ago, StateLink } from "./parts";
import { clock, duration, moment, plural, whole } from "./format";
import type { Overview, RouteEvent } from "./types";

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

/** Of a copy that begins to read its changelog, or has read it. */
function restore({ server, kind, role, key_groups = 0, took_ms = 0 }: RouteEvent): string {
  const follows = role === "standby";
  if (kind === "restore_began") return `${server} ${follows ? "catches up, to follow it" : "begins to restore it"}`;
  const has = follows ? `has caught up, and follows ${plural(key_groups, "key group")}` : `has restored it, and owns ${plural(key_groups, "key group")}`;
  return `${server} ${has}: ${duration(took_ms)}`;
}

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
        : of.kind.startsWith("restore_")
          ? restore(of)
          : (WORDS[of.kind] ?? of.kind)}
      {full && of.reason ? <span class="muted reason">{of.reason}</span> : null}
    </span>
  );
}

const WAYS: Record<string, string> = {
  unauthenticated: "without a valid token or certificate",
  denied: "without the right",
  limit: "beyond a limit of calls",
  caller_calls: "beyond a caller's calls",
  calls: "beyond all callers' calls",
  caller_keys: "beyond a caller's keys under way",
  keys: "beyond all keys under way",
  caller_rate: "beyond a caller's keys a second",
  rate: "beyond all keys a second",
};

function Refused({ data }: { data: Overview }) {
  const away = Object.entries(data.turned_away);
  return (
    <section class="card refused">
      <h2>Refused reads</h2>
      <p class="muted">Keys and scans that this proxy has refused since it began, by reason; the last ones first.</p>
      {data.refusals.length ? (
        <table class="wide">
          <thead>
            <tr>
              <th>State</th>
              <th>Reason</th>
              <th class="number">Keys and scans</th>
              <th>Last</th>
            </tr>
          </thead>
          <tbody>
            {data.refusals.map((of) => (
              <tr key={`${of.application}/${of.state} ${of.reason}`}>
                <td data-label="State">{of.state ? <StateLink of={of} /> : <span class="muted">no state that there is</span>}</td>
                <td data-label="Reason" class="name">
                  {of.reason}
                </td>
                <td data-label="Keys and scans" class="number">
                  {whole(of.count)}
                </td>
                <td data-label="Last">
                  <Ago ms={of.last_ms} none="not known" />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      ) : (
        <p class="muted">None so far.</p>
      )}
      {away.length ? (
        <p>
          Turned away at the entrance: {away.map(([why, count]) => `${whole(count)} ${WAYS[why] ?? why}`).join(", ")}.
        </p>
      ) : null}
    </section>
  );
}

export function EventsPage({ data }: { data: Overview }) {
  const { events, administers } = data;
  return (
    <>
      <h1>Events</h1>
      <p class="muted">
        What this proxy has noticed since it began: servers that came and went, and key groups that moved, the last 200; and
        the last 200 restores.
        {administers ? "" : " Events of servers are shown to those with the verb admin on all states."}
      </p>
      <Refused data={data} />
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
