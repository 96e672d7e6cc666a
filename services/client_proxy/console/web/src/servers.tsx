import { Ago, Icon, StateLink } from "./parts";
import { plural, whole } from "./format";
import type { Overview, ServerNow } from "./types";

export function ServersPage({ data }: { data: Overview }) {
  return (
    <>
      <h1>Servers</h1>
      {data.administers ? null : (
        <p class="muted">
          Shown are those that hold what you may see. Addresses, and why one is away, need the verb <code>admin</code> on
          all states.
        </p>
      )}
      <div class="cards">
        {data.servers.map((server) => (
          <Server key={server.server + server.address} of={server} />
        ))}
      </div>
      {data.servers.length === 0 ? <p class="muted">No state server is known.</p> : null}
    </>
  );
}

function Server({ of }: { of: ServerNow }) {
  return (
    <section class="card">
      <h2>
        <Icon of={of.unreachable ? "bad" : of.draining ? "note" : "ok"} />
        <span class="name">{of.server || of.address}</span>
        {of.replica ? <span class="kind">replica</span> : null}
        {of.draining ? <span class="kind">drains</span> : null}
      </h2>
      <p class="muted">
        {of.address}
        {of.started ? (
          <>
            {" "}
            · started <Ago ms={Date.parse(of.started)} />
          </>
        ) : null}
      </p>
      {of.unreachable ? <p class="level bad">{of.unreachable}</p> : null}
      <ul class="rows">
        {of.copies.map((copy) => (
          <li key={`${copy.application}/${copy.state} ${copy.role}`}>
            <StateLink of={copy} />
            <span class="end muted" title={copy.ready ? "" : "it reads the changelog"}>
              {copy.role}, {whole(copy.key_groups)} {copy.key_groups === 1 ? "group" : "groups"}
              {copy.ready ? "" : ", restoring"}
            </span>
          </li>
        ))}
        {!of.unreachable && of.copies.length === 0 ? (
          <li class="muted">{of.address ? `Holds ${plural(0, "key group")}: it waits for a job.` : ""}</li>
        ) : null}
      </ul>
    </section>
  );
}
