/** Which page is shown: the part of the address behind #. */

import { useEffect, useState } from "preact/hooks";

export type Route =
  | { page: "overview" | "key-groups" | "sql" | "servers" | "events" }
  | { page: "epochs"; application?: string; query?: string }
  | { page: "state"; application: string; state: string }
  | { page: "unknown" };

const PLAIN = ["key-groups", "sql", "servers", "events"] as const;

export function routeOf(hash: string): Route {
  const parts = hash.replace(/^#\/?/, "").split("/");
  const [first = "", application, state, ...rest] = parts;
  if (first === "" && parts.length === 1) return { page: "overview" };
  const plain = PLAIN.find((page) => page === first);
  if (plain && parts.length === 1) return { page: plain };
  if (first === "epochs" && parts.length === 1) return { page: "epochs" };
  if ((first === "state" || first === "epochs") && application && state && rest.length === 0) {
    try {
      const [of, name] = [decodeURIComponent(application), decodeURIComponent(state)];
      return first === "state"
        ? { page: "state", application: of, state: name }
        : { page: "epochs", application: of, query: name };
    } catch {
      return { page: "unknown" }; // a % that stands for nothing
    }
  }
  return { page: "unknown" };
}

export const stateHref = (of: { application: string; state: string }): string =>
  `#/state/${encodeURIComponent(of.application)}/${encodeURIComponent(of.state)}`;

export const epochsHref = (of: { application: string; query: string }): string =>
  `#/epochs/${encodeURIComponent(of.application)}/${encodeURIComponent(of.query)}`;

export function useRoute(): Route {
  const [route, setRoute] = useState(() => routeOf(location.hash));
  useEffect(() => {
    const changed = (): void => {
      setRoute(routeOf(location.hash));
      window.scrollTo(0, 0);
    };
    window.addEventListener("hashchange", changed);
    return () => window.removeEventListener("hashchange", changed);
  }, []);
  return route;
}
