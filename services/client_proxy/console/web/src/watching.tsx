/** Some keys of a state, asked for together again and again, and drawn. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { statePath } from "./api";
import { Chart, LINES } from "./chart";
import { clock } from "./format";
import { Outdated } from "./parts";
import { usePoll } from "./poll";
import { Exact, type Answer, type Descriptor, type Json } from "./types";
import { Value } from "./value";

const POLL_SECONDS = 2;
const KEPT = 600;
const NUMERIC = /^(tinyint|smallint|int|bigint|float|double|decimal\b.*)$/;

export interface Watched {
  key: string[];
}

export const numericFields = (descriptor: Descriptor): string[] =>
  descriptor.value.fields.filter(({ type }) => NUMERIC.test(type)).map(({ name }) => name);

function number(value: Json | undefined): number | null {
  const found = value instanceof Exact ? Number(value.text) : typeof value === "string" ? Number(value) : value;
  return typeof found === "number" && Number.isFinite(found) ? found : null;
}

export const labelOf = (key: string[]): string => key.join(", ") || '""';

interface Series {
  times: number[];
  /** By the key, then by the field. */
  values: Map<string, Map<string, (number | null)[]>>;
}

export function Watching({
  descriptor,
  watched,
  unwatch,
}: {
  descriptor: Descriptor;
  watched: Watched[];
  unwatch: (key: string[]) => void;
}) {
  const fields = useMemo(() => numericFields(descriptor), [descriptor.topic_id, descriptor.value.version]);
  const [field, setField] = useState(fields[0] ?? "");
  const [pointed, setPointed] = useState<number | null>(null);
  const series = useRef<Series>({ times: [], values: new Map() });
  const path = `${statePath(descriptor.application, descriptor.state)}:batchGet`;
  const keys = watched.map(({ key }) => key);
  const body = useRef(keys);
  body.current = keys;
  const polled = usePoll<{ answers: Answer[] }>(path, secondsBetween, () => ({ keys: body.current }));

  useEffect(() => polled.again(), [JSON.stringify(keys)]);

  const answers = polled.data?.answers ?? [];
  useMemo(() => {
    if (answers.length !== keys.length) return; // of the keys before
    note(series.current, keys, answers, fields);
  }, [polled.data]);

  const times = series.current.times;
  const lines = watched.map(({ key }) => ({
    label: labelOf(key),
    values: series.current.values.get(JSON.stringify(key))?.get(field) ?? times.map(() => null),
  }));
  return (
    <section class="card">
      <div class="head">
        <h2>Watched keys</h2>
        {fields.length > 1 ? (
          <label class="field inline">
            <span>Field</span>
            <select value={field} onChange={(event) => setField(event.currentTarget.value)}>
              {fields.map((name) => (
                <option key={name}>{name}</option>
              ))}
            </select>
          </label>
        ) : null}
      </div>
      {polled.error && polled.data === null && polled.error.kind !== "away" ? (
        <p class="level bad" role="alert">
          {polled.error.message}
        </p>
      ) : null}
      <Outdated polled={polled} />
      {fields.length ? (
        <Chart times={[...times]} lines={lines} label={`${field} of the watched keys over time`} point={setPointed} />
      ) : (
        <p class="muted">No field is a number: there is nothing to draw.</p>
      )}
      <ul class="rows">
        {watched.map(({ key }, index) => {
          const then = pointed === null ? undefined : lines[index]?.values[pointed];
          const answer = answers.length === watched.length ? answers[index] : undefined;
          return (
            <li key={JSON.stringify(key)}>
              <span class={`dot o-${index % LINES}`} aria-hidden="true" />
              <span class="name">{labelOf(key)}</span>
              <span class="end">
                {then != null ? `${clock((times[pointed!] ?? 0) * 1000)}: ${then}` : answer === undefined ? "…" : answer.found ? <Value of={answer.value?.[field] ?? null} /> : "absent"}
              </span>
              <button type="button" class="small" onClick={() => unwatch(key)} aria-label={`stop watching ${labelOf(key)}`}>
                Remove
              </button>
            </li>
          );
        })}
      </ul>
    </section>
  );
}

const secondsBetween = (): number => POLL_SECONDS;

function note(series: Series, keys: string[][], answers: Answer[], fields: string[]): void {
  const names = keys.map((key) => JSON.stringify(key));
  for (const name of series.values.keys()) if (!names.includes(name)) series.values.delete(name);
  series.times.push(Date.now() / 1000);
  names.forEach((name, index) => {
    let of = series.values.get(name);
    if (!of) series.values.set(name, (of = new Map()));
    for (const field of fields) {
      let values = of.get(field);
      if (!values) of.set(field, (values = Array<null>(series.times.length - 1).fill(null)));
      values.push(number(answers[index]?.value?.[field]));
    }
  });
  if (series.times.length <= KEPT) return;
  series.times.shift();
  for (const of of series.values.values()) for (const values of of.values()) values.shift();
}
