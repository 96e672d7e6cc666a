/** Which entries are wanted: comparisons as a person types them, all of which must hold (docs/predicates.md). */

import { useId } from "preact/hooks";
import type { Column } from "./types";

const MOST = 8;

/** Those that say anything. */
export const given = (texts: string[]): string[] => texts.map((text) => text.trim()).filter(Boolean);

export function FilterFields({
  columns,
  texts,
  change,
}: {
  /** Of the key and of the value. */
  columns: Column[];
  texts: string[];
  change: (texts: string[]) => void;
}) {
  const names = useId();
  const number = columns.find(({ type }) => /int$|^(float|double|decimal)/.test(type));
  const hint = number ? `${number.name} > 30` : `${columns[0]?.name ?? "field"} == text`;
  return (
    <>
      <datalist id={names}>
        {columns.map(({ name, type }) => (
          <option key={name} value={`${name} `} label={type} />
        ))}
      </datalist>
      {texts.map((text, index) => (
        <label key={index} class="field">
          <span>
            {index ? "and" : "Filter"}
            {index ? null : <span class="muted"> optional: ==, !=, &lt;, &lt;=, &gt;, &gt;=, in A,B, is null, is not null</span>}
          </span>
          <input
            value={text}
            list={names}
            placeholder={hint}
            spellcheck={false}
            autocomplete="off"
            autocapitalize="off"
            onInput={(event) => change(texts.map((of, at) => (at === index ? event.currentTarget.value : of)))}
          />
        </label>
      ))}
      {texts.at(-1)?.trim() && texts.length < MOST ? (
        <button type="button" class="small" onClick={() => change([...texts, ""])}>
          And…
        </button>
      ) : null}
    </>
  );
}

/** Behind what was found by them. */
export function Filtered({ by }: { by: string[] }) {
  if (by.length === 0) return null;
  return (
    <p class="muted source">
      Where{" "}
      {by.map((text, index) => (
        <span key={index}>
          {index ? " and " : ""}
          <code>{text}</code>
        </span>
      ))}
      .
    </p>
  );
}

/** What is said where nothing was found. */
export function noneFound(by: string[], next: string | null): string {
  if (next !== null) return "None so far: all that was looked at in the time that a request has passes no filter.";
  return by.length ? "No entry passes the filter." : "There are no entries.";
}
