/** How long updates of the real-time lane took until readers saw them: a histogram. */

import { useState } from "preact/hooks";
import { milliseconds, plural, short, whole } from "./format";
import { latencyOf } from "./history";
import { Fact } from "./parts";
import type { Latency } from "./types";

type Since = "minutes" | "start";

const CHOICES: [Since, string][] = [
  ["minutes", "last minutes"],
  ["start", "since the servers began"],
];

/** Without zeros at the end: "2.5 s". */
const upTo = (seconds: number): string =>
  milliseconds(seconds * 1000)
    .replace(/(\.\d*?)0+ /, "$1 ")
    .replace(". ", " ");

/** The upper bound of the bucket up to which that share of all is. */
function bound(counts: number[], bounds: number[], share: number): string {
  const all = counts.reduce((sum, count) => sum + count, 0);
  if (all === 0) return "…";
  let below = 0;
  const at = counts.findIndex((count) => (below += count) >= all * share);
  return at < bounds.length ? `at most ${upTo(bounds[at]!)}` : `over ${upTo(bounds.at(-1)!)}`;
}

export function LatencyCard({ name, latency }: { name: string; latency: Latency }) {
  const [since, setSince] = useState<Since>("minutes");
  const lately = latencyOf(name);
  const counts = since === "start" ? latency.counts : latency.counts.map((_, index) => lately[index] ?? 0);
  const { bounds } = latency;
  const all = counts.reduce((sum, count) => sum + count, 0);
  const most = Math.max(1, ...counts);
  return (
    <section class="card">
      <div class="head">
        <h2>Until readers see an update</h2>
        <div class="choice" role="group" aria-label="Updates">
          {CHOICES.map(([one, words]) => (
            <button key={one} type="button" aria-pressed={since === one} onClick={() => setSince(one)}>
              {words}
            </button>
          ))}
        </div>
      </div>
      <p class="muted">From Kafka's timestamp of an update until readers see it, by the clocks of broker and server.</p>
      <dl class="facts">
        <Fact name="Updates" value={whole(all)} />
        <Fact name="Half of them" value={bound(counts, bounds, 0.5)} />
        <Fact name="99 %" value={bound(counts, bounds, 0.99)} />
      </dl>
      <ol class="histogram" aria-label="updates by how long they took">
        {counts.map((count, index) => {
          const to = bounds[index];
          const words = to === undefined ? `over ${upTo(bounds.at(-1)!)}` : upTo(to);
          return (
            <li key={words} title={`${to === undefined ? words : `at most ${words}`}: ${plural(count, "update")}`}>
              <span class="count">{count ? short(count) : ""}</span>
              <span class="column" style={{ "--share": `${count ? Math.max(1, (100 * count) / most) : 0}%` }} />
              <span class="muted until">{words}</span>
            </li>
          );
        })}
      </ol>
    </section>
  );
}
