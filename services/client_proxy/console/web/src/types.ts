/** What the proxy says under /console/api (docs/console-reference.md), and under /v1 (docs/clients-reference.md). */

export type Status = "owned" | "unconfirmed" | "restoring" | "followed" | "waiting" | "nobody";
/** Of the copy of a key group that lacks the most; none: nobody answers. */
export type Lag = "current" | "behind" | "far" | "none";
export type Severity = "bad" | "warning" | "note";

export interface Head {
  now_ms: number;
  at_ms: number;
  poll_seconds: number;
}

export interface Standing {
  application: string;
  state: string;
  kind: string;
  query: string;
  fed_by: "epochs" | "updates";
  key_groups: number;
  groups: Partial<Record<Status, number>>;
  servers: string[];
  standbys: number;
  entries: number;
  bytes: number;
  estimated: boolean;
  epoch: number;
  commit_time_ms: number;
  as_of_ms: number;
  lag_epochs: number;
  restored_records: number;
  records_to_restore: number;
  lag_updates: number;
  updates_lag_ms: number;
}

export interface Reads {
  keys: number;
  scans: number;
  entries: number;
  failed: number;
}

export interface StateNow {
  standing: Standing;
  reads: Reads;
  /** null: no server has counted any. */
  writes: { rows: number; bytes: number } | null;
  replayed_epochs: number;
  latency: Latency | null;
}

/** From the broker's timestamps of updates until readers saw them; all servers, since each began. */
export interface Latency {
  /** Upper ones, in seconds. */
  bounds: number[];
  /** One more than bounds. */
  counts: number[];
  seconds: number;
}

export interface Trouble {
  severity: Severity;
  about: string;
  application: string;
  state: string;
  what: string;
  to_do: string;
  since_ms: number;
}

export interface ServerNow {
  server: string;
  address: string;
  started: string | null;
  replica: boolean;
  draining: boolean;
  unreachable: string;
  copies: { application: string; state: string; role: string; key_groups: number; ready: boolean }[];
}

export interface Move {
  key_groups: number;
  origin: string;
  target: string;
}

export interface RouteEvent {
  number: number;
  at_ms: number;
  kind: string;
  server?: string;
  reason?: string;
  application?: string;
  state?: string;
  moves?: Move[];
  /** Of a copy that is restored. */
  role?: "owner" | "standby";
  key_groups?: number;
  took_ms?: number;
}

/** Keys and scans that were refused since the proxy began. Without a state: of states that no server holds. */
export interface Refusals {
  application: string;
  state: string;
  reason: string;
  count: number;
  last_ms: number;
}

export interface Overview extends Head {
  version: string;
  grpc_port: number;
  administers: boolean;
  /** Why there is no SQL here; empty: there is. */
  no_sql: string;
  states: StateNow[];
  servers: ServerNow[];
  troubles: Trouble[];
  events: RouteEvent[];
  /** The last ones first. */
  refusals: Refusals[];
  /** At the entrance, before they were looked at. */
  turned_away: Record<string, number>;
}

/** What the servers were asked for of one state. `epoch` 0: the last one of each key group. */
export interface SqlScan {
  state: string;
  epoch: number;
  columns: string[];
  where: string;
  entries: number;
  indexes: string[];
}

export interface SqlFound {
  columns: string[];
  rows: Json[][];
  total: number;
  scans: SqlScan[];
  seconds: number;
}

export interface Run {
  first: number;
  last: number;
  status: Status;
  lag: Lag;
  owner: string;
  copies: string[];
  catching_up: string[];
}

export interface Copy {
  server: string;
  role: "owner" | "standby";
  ready: boolean;
  unconfirmed: boolean;
  key_groups: [number, number][];
  epoch: number;
  generation: number;
  commit_time_ms: number;
  watermark_ms: number;
  as_of_ms: number;
  lag_epochs: number;
  entries: number;
  bytes: number;
  restored_records: number;
  records_to_restore: number;
  lag_updates: number;
  updates_lag_ms: number;
}

export interface Column {
  name: string;
  type: string;
}

export interface Descriptor {
  application: string;
  state: string;
  query: string;
  kind: string;
  key_groups: number;
  key: Column[];
  map_key: Column[];
  value: { version: number; fields: { name: string; type: string; nullable: boolean }[] };
  order_by: string;
  topic_id: string;
  reducers: string[];
  ttl_ms: number;
  ttl_clock: string;
  max_length: number;
  class_version: number;
  /** Names of fields of the value. */
  index: string[];
}

export interface StateDetail extends Head {
  grpc_port: number;
  descriptor: Descriptor;
  scan_key: Column[];
  entry_key: Column[];
  may_read: boolean;
  may_scan: boolean;
  /** Of keys that were read lately through this proxy, by samples. null: one may not see which keys there are. */
  hottest: { reads: number; keys: { key: Json; map_key?: Json; share: number }[] } | null;
  standing: StateNow;
  runs: Run[];
  copies: Copy[];
  missing: string;
  troubles: Trouble[];
}

export interface KeyGroups extends Head {
  states: { application: string; state: string; key_groups: number; runs: Run[]; copies: Copy[] }[];
}

/** Milliseconds. */
export interface EpochTimes {
  epoch: number;
  generation: number;
  batch: number | null;
  began_ms: number;
  ms: number;
  converge_ms: number;
  stage_ms: number;
  commit_ms: number;
  complete_ms: number;
  /** null: Spark has not reported it. */
  batch_ms: number | null;
  rounds: number;
  replayed: boolean;
}

export interface QueryEpochs extends Head {
  application: string;
  query: string;
  answered: boolean;
  epochs: EpochTimes[];
}

export interface Source {
  server: string;
  role: string;
  epoch: number;
  commit_time: string | null;
  as_of: string | null;
  staleness_seconds: number | null;
  lag_epochs: number;
  unconfirmed: boolean;
}

export type Json = null | boolean | number | string | Exact | Json[] | { [name: string]: Json };

/** A number that JavaScript's own can't hold, as it was spelled. */
export class Exact {
  constructor(readonly text: string) {}
}

export interface Answer {
  found: boolean;
  value: { [field: string]: Json } | null;
  source: Source;
}

/** A page of all keys of a state. */
export interface AllKeys {
  entries: { key: Json; map_key?: Json; value: { [field: string]: Json } }[];
  next: string | null;
  sources: Source[];
}

export interface Entries {
  entries: { map_key: Json; value: { [field: string]: Json } }[];
  next: string | null;
  source: Source;
}
