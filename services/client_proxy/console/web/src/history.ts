/** What the last answers said, of each state: for the small charts. As many as are shown, and no more. */

import type { Overview } from "./types";

const KEPT = 90;
const SHOWN = 20;

export interface Sample {
  /** Seconds since 1970. */
  at: number;
  ageSeconds: number | null;
  readsPerSecond: number | null;
  rowsPerSecond: number | null;
  entries: number;
  /** Of updates that readers saw since the sample before, by bucket of their latency. */
  latency: number[] | null;
}

interface Kept {
  samples: Sample[];
  keys: number;
  scans: number;
  rows: number | null;
  latency: number[] | null;
}

const states = new Map<string, Kept>();
let lastAt = 0;

export const nameOf = (of: { application: string; state: string }): string => `${of.application}\n${of.state}`;

export const samplesOf = (name: string): readonly Sample[] => states.get(name)?.samples ?? [];

/** The last samples, with nothing before the first: so that a chart moves from the right, and soon has something. */
export function lately(name: string, of: (sample: Sample) => number | null): (number | null)[] {
  const values = samplesOf(name).map(of);
  return [...Array<null>(Math.max(0, SHOWN - values.length)).fill(null), ...values];
}

/** By how much each has grown; null: that is not known, as of a server that was started again. */
function grown(before: number[] | null, after: number[] | null): number[] | null {
  if (!before || !after || before.length !== after.length) return null;
  const more = after.map((count, index) => count - before[index]!);
  return more.every((count) => count >= 0) ? more : null;
}

/** Updates that readers saw in the last minutes, by bucket of their latency; of no bucket where none is known. */
export function latencyOf(name: string): number[] {
  const sum: number[] = [];
  for (const { latency } of samplesOf(name)) latency?.forEach((count, index) => (sum[index] = (sum[index] ?? 0) + count));
  return sum;
}

/** Takes one answer in; the same one twice counts once. */
export function note(overview: Overview): void {
  const at = overview.at_ms / 1000;
  if (at <= lastAt) return;
  const elapsed = at - lastAt;
  lastAt = at;
  const there = new Set<string>();
  for (const { standing, reads, writes, latency } of overview.states) {
    const name = nameOf(standing);
    there.add(name);
    const kept = states.get(name);
    // A proxy that was started again counts from nothing.
    const before = kept && reads.keys >= kept.keys && reads.scans >= kept.scans && elapsed < 60 ? kept : null;
    const reading = before && (reads.keys - before.keys + reads.scans - before.scans) / elapsed;
    const rows = writes?.rows ?? null;
    // Likewise a server.
    const writing = kept && kept.rows !== null && rows !== null && rows >= kept.rows && elapsed < 60;
    const sample: Sample = {
      at,
      ageSeconds: standing.as_of_ms ? Math.max(0, overview.at_ms - standing.as_of_ms) / 1000 : null,
      readsPerSecond: reading,
      rowsPerSecond: writing ? (rows - kept.rows!) / elapsed : null,
      entries: standing.entries,
      latency: grown(kept?.latency ?? null, latency?.counts ?? null),
    };
    const samples = kept?.samples ?? [];
    samples.push(sample);
    if (samples.length > KEPT) samples.shift();
    states.set(name, { samples, keys: reads.keys, scans: reads.scans, rows, latency: latency?.counts ?? null });
  }
  for (const name of states.keys()) if (!there.has(name)) states.delete(name);
}
