/** What the last epochs of a query took: a bar for each, in its parts. */

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { clock, milliseconds, moment, plural, whole } from "./format";
import { Fact, Hint, Loaded } from "./parts";
import { usePoll } from "./poll";
import { epochsHref, type Route } from "./route";
import type { EpochTimes, Overview, QueryEpochs } from "./types";

const SHOWN = 60;
const IN_TABLE = 20;
/** Bars beyond so many times the median are cut: else a query's first batch makes all others too small to see. */
const MOST_MEDIANS = 4;

type Part = "spark" | "servers" | "stage" | "commit" | "complete";

const PARTS: [Part, string, string][] = [
  ["spark", "Spark", "Spark's planning and logs, and the sink until it stages"],
  ["servers", "servers", "Until each key group had a server that was ready; of a run's first epoch also until it had taken the query over"],
  ["stage", "stage", "Spark's tasks computed the rows and sent them to the servers"],
  ["commit", "commit", "The servers wrote the changelog and their stores"],
  ["complete", "complete", "The control topic was told that all had committed"],
];

const secondsOf = (data: QueryEpochs): number => data.poll_seconds;

/** Milliseconds of each part, which are all of its time. Spark's is 0 while Spark has not reported the batch. */
export function partsOf(of: EpochTimes): Record<Part, number> {
  return {
    spark: of.batch_ms === null ? 0 : Math.max(0, of.batch_ms - of.ms),
    servers: Math.max(0, of.ms - of.stage_ms - of.commit_ms - of.complete_ms),
    stage: of.stage_ms,
    commit: of.commit_ms,
    complete: of.complete_ms,
  };
}

const lengthOf = (of: EpochTimes): number => Math.max(of.batch_ms ?? 0, of.ms);

function quantile(values: number[], share: number): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? 0;
}

export function EpochsPage({ route, data }: { route: Route & { page: "epochs" }; data: Overview }) {
  const queries = queriesOf(data);
  const chosen = route.query === undefined ? queries[0] : { application: route.application!, query: route.query };
  return (
    <>
      <div class="head">
        <h1>Epochs</h1>
        {queries.length > 1 ? (
          <nav class="queries" aria-label="Queries">
            {queries.map((of) => (
              <a
                key={`${of.application}\n${of.query}`}
                href={epochsHref(of)}
                aria-current={of.application === chosen?.application && of.query === chosen.query ? "page" : undefined}
              >
                <span class="name">
                  <span class="of">{of.application}/</span>
                  {of.query}
                </span>
              </a>
            ))}
          </nav>
        ) : null}
      </div>
      {chosen ? (
        <OfQuery key={`${chosen.application}\n${chosen.query}`} application={chosen.application} query={chosen.query} />
      ) : (
        <p class="muted">No query that you may see feeds its states by epochs.</p>
      )}
    </>
  );
}

function queriesOf(data: Overview): { application: string; query: string }[] {
  const found = new Map<string, { application: string; query: string }>();
  for (const { standing } of data.states) {
    const { application, query, fed_by } = standing;
    if (fed_by === "epochs") found.set(`${application}\n${query}`, { application, query });
  }
  return [...found.values()];
}

function OfQuery({ application, query }: { application: string; query: string }) {
  const path = `/console/api/epochs/${encodeURIComponent(application)}/${encodeURIComponent(query)}`;
  const polled = usePoll<QueryEpochs>(path, secondsOf);
  return (
    <Loaded polled={polled}>
      {(data) =>
        data.epochs.length ? (
          <Timeline epochs={data.epochs.slice(-SHOWN)} query={`${application}/${query}`} />
        ) : (
          <section class="card empty">
            <p>
              {data.answered
                ? "The servers were told of no epoch yet."
                : "No server that has key groups of this query answers."}
            </p>
            <p class="todo">
              {data.answered
                ? "They are told within a second of the first one, by jobs and servers of this version: servers forget it as they end."
                : "See what is wrong on the overview. It is asked again by itself."}
            </p>
          </section>
        )
      }
    </Loaded>
  );
}

function Timeline({ epochs, query }: { epochs: EpochTimes[]; query: string }) {
  const lengths = epochs.map(lengthOf);
  const longest = Math.max(...lengths);
  const scale = Math.max(1, Math.min(longest, MOST_MEDIANS * quantile(lengths, 0.5)));
  const replayed = epochs.filter((of) => of.replayed).length;
  const again = epochs.filter((of) => of.rounds > 1).length;
  return (
    <>
      <dl class="facts">
        <Fact name="Epoch" value={whole(epochs.at(-1)!.epoch)} />
        <Fact name="Batch time, median" value={milliseconds(quantile(lengths, 0.5))} />
        <Fact name="95 %" value={milliseconds(quantile(lengths, 0.95))} />
        <Fact name="Longest" value={milliseconds(longest)} />
        <Fact name="Replayed" value={`${whole(replayed)} of ${whole(epochs.length)}`} />
        <Fact name="In several rounds" value={whole(again)} />
      </dl>
      <section class="card">
        <h2>The last {plural(epochs.length, "epoch")}</h2>
        <ul class="legend">
          {PARTS.map(([part, name, told]) => (
            <li key={part} title={told}>
              <span class={`swatch p-${part}`} aria-hidden="true" /> {name}
            </li>
          ))}
          <li title="Key groups of it had been committed before, by an earlier run or round">
            <span class="mark" aria-hidden="true">
              ↻
            </span>{" "}
            replayed
          </li>
          <li title="A server was lost, or took no rows, and it was tried again">
            <span class="mark" aria-hidden="true">
              !
            </span>{" "}
            several rounds
          </li>
          {longest > scale ? (
            <li>
              <span class="mark" aria-hidden="true">
                ▲
              </span>{" "}
              longer than the scale
            </li>
          ) : null}
        </ul>
        <Bars epochs={epochs} scale={scale} label={`the last epochs of ${query}`} />
        <details>
          <summary>The last {plural(Math.min(IN_TABLE, epochs.length), "epoch")} as a table</summary>
          <EpochTable epochs={epochs.slice(-IN_TABLE).reverse()} />
        </details>
      </section>
    </>
  );
}

const keyOf = (of: EpochTimes): string => `${of.generation} ${of.epoch}`;

function marksOf(of: EpochTimes): string {
  return (of.replayed ? ", replayed" : "") + (of.rounds > 1 ? `, ${of.rounds} rounds` : "");
}

function Bars({ epochs, scale, label }: { epochs: EpochTimes[]; scale: number; label: string }) {
  const [looked, setLooked] = useState<EpochTimes | null>(null);
  const [focused, setFocused] = useState<string | null>(null);
  const row = useRef<HTMLDivElement>(null);
  const has = (key: string | null): boolean => epochs.some((of) => keyOf(of) === key);
  const stop = has(focused) ? focused : keyOf(epochs.at(-1)!);
  const holds = row.current?.contains(document.activeElement) ?? false; // before the bars are drawn anew

  // Newer epochs push a bar out, and the browser's focus would be gone with it: the oldest bar takes it over. What was
  // read of the epoch stays.
  useLayoutEffect(() => {
    if (!holds || has(focused)) return;
    const kept = looked;
    (row.current?.children[0] as HTMLElement | undefined)?.focus({ preventScroll: true });
    setLooked(kept);
  });

  const go = (event: KeyboardEvent): void => {
    const steps: Record<string, number> = { ArrowRight: 1, ArrowLeft: -1, Home: -epochs.length, End: epochs.length };
    const step = steps[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const at = epochs.findIndex((of) => keyOf(of) === stop);
    const next = Math.min(Math.max(at + step, 0), epochs.length - 1);
    (row.current?.children[next] as HTMLElement | undefined)?.focus();
  };

  // Of an epoch that has left the picture, what was last known of it.
  const shown = looked && (epochs.find((of) => keyOf(of) === keyOf(looked)) ?? looked);
  return (
    <div class="map">
      <div class="epochs">
        <div class="scale muted" aria-hidden="true">
          <span>{milliseconds(scale)}</span>
          <span>{milliseconds(scale / 2)}</span>
          <span>0</span>
        </div>
        <div class="bars" ref={row} role="group" aria-label={label} onKeyDown={go} onPointerLeave={() => setLooked(null)}>
          {epochs.map((of) => {
            const parts = partsOf(of);
            const length = lengthOf(of);
            const cut = Math.max(1, length / scale);
            return (
              <button
                key={keyOf(of)}
                type="button"
                class={`epoch ${of.replayed ? "replayed" : ""}`}
                tabIndex={keyOf(of) === stop ? 0 : -1}
                aria-label={`Epoch ${of.epoch}: ${milliseconds(length)}${marksOf(of)}`}
                onPointerEnter={() => setLooked(of)}
                onFocus={() => {
                  setFocused(keyOf(of));
                  setLooked(of);
                }}
              >
                <span class="mark" aria-hidden="true">
                  {of.replayed ? "↻" : of.rounds > 1 ? "!" : ""}
                  {length > scale ? "▲" : ""}
                </span>
                <span class="stack">
                  {PARTS.map(([part]) => (
                    <span key={part} class={`p-${part}`} style={{ height: `${(100 * parts[part]) / scale / cut}%` }} />
                  ))}
                </span>
              </button>
            );
          })}
        </div>
      </div>
      <div class="cell-told">{shown ? <Told of={shown} /> : <Hint what="an epoch" />}</div>
    </div>
  );
}

function Told({ of }: { of: EpochTimes }) {
  const parts = partsOf(of);
  return (
    <>
      <strong>
        Epoch {whole(of.epoch)}: {milliseconds(lengthOf(of))}
        {marksOf(of)}
      </strong>
      <span>{clock(of.began_ms)}</span>
      {of.batch === null ? null : <span>batch {whole(of.batch)}</span>}
      <span>run {whole(of.generation)}</span>
      {PARTS.map(([part, name]) => (
        <span key={part}>
          {name} {part === "spark" && of.batch_ms === null ? "not told" : milliseconds(parts[part])}
        </span>
      ))}
    </>
  );
}

function EpochTable({ epochs }: { epochs: EpochTimes[] }) {
  return (
    <table class="wide">
      <thead>
        <tr>
          <th scope="col">Epoch</th>
          <th scope="col">Began</th>
          <th scope="col" class="number">
            In all
          </th>
          {PARTS.map(([part, name]) => (
            <th key={part} scope="col" class="number">
              {name}
            </th>
          ))}
          <th scope="col">Run</th>
          <th scope="col" />
        </tr>
      </thead>
      <tbody>
        {epochs.map((of) => {
          const parts = partsOf(of);
          return (
            <tr key={keyOf(of)}>
              <td data-label="Epoch">{whole(of.epoch)}</td>
              <td data-label="Began">
                <time dateTime={new Date(of.began_ms).toISOString()} title={moment(of.began_ms)}>
                  {clock(of.began_ms)}
                </time>
              </td>
              <td data-label="In all" class="number">
                {milliseconds(lengthOf(of))}
              </td>
              {PARTS.map(([part, name]) => (
                <td key={part} data-label={name} class="number">
                  {part === "spark" && of.batch_ms === null ? "—" : milliseconds(parts[part])}
                </td>
              ))}
              <td data-label="Run">{whole(of.generation)}</td>
              <td data-label="">{marksOf(of).replace(/^, /, "")}</td>
            </tr>
          );
        })}
      </tbody>
    </table>
  );
}
