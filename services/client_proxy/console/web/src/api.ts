/** Requests to the proxy that serves these pages: with the token, with a time limit, and with errors that say what to do. */

import { Exact } from "./types";

const TOKEN = "keyhole-token";
const SECONDS = 10;

export type ErrorKind = "away" | "unauthenticated" | "denied" | "refused";

export class ApiError extends Error {
  constructor(
    readonly kind: ErrorKind,
    message: string,
    readonly reason = "",
  ) {
    super(message);
  }
}

let token = sessionStorage.getItem(TOKEN) ?? "";
const listeners = new Set<() => void>();

/** Whether there is a token; it is kept until the tab is closed, and sent to this proxy alone. */
export const hasToken = (): boolean => token !== "";

/** Empty: forgets it. */
export function setToken(given: string): void {
  token = given.trim();
  if (token) sessionStorage.setItem(TOKEN, token);
  else sessionStorage.removeItem(TOKEN);
  for (const listener of listeners) listener();
}

/** `listener` is called when there is another token. Returns what ends that. */
export function onToken(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** JSON, in which integers beyond 2^53 keep all their digits where the browser tells how a number was spelled. */
export function parse(text: string): unknown {
  const revive = (_: string, value: unknown, context?: { source?: string }): unknown => {
    if (typeof value !== "number" || Number.isSafeInteger(value)) return value;
    const source = context?.source;
    return source !== undefined && /^-?\d+$/.test(source) ? new Exact(source) : value;
  };
  return JSON.parse(text, revive as (key: string, value: unknown) => unknown);
}

async function said(response: Response): Promise<ApiError> {
  let detail = "";
  let reason = "";
  try {
    const problem = JSON.parse(await response.text()) as { detail?: string; reason?: string };
    detail = problem.detail ?? "";
    reason = problem.reason ?? "";
  } catch {
    detail = `The answer was ${response.status} ${response.statusText}, and no problem in JSON: is this a client proxy?`;
  }
  if (response.status === 401) return new ApiError("unauthenticated", detail, reason);
  if (response.status === 403) return new ApiError("denied", detail, reason);
  return new ApiError("refused", detail, reason);
}

/** Raises ApiError. */
export async function ask<T>(path: string, options: { body?: unknown; signal?: AbortSignal; seconds?: number } = {}): Promise<T> {
  const headers: Record<string, string> = { Accept: "application/json" };
  if (options.body !== undefined) headers["Content-Type"] = "application/json";
  if (token) headers.Authorization = `Bearer ${token}`;
  const seconds = options.seconds ?? SECONDS;
  const limit = AbortSignal.timeout(seconds * 1000);
  const signal = options.signal ? AbortSignal.any([options.signal, limit]) : limit;
  let response: Response;
  let text: string;
  try {
    response = await fetch(path, {
      method: options.body === undefined ? "GET" : "POST",
      headers,
      signal,
      cache: "no-store",
      credentials: "omit",
      ...(options.body === undefined ? {} : { body: JSON.stringify(options.body) }),
    });
    if (!response.ok) throw await said(response);
    text = await response.text();
  } catch (error) {
    if (error instanceof ApiError || options.signal?.aborted) throw error;
    const why = limit.aborted ? `It has not answered within ${seconds} s.` : "It can't be reached.";
    throw new ApiError("away", why);
  }
  return parse(text) as T;
}

/** The path of a state below /v1. */
export const statePath = (application: string, state: string): string =>
  `/v1/${encodeURIComponent(application)}/${encodeURIComponent(state)}`;
