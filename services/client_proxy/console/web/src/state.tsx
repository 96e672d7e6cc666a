import { useState } from "preact/hooks";
import { bytes, duration, moment, plural, rate, whole } from "./format";
import { ColourChoice, GroupMap, Legend, type ColourBy } from "./group_map";
import { Hottest } from "./hottest";
import { lately, nameOf, samplesOf } from "./history";
import { serversOf } from "./key_groups";
import { LatencyCard } from "./latency";
import { LookUp } from "./lookup";
import { OwnersTimeline } from "./owners";
import { Ago, Fact, Freshness, Loaded, Size, Troubles } from "./parts";
import { usePoll } from "./poll";
import { epochsHref } from "./route";
import { Sparkline } from "./sparkline";
import type { Copy, StateDetail } from "./types";
import { labelOf, Watching, type Watched } from "./watching";

const secondsOf = (data: StateDetail): number => data.poll_seconds;

export function StatePage({ application, state }: { application: string; state: string }) {
  const path = `/console/api/states/${encodeURIComponent(application)}/${encodeURIComponent(state)}`;
  const polled = usePoll<StateDetail>(path, secondsOf);
  return (
    <>
      <p class="crumbs">
        <a href="#/">Overview</a> / {application}
      </p>
      <h1 class="name">{state}</h1>
      <Loaded polled={polled}>{(detail) => <Detail key={detail.descriptor.application} detail={detail} />}</Loaded>
    </>
  );
}

function Detail({ detail }: { detail: StateDetail }) {
  const { descriptor, runs, copies, troubles } = detail;
  const { standing } = detail.standing;
  const [by, setBy] = useState<ColourBy>("status");
  const [watched, setWatched] = useState<Watched[]>([]);
  const servers = serversOf(runs);
  return (
    <>
      <dl class="facts">
        <Fact name="Kind" value={descriptor.kind} />
        <Fact name="Query" value={descriptor.query} />
        <Fact name="Fed by" value={standing.fed_by} />
        <Fact name="Entries" value={<Size of={standing} text={whole(standing.entries)} />} />
        <Fact name="In stores" value={<Size of={standing} text={bytes(standing.bytes)} />} />
        {standing.fed_by === "epochs" ? (
          <div>
            <dt>Epoch</dt>
            <dd>
              <a href={epochsHref(standing)}>{whole(standing.epoch)}</a>{" "}
              <span class="muted">
                <Ago ms={standing.commit_time_ms} />
              </span>
            </dd>
          </div>
        ) : (
          <Fact name="Updates waiting" value={whole(standing.lag_updates)} />
        )}
        <div>
          <dt>Age of what is read</dt>
          <dd>
            <Freshness of={standing} />
          </dd>
        </div>
        {standing.fed_by === "epochs" ? (
          <Fact name="Epochs sent again" value={whole(detail.standing.replayed_epochs)} />
        ) : null}
        <Fact name="Followed by" value={standing.standbys ? plural(standing.standbys, "server") : "nobody"} />
        <Fact name="Entries live" value={descriptor.ttl_ms ? duration(descriptor.ttl_ms) : "until deleted"} />
      </dl>
      <Troubles of={troubles} />
      <LastMinutes name={nameOf(standing)} />
      {detail.standing.latency ? <LatencyCard name={nameOf(standing)} latency={detail.standing.latency} /> : null}
      {detail.missing ? <p class="muted">{detail.missing}</p> : null}
      <section class="card">
        <div class="head">
          <h2>{plural(descriptor.key_groups, "key group")}</h2>
          <ColourChoice by={by} choose={setBy} />
        </div>
        <Legend by={by} servers={servers} />
        <GroupMap
          runs={runs}
          count={descriptor.key_groups}
          servers={servers}
          by={by}
          copies={copies}
          hint
          label={`the key groups of ${descriptor.application}/${descriptor.state}`}
        />
        <OwnersTimeline runs={runs} count={descriptor.key_groups} servers={servers} at={detail.at_ms} />
      </section>
      <div class="columns">
        <div>
          <LookUp
            detail={detail}
            watched={watched}
            watch={(key) => setWatched((before) => [...before, { key }])}
          />
          {watched.length ? (
            <Watching
              descriptor={descriptor}
              watched={watched}
              unwatch={(key) => setWatched((before) => before.filter((of) => labelOf(of.key) !== labelOf(key)))}
            />
          ) : null}
        </div>
        <div>
          <Schema detail={detail} />
          <Hottest detail={detail} />
        </div>
      </div>
      <Copies of={copies} />
    </>
  );
}

/** Of the overview's answers, which go on while this page is shown. */
function LastMinutes({ name }: { name: string }) {
  const last = samplesOf(name).at(-1);
  const charts = [
    {
      title: "Age of what is read",
      now: last?.ageSeconds == null ? "…" : duration(last.ageSeconds * 1000),
      values: lately(name, (sample) => sample.ageSeconds),
    },
    {
      title: "Rows written",
      now: last?.rowsPerSecond == null ? "…" : rate(last.rowsPerSecond),
      values: lately(name, (sample) => sample.rowsPerSecond),
    },
    {
      title: "Reads through this proxy",
      now: last?.readsPerSecond == null ? "…" : rate(last.readsPerSecond),
      values: lately(name, (sample) => sample.readsPerSecond),
    },
  ];
  return (
    <section class="multiples" aria-label="The last minutes">
      {charts.map((chart) => (
        <div key={chart.title} class="card">
          <p>
            <span class="muted">{chart.title}</span> <strong class="end">{chart.now}</strong>
          </p>
          <Sparkline values={chart.values} floor={1} label={`${chart.title} during the last minutes`} />
        </div>
      ))}
    </section>
  );
}

function Schema({ detail }: { detail: StateDetail }) {
  const { descriptor } = detail;
  const columns = [
    ...descriptor.key.map((column) => ({ ...column, part: "key", indexed: false })),
    ...descriptor.map_key.map((column) => ({ ...column, part: "map key", indexed: false })),
    ...descriptor.value.fields.map((field, index) => ({
      name: field.name,
      type: field.type + (field.nullable ? "" : ", never null"),
      part: descriptor.reducers[index] ?? (field.name === descriptor.order_by ? "value, orders" : "value"),
      indexed: descriptor.index.includes(field.name),
    })),
  ];
  return (
    <section class="card">
      <h2>Schema</h2>
      <table>
        <thead>
          <tr>
            <th>Column</th>
            <th>Type</th>
            <th>Part</th>
          </tr>
        </thead>
        <tbody>
          {columns.map((column) => (
            <tr key={`${column.part} ${column.name}`}>
              <td class="name">{column.name}</td>
              <td>{column.type}</td>
              <td class="muted">
                {column.part}
                {column.indexed ? (
                  <span class="kind" title="Scans that compare it look its rows up">
                    indexed
                  </span>
                ) : null}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      <p class="muted">
        Schema version {descriptor.value.version}
        {descriptor.max_length ? `; a list keeps its last ${whole(descriptor.max_length)} elements` : ""}
        {descriptor.class_version ? `; made by version ${descriptor.class_version} of the job's class` : ""}.
      </p>
    </section>
  );
}

function Copies({ of }: { of: Copy[] }) {
  return (
    <section class="card">
      <h2>Copies</h2>
      <table class="wide">
        <thead>
          <tr>
            <th>Server</th>
            <th>Role</th>
            <th class="number">Key groups</th>
            <th class="number">Epoch</th>
            <th class="number">Behind</th>
            <th class="number">Bytes in its store</th>
            <th>As of</th>
            <th>Watermark</th>
          </tr>
        </thead>
        <tbody>
          {of.map((copy) => (
            <tr key={`${copy.server} ${copy.role}`}>
              <td data-label="Server" class="name">
                {copy.server}
              </td>
              <td data-label="Role">
                {copy.role}
                {copy.unconfirmed ? ", unconfirmed" : ""}
                {copy.ready ? "" : <Restoring of={copy} />}
              </td>
              <td data-label="Key groups" class="number">
                {whole(copy.key_groups.reduce((all, [first, last]) => all + last - first + 1, 0))}
              </td>
              <td data-label="Epoch" class="number">
                {whole(copy.epoch)}
              </td>
              <td data-label="Behind" class="number">
                {copy.lag_updates ? plural(copy.lag_updates, "update") : copy.lag_epochs ? plural(copy.lag_epochs, "epoch") : "—"}
              </td>
              <td data-label="Bytes in its store" class="number">
                {bytes(copy.bytes)}
              </td>
              <td data-label="As of">
                <Ago ms={copy.as_of_ms} none="not known" />
              </td>
              <td data-label="Watermark">{copy.watermark_ms ? moment(copy.watermark_ms) : <span class="muted">none</span>}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

function Restoring({ of }: { of: Copy }) {
  return (
    <>
      {", restoring "}
      {of.records_to_restore ? <progress value={of.restored_records} max={of.records_to_restore} /> : null}
    </>
  );
}
