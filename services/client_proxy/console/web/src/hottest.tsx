/** The keys of a state that are read most through this proxy. */

import { short } from "./format";
import type { StateDetail } from "./types";
import { Value, partsOf } from "./value";

export function Hottest({ detail }: { detail: StateDetail }) {
  const { hottest, scan_key: first, entry_key: second } = detail;
  if (hottest === null) return null;
  return (
    <section class="card hottest">
      <h2>Hottest keys</h2>
      <p class="muted">
        Of about {short(hottest.reads)} keys that were looked up through this proxy in the last minutes, by samples.
      </p>
      <ol class="rows">
        {hottest.keys.map(({ key, map_key, share }) => {
          const parts = [...partsOf(key, first.length || second.length), ...(map_key === undefined ? [] : partsOf(map_key, second.length))];
          const percent = 100 * share;
          return (
            <li key={JSON.stringify(parts)}>
              <span class="key">
                {parts.map((part, index) => (
                  <span key={index}>
                    {index ? <span class="muted"> / </span> : null}
                    <Value of={part} />
                  </span>
                ))}
              </span>
              <span class="end">{percent < 10 ? percent.toFixed(1) : Math.round(percent)} %</span>
              <span class="track" aria-hidden="true">
                <span style={{ "--share": `${percent}%` }} />
              </span>
            </li>
          );
        })}
        {hottest.keys.length === 0 ? <li class="muted">No key was seen in three samples.</li> : null}
      </ol>
    </section>
  );
}
