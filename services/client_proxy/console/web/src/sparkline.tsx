/** A small chart without axes: the last minutes of one number. */

const WIDTH = 96;
const HEIGHT = 22;

export function Sparkline({ values, label, floor = 0 }: { values: (number | null)[]; label: string; floor?: number }) {
  const known = values.filter((value): value is number => value !== null);
  if (known.length < 2) return <svg class="spark" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} aria-hidden="true" />;
  const most = Math.max(floor, ...known) || 1;
  const step = WIDTH / Math.max(values.length - 1, 1);
  const y = (value: number): string => (HEIGHT - 2 - (value / most) * (HEIGHT - 4)).toFixed(1);
  let path = "";
  let pen = "M";
  values.forEach((value, index) => {
    if (value === null) {
      pen = "M";
      return;
    }
    path += `${pen}${(index * step).toFixed(1)} ${y(value)}`;
    pen = "L";
  });
  return (
    <svg class="spark" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={label}>
      <path d={path} />
    </svg>
  );
}
