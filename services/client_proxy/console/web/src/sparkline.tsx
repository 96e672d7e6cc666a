/** A small chart without axes: the last minutes of one number. Where nothing is known there is a gap. */

const WIDTH = 96;
const HEIGHT = 22;

export function Sparkline({ values, label, floor = 0 }: { values: (number | null)[]; label: string; floor?: number }) {
  const known = values.filter((value): value is number => value !== null);
  const most = Math.max(floor, ...known) || 1;
  const step = WIDTH / Math.max(values.length - 1, 1);
  const lines: string[][] = [[]];
  const ends: [number, number][] = [];
  values.forEach((value, index) => {
    const line = lines.at(-1)!;
    if (value === null) {
      if (line.length) lines.push([]);
      return;
    }
    const x = index * step;
    if (line.length === 0) ends.push([x, x]);
    ends.at(-1)![1] = x;
    line.push(`${x.toFixed(1)} ${(HEIGHT - 2 - (value / most) * (HEIGHT - 4)).toFixed(1)}`);
  });
  const drawn = lines.filter((line) => line.length);
  return (
    <svg class="spark" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={label}>
      {drawn.map((line, index) => {
        const [first, last] = ends[index]!;
        const path = `M${line.join("L")}`;
        return (
          <g key={first}>
            <path class="area" d={`${path}L${last.toFixed(1)} ${HEIGHT}L${first.toFixed(1)} ${HEIGHT}Z`} />
            <path d={path} />
          </g>
        );
      })}
    </svg>
  );
}
