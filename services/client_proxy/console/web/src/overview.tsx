import { Ago, Freshness, GroupsBar, Icon, Size, StateLink, Troubles } from "./parts";
import { EventLine } from "./events";
import { bytes, plural, rate, short, whole } from "./format";
import { lately, nameOf, samplesOf, type Sample } from "./history";
import { Sparkline } from "./sparkline";
import type { Overview, ServerNow, StateNow } from "./types";

const EVENTS = 6;

const sum = (states: StateNow[], of: (state: StateNow) => number): number =>
  states.reduce((total, state) => total + of(state), 0);

export function OverviewPage({ data }: { data: Overview }) {
  const { states, servers, troubles } = data;
  const applications = new Set(states.map(({ standing }) => standing.application)).size;
  const owned = sum(states, ({ standing }) => standing.groups.owned ?? 0);
  const groups = sum(states, ({ standing }) => standing.key_groups);
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
        <Tile name="Rows written" value={total(states, (sample) => sample.rowsPerSecond)} />
        <Tile name="Reads, this proxy" value={total(states, (sample) => sample.readsPerSecond)} />
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

function total(states: StateNow[], of: (sample: Sample) => number | null): string {
  const known = states.flatMap(({ standing }) => {
    const last = samplesOf(nameOf(standing)).at(-1);
    return last && of(last) !== null ? [of(last)!] : [];
  });
  return known.length ? rate(known.reduce((all, one) => all + one, 0)) : "…";
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
            <th>Rows written</th>
            <th>Reads</th>
          </tr>
        </thead>
        <tbody>
          {of.map(({ standing }) => {
            const name = nameOf(standing);
            const last = samplesOf(name).at(-1);
            return (
              <tr key={name}>
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
                  <Size of={standing} text={short(standing.entries)} />
                </td>
                <td data-label="Bytes" class="number">
                  <Size of={standing} text={bytes(standing.bytes)} />
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
                      values={lately(name, (sample) => sample.ageSeconds)}
                      floor={2}
                      label="age during the last minutes"
                    />
                  </span>
                </td>
                <td data-label="Rows written">
                  <Rate now={last?.rowsPerSecond} values={lately(name, (sample) => sample.rowsPerSecond)} of="rows written" />
                </td>
                <td data-label="Reads">
                  <Rate now={last?.readsPerSecond} values={lately(name, (sample) => sample.readsPerSecond)} of="reads" />
                </td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </section>
  );
}

function Rate({ now, values, of }: { now: number | null | undefined; values: (number | null)[]; of: string }) {
  return (
    <span class="with-spark">
      <span>{now == null ? "…" : rate(now)}</span>
      <Sparkline values={values} floor={1} label={`${of} per second during the last minutes`} />
    </span>
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
