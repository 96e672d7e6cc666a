/** Looks a key up, or lists its entries; both as code for elsewhere, too. */

import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, ask, statePath } from "./api";
import { LINES } from "./chart";
import { Filtered, FilterFields, given, noneFound } from "./filter";
import { KeyFields } from "./key_form";
import { AskedFor, CopyButton } from "./parts";
import { LANGUAGES, fitsPath, keyInPath, snippet, type Language } from "./snippets";
import type { AllKeys, Answer, Column, Entries, StateDetail } from "./types";
import { AnswerTable, EntriesTable, SourceLine, partsOf } from "./value";
import { labelOf, type Watched } from "./watching";

const PAGE = 50;

type Result =
  | { kind: "answer"; key: string[]; answer: Answer }
  | { kind: "entries"; key: string[]; where: string[]; entries: Entries; more: boolean }
  | { kind: "keys"; where: string[]; pages: AllKeys }
  | { kind: "error"; message: string; reason: string };

/** What a page of entries is asked for by. `at`: the name of the place where it goes on, and that. */
const paged = (where: string[], at: string, place: string | null): URLSearchParams =>
  new URLSearchParams([
    ["limit", String(PAGE)],
    ...where.map((text) => ["where", text]),
    ...(place === null ? [] : [[at, place]]),
  ]);

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
  const [filter, setFilter] = useState([""]);
  // What was asked for by the filter's form: the code is that of it, until a key is typed or looked up.
  const [listed, setListed] = useState<"entries" | "all" | null>(null);
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
      made = { kind: "error", message: error.message, reason: error.reason };
    }
    if (mine.signal.aborted) return;
    setBusy(false);
    setResult(made);
  };

  const get = async (signal: AbortSignal): Promise<Result> => {
    const { answers } = await ask<{ answers: Answer[] }>(`${path}:batchGet`, { signal, body: { keys: [wanted] } });
    return { kind: "answer", key: wanted, answer: answers[0]! };
  };

  const list = async (signal: AbortSignal, where: string[], from: string | null, before?: Entries): Promise<Result> => {
    if (first.length && !fitsPath(key)) {
      throw new ApiError("refused", "A browser takes this key for a step in a path: list its entries by `keyhole scan`.");
    }
    const entries = await ask<Entries>(
      `${path}${first.length ? `/${keyInPath(key)}` : ":scan"}?${paged(where, "from", from)}`,
      { signal },
    );
    const all = before ? { ...entries, entries: [...before.entries, ...entries.entries] } : entries;
    return { kind: "entries", key, where, entries: all, more: before !== undefined };
  };

  const browse = async (signal: AbortSignal, where: string[], after: string | null, before?: AllKeys): Promise<Result> => {
    const page = await ask<AllKeys>(`${path}:scan?${paged(where, "after", after)}`, { signal });
    return { kind: "keys", where, pages: before ? { ...page, entries: [...before.entries, ...page.entries] } : page };
  };

  const typed = (set: (texts: string[]) => void) => (texts: string[]): void => {
    setListed(null);
    set(texts);
  };

  const submit = (event: Event): void => {
    event.preventDefault();
    setListed(null);
    void run(one ? get : (signal) => list(signal, given(filter), null));
  };

  const submitFilter = (event: Event): void => {
    event.preventDefault();
    setListed(first.length ? "all" : "entries");
    void run((signal) => (first.length ? browse(signal, given(filter), null) : list(signal, given(filter), null)));
  };

  const watchable =
    result?.kind === "answer" && watched.length < LINES && !watched.some((of) => labelOf(of.key) === labelOf(result.key));
  const types = new Map(descriptor.value.fields.map((field) => [field.name, field.type]));
  const fields: Column[] = [...columns, ...descriptor.value.fields].map(({ name, type }) => ({ name, type }));
  const what = listed ?? (one ? "one" : "entries");
  const code = snippet(language, {
    descriptor,
    columns: what === "one" ? columns : first,
    key: wanted,
    what,
    where: what === "one" ? [] : given(filter),
    types: new Map(fields.map(({ name, type }) => [name, type])),
    grpcPort: detail.grpc_port,
  });
  return (
    <section class="card">
      <h2>{second.length ? "Look up, or list entries" : "Look up"}</h2>
      <form onSubmit={submit} class="lookup">
        <KeyFields columns={first} values={key} change={typed(setKey)} />
        <KeyFields columns={second} values={entry} optional change={typed(setEntry)} />
        <button type="submit" class="primary" disabled={busy || !allowed}>
          {busy ? "Asking…" : one ? "Look up" : "List entries"}
        </button>
      </form>
      {detail.may_scan ? (
        <form onSubmit={submitFilter} class="filter">
          <FilterFields columns={fields} texts={filter} change={setFilter} />
          <button type="submit" class="small" disabled={busy}>
            {first.length ? "Browse all keys" : "List all entries"}
          </button>
        </form>
      ) : null}
      {allowed ? null : (
        <p class="muted">
          That needs the verb <code>{one ? "read" : "scan"}</code> on this state, which your token has not.
        </p>
      )}
      <AskedFor
        busy={busy}
        error={result?.kind === "error" ? result.message : null}
        reason={result?.kind === "error" ? result.reason : ""}
      >
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
              none={noneFound(result.where, result.entries.next)}
            />
            <Filtered by={result.where} />
            <SourceLine of={result.entries.source} />
            {result.more ? <p class="muted">Each page is of one epoch; later pages may be of a later one.</p> : null}
            {result.entries.next === null ? null : (
              <button
                type="button"
                disabled={busy}
                onClick={() => void run((signal) => list(signal, result.where, result.entries.next, result.entries))}
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
              none={noneFound(result.where, result.pages.next)}
            />
            <Filtered by={result.where} />
            <p class="muted source">
              Key group by key group: each of one epoch, and of a time of its own. In no order that means something.
            </p>
            {result.pages.next === null ? null : (
              <button
                type="button"
                disabled={busy}
                onClick={() => void run((signal) => browse(signal, result.where, result.pages.next, result.pages))}
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
          <CopyButton text={code} />
        </div>
        <pre tabIndex={0}>{code}</pre>
      </details>
    </section>
  );
}
