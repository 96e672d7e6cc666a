/** Numbers and times for people. */

const WHOLE = new Intl.NumberFormat("en");
const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];

export const whole = (value: number): string => WHOLE.format(Math.round(value));

/** Three digits at most: "12.3 k". */
export function short(value: number): string {
  if (value < 10_000) return whole(value);
  const steps = ["", " k", " M", " G", " T"];
  let step = 0;
  while (value >= 999.5 && step < steps.length - 1) {
    value /= 1000;
    step += 1;
  }
  return value.toPrecision(3).replace(/\.?0+$/, "") + steps[step];
}

export function bytes(value: number): string {
  let step = 0;
  while (value >= 999.5 && step < UNITS.length - 1) {
    value /= 1000;
    step += 1;
  }
  return `${step === 0 ? value : value < 10 ? value.toFixed(1) : Math.round(value)} ${UNITS[step]}`;
}

export function rate(perSecond: number): string {
  return perSecond === 0 ? "0/s" : perSecond < 10 ? `${perSecond.toFixed(1)}/s` : `${short(perSecond)}/s`;
}

export function duration(ms: number): string {
  const seconds = Math.max(0, ms) / 1000;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172_800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86_400)} days`;
}

/** Of what is mostly below a second. */
export function milliseconds(ms: number): string {
  if (ms >= 9_950) return duration(ms);
  if (ms >= 999.5) return `${(ms / 1000).toFixed(2)} s`;
  return `${ms < 9.95 ? ms.toFixed(1) : Math.round(ms)} ms`;
}

export const clock = (ms: number): string => new Date(ms).toLocaleTimeString("en-GB");

export const moment = (ms: number): string => new Date(ms).toISOString().replace("T", " ").replace(/\.\d+Z$/, " UTC");

export const plural = (count: number, one: string, many = `${one}s`): string =>
  `${whole(count)} ${count === 1 ? one : many}`;
