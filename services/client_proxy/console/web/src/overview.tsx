import { Ago, Freshness, GroupsBar, Icon, StateLink, Troubles } from "./parts";
import { EventLine } from "./events";
import { bytes, plural, rate, short, whole } from "./format";
import { KEPT, nameOf, samplesOf } from "./history";
import { Sparkline } from "./sparkline";
import type { Overview, ServerNow, StateNow } from "./types";

const EVENTS = 6;

const sum = (states: StateNow[], of: (state: StateNow) => number): number =>
  states.reduce((total, state) => total + of(state), 0);

/** The last samples, with nothing where there are not that many yet: so that charts move from the right. */
function lately<T>(values: T[]): (T | null)[] {
  return [...Array<null>(KEPT - values.length).fill(null), ...values];
}

export function OverviewPage({ data }: { data: Overview }) {
  const { states, servers, troubles } = data;
  const applications = new Set(states.map(({ standing }) => standing.application)).size;
  const there = servers.filter((server) => !server.unreachable).length;
  const owned = sum(states, ({ standing }) => standing.groups.owned ?? 0);
  const groups = sum(states, ({ standing }) => standing.key_groups);
  const reading = states.map(({ standing }) => samplesOf(nameOf(standing)).at(-1)?.readsPerSecond ?? null);
  const reads = reading.every((of) => of === null) ? null : reading.reduce<number>((all, of) => all + (of ?? 0), 0);
  return (
    <>
      <h1 class="sr">Overview</h1>
      <section aria-label="What is wrong">
        <Troubles
          of={troubles}
          none={
            states.length
              ? `Nothing is wrong: ${owned === groups ? "all " : ""}${plural(owned, "key group")} owned, and all answers confirmed.`
              : undefined
          }
        />
      </section>
      <section class="tiles" aria-label="In all">
        <Tile name="Applications" value={whole(applications)} />
        <Tile name="States" value={whole(states.length)} />
        <Tile name="Entries" value={short(sum(states, ({ standing }) => standing.entries))} />
        <Tile name="In stores" value={bytes(sum(states, ({ standing }) => standing.bytes))} />
        <Tile name="Servers" value={there === servers.length ? whole(there) : `${there} of ${servers.length}`} />
        <Tile name="Reads, this proxy" value={reads === null ? "…" : rate(reads)} />
      </section>
      {states.length ? <States of={states} /> : <NoStates servers={servers} />}
      <div class="columns">
        <section class="card">
          <h2>
            <a href="#/servers">Servers</a>
          </h2>
          <ul class="rows">
            {servers.map((server) => (
              <li key={server.server + server.address}>
                <Icon of={server.unreachable ? "bad" : server.draining ? "note" : "ok"} />
                <span class="name">{server.server || server.address}</span>
                <span class="muted end">
                  {server.unreachable ? "away" : server.draining ? "drains" : server.replica ? "replica" : "answers"}
                </span>
              </li>
            ))}
            {servers.length === 0 ? <li class="muted">No state server is known.</li> : null}
          </ul>
        </section>
        <section class="card">
          <h2>
            <a href="#/events">Latest events</a>
          </h2>
          <ul class="rows">
            {data.events
              .slice(-EVENTS)
              .reverse()
              .map((event) => (
                <li key={event.number}>
                  <EventLine of={event} />
                  <span class="muted end">
                    <Ago ms={event.at_ms} />
                  </span>
                </li>
              ))}
            {data.events.length === 0 ? <li class="muted">None since the proxy began.</li> : null}
          </ul>
        </section>
      </div>
    </>
  );
}

function Tile({ name, value }: { name: string; value: string }) {
  return (
    <div class="tile">
      <span class="figure">{value}</span>
      <span class="muted">{name}</span>
    </div>
  );
}

function States({ of }: { of: StateNow[] }) {
  return (
    <section class="card">
      <h2>States</h2>
      <table class="wide">
        <thead>
          <tr>
            <th>State</th>
            <th>Key groups</th>
            <th class="number">Entries</th>
            <th class="number">Bytes</th>
            <th class="number">Epoch</th>
            <th>Age of what is read</th>
            <th>Reads</th>
          </tr>
        </thead>
        <tbody>
          {of.map(({ standing }) => {
            const samples = samplesOf(nameOf(standing));
            const last = samples.at(-1);
            return (
              <tr key={nameOf(standing)}>
                <td data-label="State">
                  <StateLink of={standing} /> <span class="kind">{standing.kind}</span>
                </td>
                <td data-label="Key groups">
                  <GroupsBar of={standing} />
                  <span class="beside muted">
                    {whole(standing.groups.owned ?? 0)}/{whole(standing.key_groups)}
                  </span>
                </td>
                <td data-label="Entries" class="number">
                  {short(standing.entries)}
                </td>
                <td data-label="Bytes" class="number">
                  {bytes(standing.bytes)}
                </td>
                <td data-label="Epoch" class="number">
                  {standing.fed_by === "updates" ? (
                    <span class="muted" title="It is fed by updates: each key group has epochs of its own">
                      per group
                    </span>
                  ) : (
                    <>
                      {whole(standing.epoch)}{" "}
                      <span class="muted under">
                        <Ago ms={standing.commit_time_ms} />
                      </span>
                    </>
                  )}
                </td>
                <td data-label="Age of what is read">
                  <span class="with-spark">
                    <Freshness of={standing} />
                    <Sparkline
                      values={lately(samples.map((sample) => sample.ageSeconds))}
                      floor={2}
                      label="age during the last minutes"
                    />
                  </span>
                </td>
                <td data-label="Reads">
                  <span class="with-spark">
                    <span>{last?.readsPerSecond == null ? "…" : rate(last.readsPerSecond)}</span>
                    <Sparkline
                      values={lately(samples.map((sample) => sample.readsPerSecond))}
                      floor={1}
                      label="reads per second during the last minutes"
                    />
                  </span>
                </td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </section>
  );
}

function NoStates({ servers }: { servers: ServerNow[] }) {
  return (
    <section class="card empty">
      <h2>There is no state yet</h2>
      <p>
        {servers.length
          ? "State servers answer, and wait for a job, or a feeder, that gives them key groups."
          : "No state that you may see is held by any server."}
      </p>
      <p class="todo">
        Start a job whose states are queryable, or <code>keyhole feed APPLICATION/STATE --topic TOPIC --key COLUMN</code>.
        It is seen here as soon as it is there.
      </p>
    </section>
  );
}
