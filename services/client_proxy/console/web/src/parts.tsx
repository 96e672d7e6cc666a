/** What several pages are made of. */

import type { ComponentChildren } from "preact";
import { useRef, useState } from "preact/hooks";
import type { Polled } from "./poll";
import { useNow } from "./clock";
import { clock, duration, moment, whole } from "./format";
import { stateHref } from "./route";
import type { Lag, Severity, Standing, Status, Trouble } from "./types";

export const STATUSES: [Status, string, string][] = [
  ["owned", "owned", "Its owner answers, and has heard of its coordinator."],
  ["unconfirmed", "unconfirmed", "Its owner answers, and has not heard of its coordinator for the lease time."],
  ["restoring", "restoring, followed", "Its owner restores; another copy answers."],
  ["followed", "no owner, followed", "It has no owner that can be reached; another copy answers."],
  ["waiting", "restoring, no answers", "Its owner restores, and nobody else answers: reads wait."],
  ["nobody", "nobody", "No server has it: reads fail."],
];

/** How far the copies of a key group are behind, from the best to the worst; where nobody answers its status says so. */
export const LAGS: [Exclude<Lag, "none">, string, string][] = [
  ["current", "copies are current", "Each has all epochs but the last, and no update waits for a second."],
  ["behind", "a copy is behind", "One lacks two epochs at least, or an update has waited for a second."],
  ["far", "a copy is far behind", "One lacks five epochs, or ten seconds of updates, or still reads the changelog."],
];

const ICONS: Record<Severity | "ok", string> = { bad: "✕", warning: "!", note: "i", ok: "✓" };

export function Icon({ of }: { of: Severity | "ok" }) {
  return (
    <span class={`icon ${of}`} aria-hidden="true">
      {ICONS[of]}
    </span>
  );
}

export function StateLink({ of }: { of: { application: string; state: string } }) {
  return (
    <a class="name" href={stateHref(of)}>
      <span class="of">{of.application}/</span>
      <wbr />
      {of.state}
    </a>
  );
}

/** How long ago something was; it goes on by itself. */
export function Ago({ ms, none = "never" }: { ms: number; none?: string }) {
  const at = useNow();
  if (!ms) return <span class="muted">{none}</span>;
  return (
    <time dateTime={new Date(ms).toISOString()} title={moment(ms)}>
      {duration(at - ms)} ago
    </time>
  );
}

/** The age of what readers see. */
export function Freshness({ of }: { of: Standing }) {
  const at = useNow();
  if (!of.as_of_ms) return <span class="muted">not known</span>;
  const age = at - of.as_of_ms;
  const level = age < 5_000 ? "ok" : age < 30_000 ? "warning" : "bad";
  return (
    <span class={`level ${level}`} title={`Readers see all that was complete at ${moment(of.as_of_ms)}`}>
      {duration(age)}
    </span>
  );
}

/** A size of a state, which may be an estimate. */
export function Size({ of, text }: { of: Standing; text: string }) {
  if (!of.estimated) return <>{text}</>;
  const why = "An estimate: servers also follow key groups, and know the size of their whole stores";
  return <span title={why}>~ {text}</span>;
}

/** The key groups of a state as one bar. */
export function GroupsBar({ of }: { of: Standing }) {
  const shown = STATUSES.filter(([status]) => of.groups[status]);
  const told = shown.map(([status, words]) => `${whole(of.groups[status]!)} ${words}`).join(", ");
  return (
    <span class="bar" role="img" aria-label={`key groups: ${told || "none"}`} title={told}>
      {shown.map(([status]) => (
        <span key={status} class={`s-${status}`} style={{ flexGrow: of.groups[status]! }} />
      ))}
    </span>
  );
}

const SHOWN_TROUBLES = 5;

export function Troubles({ of, none }: { of: Trouble[]; none?: ComponentChildren }) {
  const [all, setAll] = useState(false);
  if (of.length === 0) {
    return none ? (
      <div class="calm">
        <Icon of="ok" />
        <span>{none}</span>
      </div>
    ) : null;
  }
  const shown = all ? of : of.slice(0, SHOWN_TROUBLES);
  return (
    <ul class="troubles" aria-label="What is wrong">
      {shown.map((trouble) => (
        <li key={`${trouble.about}\n${trouble.what.replace(/\d+/g, "")}`} class={trouble.severity}>
          <Icon of={trouble.severity} />
          <div>
            <p class="what">
              <span class="sr">{trouble.severity}: </span>
              {trouble.state ? <StateLink of={trouble} /> : <span class="name">{trouble.about}</span>}
              {trouble.since_ms ? (
                <span class="since">
                  as of <Ago ms={trouble.since_ms} />
                </span>
              ) : null}
            </p>
            <p>{trouble.what}</p>
            <p class="todo">{trouble.to_do}</p>
          </div>
        </li>
      ))}
      {of.length > SHOWN_TROUBLES ? (
        <li class="more">
          <button type="button" class="small" aria-expanded={all} onClick={() => setAll(!all)}>
            {all ? "Show fewer" : `Show all ${of.length}`}
          </button>
        </li>
      ) : null}
    </ul>
  );
}

/** What somebody has asked for, or why there is none. `reason`: the error's name. */
export function AskedFor({
  busy,
  error,
  reason = "",
  children,
}: {
  busy: boolean;
  error: string | null;
  reason?: string;
  children: ComponentChildren;
}) {
  return (
    <div class="result" aria-live="polite" aria-busy={busy}>
      {error === null ? null : (
        <p class="level bad" role="alert">
          {reason ? <span class="kind">{reason}</span> : null} {error}
        </p>
      )}
      {children}
    </div>
  );
}

/** That what is shown is old, how old, and why there is nothing newer. */
export function Outdated({ polled }: { polled: Polled<unknown> }) {
  useNow(); // the age goes on
  if (polled.error === null || polled.data === null) return null;
  return (
    <div class="problem outdated" role="alert">
      <Icon of="bad" />
      <div>
        <p>{polled.error.message}</p>
        <p class="todo">
          Shown is what was said at {clock(polled.at)}, {duration(Date.now() - polled.at)} ago. It is asked again by itself.
        </p>
      </div>
    </div>
  );
}

/** Data, or why there are none yet. `headTells`: the page's head says where they are old. */
export function Loaded<T>({
  polled,
  children,
  headTells = false,
}: {
  polled: Polled<T>;
  children: (data: T) => ComponentChildren;
  headTells?: boolean;
}) {
  if (polled.data !== null) {
    if (headTells) return <>{children(polled.data)}</>;
    // One place for both: else what somebody has typed is gone with an error.
    return (
      <>
        <Outdated polled={polled} />
        <div class={polled.error === null ? "loaded" : "loaded stale"}>{children(polled.data)}</div>
      </>
    );
  }
  if (polled.error === null) return <p class="muted loading">Loading…</p>;
  if (polled.error.kind === "away" || polled.error.kind === "unauthenticated") return null; // the page's head says it
  return (
    <div class="problem" role="alert">
      <Icon of="bad" />
      <div>
        <p>{polled.error.message}</p>
        {polled.error.kind === "denied" ? (
          <p class="todo">
            Your token may not see it. Ask the operator for a policy entry with the verb <code>read</code> or{" "}
            <code>scan</code>, or take another token.
          </p>
        ) : (
          <p class="todo">
            <a href="#/">See all states</a>. It is asked again by itself.
          </p>
        )}
      </div>
    </div>
  );
}

export function Hint({ what }: { what: string }) {
  return <span class="muted">Point at {what}, or go there with Tab and the arrow keys.</span>;
}

export function Fact({ name, value }: { name: string; value: ComponentChildren }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{value}</dd>
    </div>
  );
}

export function CopyButton({ text }: { text: string }) {
  const [told, setTold] = useState("");
  const timer = useRef(0);
  const say = (words: string): void => {
    setTold(words);
    window.clearTimeout(timer.current);
    timer.current = window.setTimeout(() => setTold(""), 1500);
  };
  const copy = async (): Promise<void> => {
    try {
      await navigator.clipboard.writeText(text);
      say("Copied");
    } catch {
      say("Select it, and press Ctrl-C"); // the browser allows it on https and loopback alone
    }
  };
  return (
    <button type="button" class="small" onClick={() => void copy()}>
      <span aria-live="polite">{told || "Copy"}</span>
    </button>
  );
}
