/** The proxy's time, which ages are counted by: a browser's own clock may be another one. */

import { useEffect, useState } from "preact/hooks";

let ahead: number | null = null;

/** Takes in what the proxy says that it is now. */
export function setClock(nowMs: number): void {
  const by = nowMs - Date.now();
  // An answer is under way for a while: the largest difference is the nearest to the truth, until clocks are set anew.
  if (ahead === null || by > ahead || by < ahead - 2_000) ahead = by;
}

export const now = (): number => Date.now() + (ahead ?? 0);

/** Draws anew each second, while somebody looks. */
export function useNow(): number {
  const [at, setAt] = useState(now);
  useEffect(() => {
    const tick = (): void => {
      if (document.visibilityState !== "hidden") setAt(now());
    };
    const timer = window.setInterval(tick, 1000);
    return () => window.clearInterval(timer);
  }, []);
  return Math.max(at, now() - 1000);
}
