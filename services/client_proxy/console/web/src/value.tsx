/** Values as they were read. All of it is text to the page, whatever it holds. */

import { Exact, type Answer, type Json, type Source } from "./types";
import { duration, whole } from "./format";
import { useNow } from "./clock";

const MOST_CHARACTERS = 2_000;

function spelled(value: Json): string {
  if (value === null) return "null";
  if (value instanceof Exact) return value.text;
  if (typeof value === "number") return Number.isInteger(value) && !Number.isSafeInteger(value) ? `≈ ${value}` : String(value);
  if (typeof value === "string") return value;
  return JSON.stringify(value, (_, item: Json) => (item instanceof Exact ? item.text : item), 1);
}

export function Value({ of }: { of: Json }) {
  const text = spelled(of);
  const kind = of === null ? "null" : typeof of === "string" ? "text" : typeof of === "object" ? "json" : "plain";
  const cut = text.length > MOST_CHARACTERS;
  return (
    <span class={`value ${kind}`}>
      {cut ? text.slice(0, MOST_CHARACTERS) : text}
      {cut ? <span class="muted"> … {whole(text.length - MOST_CHARACTERS)} more characters</span> : null}
      {text === "" ? <span class="muted">empty text</span> : null}
    </span>
  );
}

export function SourceLine({ of }: { of: Source }) {
  const at = useNow();
  const age = of.as_of ? duration(at - Date.parse(of.as_of)) : null;
  return (
    <p class="muted source">
      From <span class="name">{of.server}</span> ({of.role}
      {of.unconfirmed ? ", unconfirmed" : ""}), epoch {whole(of.epoch)}
      {age ? `, all that was complete ${age} ago` : ""}
      {of.lag_epochs ? `, ${whole(of.lag_epochs)} epochs behind` : ""}.
    </p>
  );
}

export function AnswerTable({ of, types }: { of: Answer; types: Map<string, string> }) {
  if (!of.found) {
    return (
      <>
        <p class="absent">
          <strong>There is no such key.</strong>{" "}
          {of.source.epoch === 0 ? "No epoch is complete yet: that says nothing of it." : null}
        </p>
        <SourceLine of={of.source} />
      </>
    );
  }
  return (
    <>
      <table class="fields">
        <tbody>
          {Object.entries(of.value ?? {}).map(([field, value]) => (
            <tr key={field}>
              <th scope="row">
                {field} <span class="kind">{types.get(field)}</span>
              </th>
              <td>
                <Value of={value} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      <SourceLine of={of.source} />
    </>
  );
}

export interface EntryRow {
  /** The key, the map key, or both, a column each. */
  key: Json[];
  value: { [field: string]: Json };
}

/** A key of one column is its value, one of several an array. */
export const partsOf = (key: Json, columns: number): Json[] => (Array.isArray(key) && columns > 1 ? key : [key]);

export function EntriesTable({
  rows,
  fields,
  keys,
  none,
}: {
  rows: EntryRow[];
  fields: string[];
  keys: string[];
  /** What is said where there are no rows. */
  none: string;
}) {
  if (rows.length === 0) {
    return (
      <p class="absent">
        <strong>{none}</strong>
      </p>
    );
  }
  return (
    <div class="scrolls" tabIndex={0} role="region" aria-label="entries">
      <table>
        <thead>
          <tr>
            {keys.map((name) => (
              <th key={name}>{name}</th>
            ))}
            {fields.map((name) => (
              <th key={name}>{name}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, index) => (
            <tr key={index}>
              {keys.map((name, at) => (
                <td key={name}>
                  <Value of={row.key[at] ?? null} />
                </td>
              ))}
              {fields.map((name) => (
                <td key={name}>
                  <Value of={row.value[name] ?? null} />
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
