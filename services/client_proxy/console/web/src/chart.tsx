/** Lines over time, drawn by uPlot in the colours of the page. */

import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { clock } from "./format";
import { colour } from "./theme";

const HEIGHT = 220;
export const LINES = 8;

export interface Line {
  label: string;
  values: (number | null)[];
}

function optionsOf(labels: string[], width: number, point: (index: number | null) => void): uPlot.Options {
  const axis: uPlot.Axis = {
    stroke: colour("muted"),
    grid: { stroke: colour("line"), width: 1 },
    ticks: { stroke: colour("line"), width: 1 },
    font: "12px system-ui, sans-serif",
  };
  return {
    width,
    height: HEIGHT,
    series: [
      { label: "at" },
      ...labels.map((label, index) => ({
        label,
        stroke: colour(`o-${index % LINES}`),
        width: 2,
        points: { size: 5 },
        spanGaps: true,
      })),
    ],
    axes: [{ ...axis, space: 72, values: (_, times) => times.map((at) => clock(at * 1000)) }, { ...axis, size: 64 }],
    cursor: { points: { size: 7 } },
    legend: { show: false }, // the list below has the names, and the values at the cursor
    hooks: { setCursor: [(plot) => point(plot.cursor.idx ?? null)] },
  };
}

export function Chart({
  times,
  lines,
  label,
  point,
}: {
  times: number[];
  lines: Line[];
  label: string;
  /** Called with the place that somebody points at; null: at none. */
  point: (index: number | null) => void;
}) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const names = lines.map((line) => line.label).join("\n");
  const data = useRef<uPlot.AlignedData>([[]]);
  data.current = [times, ...lines.map((line) => line.values)];

  useEffect(() => {
    const host = box.current;
    if (!host) return undefined;
    const make = (): void => {
      plot.current?.destroy();
      plot.current = new uPlot(optionsOf(names.split("\n"), host.clientWidth, point), data.current, host);
    };
    make();
    const resized = new ResizeObserver(() => {
      if (plot.current && host.clientWidth) plot.current.setSize({ width: host.clientWidth, height: HEIGHT });
    });
    resized.observe(host);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    const themed = new MutationObserver(make);
    themed.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    scheme.addEventListener("change", make);
    return () => {
      resized.disconnect();
      themed.disconnect();
      scheme.removeEventListener("change", make);
      plot.current?.destroy();
      plot.current = null;
    };
  }, [names]);

  useEffect(() => plot.current?.setData(data.current), [times]);

  return <div class="chart" ref={box} role="img" aria-label={label} />;
}
