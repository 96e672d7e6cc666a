import { useState } from "preact/hooks";
import { ColourChoice, GroupMap, Legend, type ColourBy } from "./group_map";
import { nameOf } from "./history";
import { Hint, Loaded, StateLink } from "./parts";
import { usePoll } from "./poll";
import type { KeyGroups } from "./types";

const secondsOf = (data: KeyGroups): number => data.poll_seconds;

export function KeyGroupsPage() {
  const polled = usePoll<KeyGroups>("/console/api/key-groups", secondsOf);
  const [by, setBy] = useState<ColourBy>("status");
  return (
    <>
      <div class="head">
        <h1>Key groups</h1>
        <ColourChoice by={by} choose={setBy} />
      </div>
      <Loaded polled={polled}>
        {(data) => {
          const servers = serversOf(data.states.flatMap((state) => state.runs));
          return (
            <>
              <Legend by={by} servers={servers} />
              <Hint what="a key group" />
              {data.states.map((state) => (
                <section class="card" key={nameOf(state)}>
                  <h2>
                    <StateLink of={state} />
                  </h2>
                  <GroupMap
                    runs={state.runs}
                    count={state.key_groups}
                    servers={servers}
                    by={by}
                    copies={state.copies}
                    label={`the ${state.key_groups} key groups of ${state.application}/${state.state}`}
                  />
                </section>
              ))}
              {data.states.length === 0 ? <p class="muted">There is no state that you may see.</p> : null}
            </>
          );
        }}
      </Loaded>
    </>
  );
}

export function serversOf(runs: { owner: string; copies: string[] }[]): string[] {
  return [...new Set(runs.flatMap((run) => [run.owner, ...run.copies]).filter(Boolean))].sort();
}
