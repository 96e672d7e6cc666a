/** Who owned which key groups, over the time for which this page is open. */

import { useEffect, useRef, useState } from "preact/hooks";
import { useNow } from "./clock";
import { clock, plural } from "./format";
import type { Run } from "./types";

/** Of changes; the oldest ones are let go. */
const KEPT = 60;
/** A column has so many rows at most: of more key groups each row is that of the first of several. */
const ROWS = 256;
const COLOURS = 8;

interface Span {
  /** Milliseconds since 1970, by the proxy's clock. */
  from: number;
  /** By row. */
  owners: string[];
}

function ownersOf(runs: Run[], count: number): string[] {
  const per = Math.ceil(count / ROWS);
  const owners: string[] = [];
  let at = 0;
  for (let group = 0; group < count; group += per) {
    while (at < runs.length - 1 && runs[at]!.last < group) at += 1;
    owners.push(runs[at]?.owner ?? "");
  }
  return owners;
}

/** The column as one background: a colour for each server, from the first key group at the top. */
function columnOf(owners: string[], servers: string[]): string {
  const stops: string[] = [];
  let begin = 0;
  owners.forEach((owner, row) => {
    if (row + 1 < owners.length && owners[row + 1] === owner) return;
    const colour = owner ? `var(--o-${Math.max(servers.indexOf(owner), 0) % COLOURS})` : "transparent";
    const [from, to] = [begin, row + 1].map((edge) => `${((100 * edge) / owners.length).toFixed(2)}%`);
    stops.push(`${colour} ${from} ${to}`);
    begin = row + 1;
  });
  return `linear-gradient(${stops.join(", ")})`;
}

export function OwnersTimeline({ runs, count, servers, at }: { runs: Run[]; count: number; servers: string[]; at: number }) {
  const seen = useRef<Span[]>([]);
  const [spans, setSpans] = useState<Span[]>([]);
  // Servers keep their colours here, also those that are gone.
  const known = useRef<string[]>([]);
  for (const server of servers) if (!known.current.includes(server)) known.current.push(server);
  const now = useNow();

  useEffect(() => {
    const owners = ownersOf(runs, count);
    const last = seen.current.at(-1);
    if (last && last.owners.length === owners.length && last.owners.every((owner, row) => owner === owners[row])) return;
    // Of another number of key groups it is another state of that name.
    const before = last?.owners.length === owners.length ? seen.current : [];
    seen.current = [...before, { from: at, owners }].slice(-KEPT);
    setSpans(seen.current);
  }, [runs, count, at]);

  const first = spans[0];
  if (!first) return null;
  const told = `${plural(spans.length - 1, "change")} since ${clock(first.from)}`;
  return (
    <figure class="owners">
      <figcaption class="muted">Owners, from the first key group at the top: {told}</figcaption>
      <div class="spans" role="img" aria-label={`owners of the key groups: ${told}`}>
        {spans.map((span, index) => {
          const until = spans[index + 1]?.from ?? Math.max(now, span.from + 1);
          const names = [...new Set(span.owners)].map((owner) => owner || "nobody").sort();
          return (
            <span
              key={span.from}
              title={`from ${clock(span.from)}: ${names.join(", ")}`}
              style={{ flexGrow: Math.max(1, until - span.from), backgroundImage: columnOf(span.owners, known.current) }}
            />
          );
        })}
      </div>
      <ul class="legend">
        {known.current.map((server, index) => (
          <li key={server}>
            <span class={`dot o-${index % COLOURS}`} aria-hidden="true" /> {server}
          </li>
        ))}
      </ul>
    </figure>
  );
}
