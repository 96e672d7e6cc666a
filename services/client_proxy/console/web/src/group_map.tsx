/** One cell per key group: who answers for it, who follows, and how far behind. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useNow } from "./clock";
import { bytes, duration, plural, whole } from "./format";
import { Hint, LAGS, STATUSES } from "./parts";
import type { Copy, Lag, Run, Status } from "./types";

const MOST_CELLS = 1024;
const COLOURS = 8;

interface Cell {
  first: number;
  last: number;
  status: Status;
  lag: Lag;
  owner: string;
  run: Run;
}

const WORST = new Map(STATUSES.map(([status], index) => [status, index]));
const FURTHEST = new Map<Lag, number>([...LAGS.map(([lag]) => lag), "none" as const].map((lag, index) => [lag, index]));

/** Cells of one key group each, or of several where there are very many: then each shows its worst. */
export function cellsOf(runs: Run[], count: number, by: ColourBy): Cell[] {
  const badness = (run: Run): number => {
    const [status, lag] = [WORST.get(run.status)!, FURTHEST.get(run.lag)!];
    return by === "lag" ? lag * WORST.size + status : status;
  };
  const per = Math.ceil(count / MOST_CELLS);
  const cells: Cell[] = [];
  let at = 0;
  for (let first = 0; first < count; first += per) {
    const last = Math.min(first + per, count) - 1;
    while (at < runs.length - 1 && runs[at]!.last < first) at += 1;
    let worst = runs[at];
    for (let next = at; next < runs.length && runs[next]!.first <= last; next += 1) {
      if (!worst || badness(runs[next]!) > badness(worst)) worst = runs[next];
    }
    if (worst) cells.push({ first, last, status: worst.status, lag: worst.lag, owner: worst.owner, run: worst });
  }
  return cells;
}

export type ColourBy = "status" | "owner" | "lag";

/** The class of a cell's colour. Who has no owner, or does not answer, is shown by its status all the same. */
function colour(cell: Cell, by: ColourBy, servers: string[]): string {
  if (by === "owner" && cell.owner) return `by-owner o-${Math.max(servers.indexOf(cell.owner), 0) % COLOURS}`;
  return by === "lag" && cell.lag !== "none" ? `by-lag l-${cell.lag}` : "";
}

function words(cell: Cell): string {
  const [, status = ""] = STATUSES.find(([of]) => of === cell.status) ?? [];
  const which = cell.first === cell.last ? `Key group ${cell.first}` : `Key groups ${cell.first} to ${cell.last}`;
  const [, lag = ""] = LAGS.find(([of]) => of === cell.lag) ?? [];
  return `${which}: ${status}${cell.owner ? `, owner ${cell.owner}` : ""}${lag ? `, ${lag}` : ""}`;
}

export function GroupMap({
  runs,
  count,
  servers,
  by,
  copies = [],
  label,
  hint = false,
}: {
  runs: Run[];
  count: number;
  servers: string[];
  by: ColourBy;
  copies?: Copy[];
  label: string;
  hint?: boolean;
}) {
  const cells = useMemo(() => cellsOf(runs, count, by), [runs, count, by]);
  const owners = useRef<string[]>([]);
  const [moved, setMoved] = useState<ReadonlySet<number>>(new Set());
  const [looked, setLooked] = useState<number | null>(null);
  const [focused, setFocused] = useState(0);
  const grid = useRef<HTMLDivElement>(null);

  useEffect(() => {
    const before = owners.current;
    owners.current = cells.map((cell) => cell.owner);
    if (before.length !== cells.length) return undefined;
    const changed = cells.flatMap((cell, index) => (before[index] !== cell.owner ? [index] : []));
    if (changed.length === 0) return undefined;
    setMoved(new Set(changed));
    const timer = window.setTimeout(() => setMoved(new Set()), 2500);
    return () => window.clearTimeout(timer);
  }, [cells]);

  const go = (event: KeyboardEvent): void => {
    const boxes = [...(grid.current?.children ?? [])] as HTMLElement[];
    const top = boxes[0]?.offsetTop;
    const row = boxes.findIndex((box) => box.offsetTop !== top);
    const columns = row < 0 ? boxes.length : row;
    const steps: Record<string, number> = {
      ArrowRight: 1,
      ArrowLeft: -1,
      ArrowDown: columns,
      ArrowUp: -columns,
      Home: -cells.length,
      End: cells.length,
    };
    const step = steps[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const next = Math.min(Math.max(focused + step, 0), cells.length - 1);
    setFocused(next);
    boxes[next]?.focus();
  };

  const shown = looked === null ? null : cells[looked];
  return (
    <div class="map">
      <div class="cells" ref={grid} role="group" aria-label={label} onKeyDown={go} onPointerLeave={() => setLooked(null)}>
        {cells.map((cell, index) => (
          <button
            key={cell.first}
            type="button"
            tabIndex={index === Math.min(focused, cells.length - 1) ? 0 : -1}
            class={`cell s-${cell.status} ${colour(cell, by, servers)} ${moved.has(index) ? "moved" : ""}`}
            aria-label={words(cell)}
            onPointerEnter={() => setLooked(index)}
            onFocus={() => {
              setFocused(index);
              setLooked(index);
            }}
          />
        ))}
      </div>
      <div class="cell-told">
        {shown ? <Told cell={shown} copies={copies} /> : hint ? <Hint what="a key group" /> : null}
      </div>
    </div>
  );
}

function Told({ cell, copies }: { cell: Cell; copies: Copy[] }) {
  const at = useNow();
  const { run } = cell;
  const held = copies.filter(({ role, server }) =>
    role === "owner" ? server === run.owner : run.copies.includes(server) || run.catching_up.includes(server),
  );
  return (
    <>
      <strong>{words(cell)}</strong>
      <span>{run.copies.length ? `followed by ${run.copies.join(", ")}` : "followed by nobody"}</span>
      {run.catching_up.length ? <span>catching up: {run.catching_up.join(", ")}</span> : null}
      {held.map((copy) => (
        <span key={`${copy.server} ${copy.role}`}>
          {copy.server} ({copy.role}): epoch {whole(copy.epoch)}
          {copy.lag_epochs ? `, ${plural(copy.lag_epochs, "epoch")} behind` : ""}
          {copy.lag_updates ? `, ${plural(copy.lag_updates, "update")} waiting for ${duration(copy.updates_lag_ms)}` : ""}
          {copy.as_of_ms ? `, as of ${duration(at - copy.as_of_ms)} ago` : ""}
          {copy.ready || !copy.records_to_restore
            ? ""
            : `, ${whole(copy.restored_records)} of ${whole(copy.records_to_restore)} records read`}
          ,{" "}
          {bytes(copy.bytes)} in its store
        </span>
      ))}
    </>
  );
}

export function Legend({ by, servers }: { by: ColourBy; servers: string[] }) {
  return (
    <ul class="legend">
      {by === "lag"
        ? LAGS.map(([lag, words, told]) => (
            <li key={lag} title={told}>
              <span class={`cell by-lag l-${lag}`} aria-hidden="true" /> {words}
            </li>
          ))
        : null}
      {by === "owner"
        ? servers.map((server, index) => (
            <li key={server}>
              <span class={`cell by-owner s-owned o-${index % COLOURS}`} aria-hidden="true" /> {server}
            </li>
          ))
        : STATUSES.filter(([status]) => by === "status" || status === "waiting" || status === "nobody").map(
            ([status, words, told]) => (
              <li key={status} title={told}>
                <span class={`cell s-${status}`} aria-hidden="true" /> {words}
              </li>
            ),
          )}
    </ul>
  );
}

export function ColourChoice({ by, choose }: { by: ColourBy; choose: (by: ColourBy) => void }) {
  return (
    <div class="choice" role="group" aria-label="Colour by">
      {(["status", "owner", "lag"] as const).map((one) => (
        <button key={one} type="button" aria-pressed={by === one} onClick={() => choose(one)}>
          by {one}
        </button>
      ))}
    </div>
  );
}
