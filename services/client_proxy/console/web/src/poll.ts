/** What is asked for again and again: not while nobody looks, and less often while it fails. */

import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, ask, onToken } from "./api";

const MIN_SECONDS = 1;
const MAX_SECONDS = 15;

export interface Polled<T> {
  /** The last answer, also while newer ones fail. */
  data: T | null;
  /** When the data came, by Date.now(). */
  at: number;
  /** Why the newest question has no answer. Data is of before, then. */
  error: ApiError | null;
  /** When it is asked again after an error, by Date.now(). */
  nextAt: number;
  /** Asks at once. */
  again: () => void;
}

/** One loop of questions, until `stop`. There is at most one question at a time. */
class Loop {
  private timer = 0;
  private failures = 0;
  private request: AbortController | null = null;
  private readonly unlisten: () => void;

  constructor(
    private readonly once: (signal: AbortSignal) => Promise<number>,
    private readonly failed: (error: ApiError, nextAt: number) => void,
  ) {
    document.addEventListener("visibilitychange", this.look);
    this.unlisten = onToken(this.now);
    this.now();
  }

  stop(): void {
    document.removeEventListener("visibilitychange", this.look);
    this.unlisten();
    this.pause();
  }

  readonly now = (): void => {
    this.pause();
    if (document.visibilityState !== "hidden") void this.turn();
  };

  private readonly look = (): void => {
    if (document.visibilityState === "hidden") this.pause();
    else this.now();
  };

  private pause(): void {
    window.clearTimeout(this.timer);
    this.request?.abort();
    this.request = null;
  }

  private async turn(): Promise<void> {
    const request = new AbortController();
    this.request = request;
    try {
      const seconds = await this.once(request.signal);
      if (request.signal.aborted) return;
      this.failures = 0;
      this.wait(seconds);
    } catch (error) {
      if (request.signal.aborted) return;
      if (!(error instanceof ApiError)) throw error;
      this.failures += 1;
      this.failed(error, this.wait(2 ** Math.min(this.failures - 1, 6)));
    }
  }

  /** Returns until when. */
  private wait(seconds: number): number {
    const pause = Math.min(MAX_SECONDS, Math.max(MIN_SECONDS, seconds)) * 1000;
    this.timer = window.setTimeout(this.now, pause);
    return Date.now() + pause;
  }
}

const NOTHING = { data: null, at: 0, error: null, nextAt: 0 };

export function usePoll<T>(path: string | null, seconds: (data: T) => number, body?: () => unknown): Polled<T> {
  const [polled, setPolled] = useState<Omit<Polled<T>, "again">>(NOTHING);
  const loop = useRef<Loop | null>(null);
  const asked = useRef(body);
  asked.current = body;
  useEffect(() => {
    setPolled(NOTHING);
    if (path === null) return undefined;
    const made = new Loop(
      async (signal) => {
        const given = asked.current?.();
        const data = await ask<T>(path, given === undefined ? { signal } : { signal, body: given });
        if (!signal.aborted) setPolled({ data, at: Date.now(), error: null, nextAt: 0 });
        return seconds(data);
      },
      (error, nextAt) => setPolled((before) => ({ ...before, error, nextAt })),
    );
    loop.current = made;
    return () => made.stop();
  }, [path]);
  return { ...polled, again: () => loop.current?.now() };
}
