/** A field for each column of a key, by its type. */

import type { Column } from "./types";

const HINTS: Record<string, string> = {
  string: "text",
  binary: "hexadecimal digits: 00ff",
  smallint: "a whole number",
  int: "a whole number",
  bigint: "a whole number",
  timestamp: "2026-11-21T10:00:00Z",
  date: "2026-11-21",
};

const PATTERNS: Record<string, string> = {
  binary: "([0-9A-Fa-f]{2})*",
  smallint: "-?(0|[1-9][0-9]*)",
  int: "-?(0|[1-9][0-9]*)",
  bigint: "-?(0|[1-9][0-9]*)",
  date: "[0-9]{4}-[0-9]{2}-[0-9]{2}",
};

export function KeyFields({
  columns,
  values,
  optional = false,
  change,
}: {
  columns: Column[];
  values: string[];
  optional?: boolean;
  change: (values: string[]) => void;
}) {
  const set = (index: number, text: string): void => change(columns.map((_, at) => (at === index ? text : (values[at] ?? ""))));
  return (
    <>
      {columns.map((column, index) => (
        <label key={column.name} class="field">
          <span>
            {column.name} <span class="kind">{column.type}</span>
            {optional ? <span class="muted"> optional</span> : null}
          </span>
          {column.type === "boolean" ? (
            <select value={values[index] ?? ""} onChange={(event) => set(index, event.currentTarget.value)}>
              {optional ? <option value="" /> : null}
              <option value="true">true</option>
              <option value="false">false</option>
            </select>
          ) : (
            <input
              value={values[index] ?? ""}
              placeholder={HINTS[column.type] ?? ""}
              pattern={PATTERNS[column.type]}
              inputMode={column.type.endsWith("int") ? "numeric" : "text"}
              required={!optional && column.type !== "string" && column.type !== "binary"}
              spellcheck={false}
              autocomplete="off"
              autocapitalize="off"
              onInput={(event) => set(index, event.currentTarget.value)}
            />
          )}
        </label>
      ))}
    </>
  );
}
