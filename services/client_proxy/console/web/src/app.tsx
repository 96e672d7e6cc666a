/** What stands around all pages: where one is, what is wrong with the proxy, and who one is. */

import { useEffect, useState } from "preact/hooks";
import { hasToken, onToken, setToken, type ApiError } from "./api";
import { setClock, useNow } from "./clock";
import { EpochsPage } from "./epochs";
import { EventsPage } from "./events";
import { clock } from "./format";
import { note } from "./history";
import { KeyGroupsPage } from "./key_groups";
import { OverviewPage } from "./overview";
import { Icon, Loaded } from "./parts";
import { usePoll, type Polled } from "./poll";
import { useRoute, type Route } from "./route";
import { ServersPage } from "./servers";
import { SqlPage } from "./sql";
import { StatePage } from "./state";
import { useTheme, type Theme } from "./theme";
import type { Overview } from "./types";

const PAGES: [Route["page"], string, string][] = [
  ["overview", "Overview", "#/"],
  ["key-groups", "Key groups", "#/key-groups"],
  ["epochs", "Epochs", "#/epochs"],
  ["sql", "SQL", "#/sql"],
  ["servers", "Servers", "#/servers"],
  ["events", "Events", "#/events"],
];

const THEME_WORDS: Record<Theme, string> = { system: "◐ Auto", light: "○ Light", dark: "● Dark" };

const secondsOf = (data: Overview): number => data.poll_seconds;

export function App() {
  const route = useRoute();
  const overview = usePoll<Overview>("/console/api/overview", secondsOf);
  const { data, error } = overview;
  if (data) {
    setClock(data.now_ms);
    note(data);
  }
  const wrong = data?.troubles.filter(({ severity }) => severity !== "note").length ?? 0;
  const where = route.page === "state" ? `${route.application}/${route.state}` : PAGES.find(([page]) => page === route.page)?.[1];
  useEffect(() => {
    document.title = `${error ? "✕ " : wrong ? `(${wrong}) ` : ""}${where ?? "Not found"} · Keyhole`;
  }, [where, wrong, error]);
  return (
    <>
      <a class="skip" href="#main" onClick={skip}>
        Skip to the page
      </a>
      <Head route={route} live={data !== null && error === null} />
      <main id="main" tabIndex={-1} class={error?.kind === "away" && data ? "stale" : ""}>
        {error ? <Refused error={error} polled={overview} /> : null}
        {error?.kind === "unauthenticated" ? null : <Page route={route} overview={overview} />}
      </main>
      <footer class="muted">
        <span>Keyhole {data?.version}</span>
        <span>read-only</span>
        <a href="./licenses.txt">Licenses</a>
      </footer>
    </>
  );
}

/** The address is the page's: it must not become #main. */
function skip(event: Event): void {
  event.preventDefault();
  document.getElementById("main")?.focus();
}

function Page({ route, overview }: { route: Route; overview: Polled<Overview> }) {
  switch (route.page) {
    case "overview":
      return <Loaded polled={overview} headTells>{(data) => <OverviewPage data={data} />}</Loaded>;
    case "key-groups":
      return <KeyGroupsPage />;
    case "epochs":
      return <Loaded polled={overview} headTells>{(data) => <EpochsPage route={route} data={data} />}</Loaded>;
    case "sql":
      return <Loaded polled={overview} headTells>{(data) => <SqlPage data={data} />}</Loaded>;
    case "servers":
      return <Loaded polled={overview} headTells>{(data) => <ServersPage data={data} />}</Loaded>;
    case "events":
      return <Loaded polled={overview} headTells>{(data) => <EventsPage data={data} />}</Loaded>;
    case "state":
      return <StatePage key={JSON.stringify(route)} application={route.application} state={route.state} />;
    case "unknown":
      return (
        <section class="card empty">
          <h1>There is no such page</h1>
          <p>
            <a href="#/">See all states</a>
          </p>
        </section>
      );
  }
}

function Head({ route, live }: { route: Route; live: boolean }) {
  const [theme, next] = useTheme();
  const [known, setKnown] = useState(hasToken);
  useEffect(() => onToken(() => setKnown(hasToken())), []);
  return (
    <header>
      <a class="brand" href="#/">
        <img src="./icon.svg" alt="" width="24" height="24" /> Keyhole
      </a>
      <nav aria-label="Pages">
        {PAGES.map(([page, name, href]) => (
          <a key={page} href={href} aria-current={route.page === page ? "page" : undefined}>
            {name}
          </a>
        ))}
      </nav>
      <div class="tools">
        <span class={`live ${live ? "ok" : "bad"}`} role="status">
          <span class="pulse" aria-hidden="true" />
          {live ? "live" : "not connected"}
        </span>
        {known ? (
          <button type="button" class="small" onClick={() => setToken("")}>
            Forget token
          </button>
        ) : null}
        <button type="button" class="small" onClick={next} title="Colours: as the system says, light or dark">
          <span class="sr">Colours: </span>
          {THEME_WORDS[theme]}
        </button>
      </div>
    </header>
  );
}

function Refused({ error, polled }: { error: ApiError; polled: Polled<Overview> }) {
  const at = useNow();
  if (error.kind === "unauthenticated") return <TokenForm again={hasToken()} />;
  const seconds = Math.max(0, Math.ceil((polled.nextAt - Date.now()) / 1000));
  return (
    <div class="problem" role="alert">
      <Icon of="bad" />
      <div>
        <p>
          <strong>{error.kind === "away" ? "The client proxy is away." : "The client proxy refuses."}</strong> {error.message}
        </p>
        <p class="todo">
          {error.kind === "away"
            ? `See that it runs at ${location.host}: its log, or keyhole status, say more.`
            : error.kind === "denied"
              ? "Ask the operator for a policy entry for your token, or take another token."
              : "Its log says more."}{" "}
          {polled.data ? `Shown is what it said at ${clock(polled.data.at_ms)}.` : ""}
        </p>
        <p>
          <button type="button" class="small" onClick={polled.again}>
            Ask now
          </button>{" "}
          <span class="muted" key={at}>
            It is asked again in {seconds} s.
          </span>
        </p>
      </div>
    </div>
  );
}

function TokenForm({ again }: { again: boolean }) {
  const [text, setText] = useState("");
  return (
    <section class="card token">
      <h1>Who are you?</h1>
      <p>
        {again
          ? "The proxy does not take this token: it is wrong, has expired, or was taken back."
          : "This proxy wants a bearer token, the one that your services send in the header Authorization."}
      </p>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          setToken(text);
        }}
      >
        <label class="field">
          <span>Token</span>
          <input type="password" value={text} required autocomplete="off" onInput={(event) => setText(event.currentTarget.value)} />
        </label>
        <button type="submit" class="primary">
          Enter
        </button>
      </form>
      <p class="muted">
        It is kept in this tab alone, until it is closed. <code>keyhole token NAME --to FILE</code> makes one.
      </p>
    </section>
  );
}
