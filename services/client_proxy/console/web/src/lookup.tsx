/** Looks a key up, or lists its entries; both as code for elsewhere, too. */

import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, ask, statePath } from "./api";
import { LINES } from "./chart";
import { KeyFields } from "./key_form";
import { AskedFor, CopyButton } from "./parts";
import { LANGUAGES, fitsPath, keyInPath, snippet, type Language } from "./snippets";
import type { AllKeys, Answer, Column, Entries, StateDetail } from "./types";
import { AnswerTable, EntriesTable, SourceLine, partsOf } from "./value";
import { labelOf, type Watched } from "./watching";

const PAGE = 50;

type Result =
  | { kind: "answer"; key: string[]; answer: Answer }
  | { kind: "entries"; key: string[]; entries: Entries; more: boolean }
  | { kind: "keys"; pages: AllKeys }
  | { kind: "error"; message: string };

const initial = (columns: Column[]): string[] => columns.map((column) => (column.type === "boolean" ? "true" : ""));

export function LookUp({
  detail,
  watched,
  watch,
}: {
  detail: StateDetail;
  watched: Watched[];
  watch: (key: string[]) => void;
}) {
  const { descriptor, scan_key: first, entry_key: second } = detail;
  const [key, setKey] = useState(() => initial(first));
  const [entry, setEntry] = useState(() => second.map(() => ""));
  const [result, setResult] = useState<Result | null>(null);
  const [busy, setBusy] = useState(false);
  const [language, setLanguage] = useState<Language>("Python");
  const request = useRef<AbortController | null>(null);
  useEffect(() => () => request.current?.abort(), []);

  const columns = [...first, ...second];
  const one = second.length === 0 || entry.some((text) => text !== "");
  const path = statePath(descriptor.application, descriptor.state);
  const allowed = one ? detail.may_read : detail.may_scan;
  const wanted = one ? [...key, ...entry] : key;

  const run = async (make: (signal: AbortSignal) => Promise<Result>): Promise<void> => {
    request.current?.abort();
    const mine = (request.current = new AbortController());
    setBusy(true);
    let made: Result;
    try {
      made = await make(mine.signal);
    } catch (error) {
      if (mine.signal.aborted) return;
      if (!(error instanceof ApiError)) throw error;
      made = { kind: "error", message: error.message };
    }
    if (mine.signal.aborted) return;
    setBusy(false);
    setResult(made);
  };

  const get = async (signal: AbortSignal): Promise<Result> => {
    const { answers } = await ask<{ answers: Answer[] }>(`${path}:batchGet`, { signal, body: { keys: [wanted] } });
    return { kind: "answer", key: wanted, answer: answers[0]! };
  };

  const list = async (signal: AbortSignal, from: string | null, before?: Entries): Promise<Result> => {
    if (first.length && !fitsPath(key)) {
      throw new ApiError("refused", "A browser takes this key for a step in a path: list its entries by `keyhole scan`.");
    }
    const query = new URLSearchParams({ limit: String(PAGE), ...(from === null ? {} : { from }) });
    const where = first.length ? `/${keyInPath(key)}` : ":scan";
    const entries = await ask<Entries>(`${path}${where}?${query}`, { signal });
    const all = before ? { ...entries, entries: [...before.entries, ...entries.entries] } : entries;
    return { kind: "entries", key, entries: all, more: before !== undefined };
  };

  const browse = async (signal: AbortSignal, after: string | null, before?: AllKeys): Promise<Result> => {
    const query = new URLSearchParams({ limit: String(PAGE), ...(after === null ? {} : { after }) });
    const page = await ask<AllKeys>(`${path}:scan?${query}`, { signal });
    return { kind: "keys", pages: before ? { ...page, entries: [...before.entries, ...page.entries] } : page };
  };

  const submit = (event: Event): void => {
    event.preventDefault();
    void run(one ? get : (signal) => list(signal, null));
  };

  const watchable =
    result?.kind === "answer" && watched.length < LINES && !watched.some((of) => labelOf(of.key) === labelOf(result.key));
  const types = new Map(descriptor.value.fields.map((field) => [field.name, field.type]));
  return (
    <section class="card">
      <h2>{second.length ? "Look up, or list entries" : "Look up"}</h2>
      <form onSubmit={submit} class="lookup">
        <KeyFields columns={first} values={key} change={setKey} />
        <KeyFields columns={second} values={entry} optional change={setEntry} />
        <button type="submit" class="primary" disabled={busy || !allowed}>
          {busy ? "Asking…" : one ? "Look up" : "List entries"}
        </button>
      </form>
      {first.length && detail.may_scan ? (
        <p>
          <button type="button" class="small" disabled={busy} onClick={() => void run((signal) => browse(signal, null))}>
            Browse all keys
          </button>
        </p>
      ) : null}
      {allowed ? null : (
        <p class="muted">
          That needs the verb <code>{one ? "read" : "scan"}</code> on this state, which your token has not.
        </p>
      )}
      <AskedFor busy={busy} error={result?.kind === "error" ? result.message : null}>
        {result?.kind === "answer" ? (
          <>
            <AnswerTable of={result.answer} types={types} />
            {watchable ? (
              <button type="button" onClick={() => watch(result.key)}>
                Watch this key
              </button>
            ) : null}
          </>
        ) : null}
        {result?.kind === "entries" ? (
          <>
            <EntriesTable
              rows={result.entries.entries.map(({ map_key, value }) => ({ key: partsOf(map_key, second.length), value }))}
              fields={descriptor.value.fields.map(({ name }) => name)}
              keys={second.map(({ name }) => name)}
            />
            <SourceLine of={result.entries.source} />
            {result.more ? <p class="muted">Each page is of one epoch; later pages may be of a later one.</p> : null}
            {result.entries.next === null ? null : (
              <button
                type="button"
                disabled={busy}
                onClick={() => void run((signal) => list(signal, result.entries.next, result.entries))}
              >
                Next {PAGE}
              </button>
            )}
          </>
        ) : null}
        {result?.kind === "keys" ? (
          <>
            <EntriesTable
              rows={result.pages.entries.map(({ key, map_key, value }) => ({
                key: [...partsOf(key, first.length), ...(map_key === undefined ? [] : partsOf(map_key, second.length))],
                value,
              }))}
              fields={descriptor.value.fields.map(({ name }) => name)}
              keys={columns.map(({ name }) => name)}
            />
            <p class="muted source">
              Key group by key group: each of one epoch, and of a time of its own. In no order that means something.
            </p>
            {result.pages.next === null ? null : (
              <button
                type="button"
                disabled={busy}
                onClick={() => void run((signal) => browse(signal, result.pages.next, result.pages))}
              >
                Next {PAGE}
              </button>
            )}
          </>
        ) : null}
      </AskedFor>
      <details class="code">
        <summary>The same in Python, curl or gRPC</summary>
        <div class="head">
          <div class="choice" role="group" aria-label="Language">
            {LANGUAGES.map((of) => (
              <button key={of} type="button" aria-pressed={of === language} onClick={() => setLanguage(of)}>
                {of}
              </button>
            ))}
          </div>
          <CopyButton text={snippet(language, code(detail, one, wanted, columns))} />
        </div>
        <pre tabIndex={0}>{snippet(language, code(detail, one, wanted, columns))}</pre>
      </details>
    </section>
  );
}

function code(detail: StateDetail, one: boolean, key: string[], columns: Column[]) {
  return {
    descriptor: detail.descriptor,
    columns: one ? columns : detail.scan_key,
    key,
    scan: !one,
    grpcPort: detail.grpc_port,
  };
}
