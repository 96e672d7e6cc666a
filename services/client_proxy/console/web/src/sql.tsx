/** One SELECT over states, as DuckDB beside the proxy runs it: its first rows, and what the servers were asked for them. */

import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, ask } from "./api";
import { milliseconds, plural, whole } from "./format";
import { AskedFor, CopyButton } from "./parts";
import type { Overview, SqlFound } from "./types";
import { Value } from "./value";

const KEPT = "keyhole-sql";
const SECONDS = 100;

type Result = { kind: "found"; found: SqlFound } | { kind: "error"; message: string };

/** In single quotes, as a shell takes it. */
const quoted = (text: string): string => `'${text.replaceAll("'", "'\\''")}'`;

export function SqlPage({ data }: { data: Overview }) {
  const first = data.states[0]?.standing;
  const [query, setQuery] = useState(
    () => sessionStorage.getItem(KEPT) ?? (first ? `select *\nfrom '${first.application}/${first.state}'\nlimit 20` : "select 1 as one"),
  );
  const [result, setResult] = useState<Result | null>(null);
  const [busy, setBusy] = useState(false);
  const request = useRef<AbortController | null>(null);
  const text = useRef<HTMLTextAreaElement>(null);
  useEffect(() => () => request.current?.abort(), []);

  const change = (to: string): void => {
    setQuery(to);
    sessionStorage.setItem(KEPT, to);
  };

  const run = async (): Promise<void> => {
    // As it stands there: what was typed a moment ago may not be rendered yet.
    const query = text.current!.value;
    if (request.current || query.trim() === "") return;
    const mine = (request.current = new AbortController());
    setBusy(true);
    let made: Result;
    try {
      made = { kind: "found", found: await ask<SqlFound>("/console/api/sql", { body: { query }, signal: mine.signal, seconds: SECONDS }) };
    } catch (error) {
      if (mine.signal.aborted) return;
      if (!(error instanceof ApiError)) throw error;
      made = { kind: "error", message: error.message };
    }
    request.current = null;
    setBusy(false);
    setResult(made);
  };

  /** Where the caret is. */
  const insert = (name: string): void => {
    const { selectionStart: from, selectionEnd: to } = text.current!;
    change(query.slice(0, from) + name + query.slice(to));
    text.current!.focus();
  };

  if (data.no_sql) {
    return (
      <>
        <h1>SQL</h1>
        <section class="card empty">
          <p>There is no SQL in this console.</p>
          <p class="todo">{data.no_sql}</p>
        </section>
      </>
    );
  }
  return (
    <>
      <h1>SQL</h1>
      <section class="card">
        <form
          class="sql"
          onSubmit={(event) => {
            event.preventDefault();
            void run();
          }}
        >
          <label class="field">
            <span>One SELECT; a state is named &#39;APPLICATION/STATE&#39;, in quotes</span>
            <textarea
              ref={text}
              rows={Math.min(16, Math.max(4, query.split("\n").length))}
              spellcheck={false}
              autocomplete="off"
              value={query}
              onInput={(event) => change(event.currentTarget.value)}
              onKeyDown={(event) => {
                if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
                event.preventDefault();
                void run();
              }}
            />
          </label>
          <div class="names" role="group" aria-label="States to insert">
            {data.states.map(({ standing: { application, state } }) => (
              <button key={`${application}\n${state}`} type="button" class="small name" onClick={() => insert(`'${application}/${state}'`)}>
                {application}/{state}
              </button>
            ))}
          </div>
          <div class="head">
            <button type="submit" class="primary" disabled={busy || query.trim() === ""}>
              {busy ? "Running…" : "Run"}
            </button>
            <span class="muted">Ctrl+Enter runs it</span>
            <span class="muted">
              as a command <CopyButton text={`keyhole sql ${quoted(query)}`} />
            </span>
          </div>
        </form>
      </section>
      <AskedFor busy={busy} error={result?.kind === "error" ? result.message : null}>
        {result?.kind === "found" ? <Found of={result.found} /> : null}
      </AskedFor>
    </>
  );
}

function Found({ of }: { of: SqlFound }) {
  const shown = of.rows.length;
  return (
    <section class="card">
      <h2>
        {shown < of.total ? `The first ${whole(shown)} of ${plural(of.total, "row")}` : plural(of.total, "row")}
        <span class="muted">in {milliseconds(of.seconds * 1000)}</span>
      </h2>
      <div class="scrolls" tabIndex={0} role="region" aria-label="rows">
        <table>
          <thead>
            <tr>
              {of.columns.map((name, at) => (
                <th key={at} scope="col">
                  {name}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {of.rows.map((row, index) => (
              <tr key={index}>
                {row.map((value, at) => (
                  <td key={at}>
                    <Value of={value} />
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <ul class="muted source">
        {of.scans.map((scan, at) => (
          <li key={at}>
            <span class="name">{scan.state}</span>, {scan.epoch ? `epoch ${whole(scan.epoch)}` : "each key group of its own epoch"}:
            the servers sent {scan.entries === 1 ? "1 entry" : `${whole(scan.entries)} entries`}, of {scan.columns.join(", ") || "no column"}
            {scan.where ? ` where ${scan.where}` : ""}
            {scan.indexes.length ? `, by an index of ${scan.indexes.join(" or ")} where that pays` : ""}.
          </li>
        ))}
      </ul>
    </section>
  );
}
