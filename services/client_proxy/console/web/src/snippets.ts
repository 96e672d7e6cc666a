/** A look-up as code for elsewhere. All that goes in is quoted: names and keys are anybody's. */

import { statePath } from "./api";
import { pythonWhere } from "./python_where";
import type { Column, Descriptor } from "./types";

export type Language = "Python" | "curl" | "gRPC";
export const LANGUAGES: Language[] = ["Python", "curl", "gRPC"];

/** For a POSIX shell. */
export const shell = (text: string): string => `'${text.replaceAll("'", `'\\''`)}'`;

/** A literal of Python; JSON's are, but for surrogates that stand alone, which no key has. */
const python = (text: string): string => JSON.stringify(text);

function pythonValue({ type }: Column, text: string): string {
  switch (type) {
    case "boolean":
      return text === "true" ? "True" : "False";
    case "smallint":
    case "int":
    case "bigint":
      return /^-?\d+$/.test(text) ? text : "0";
    case "binary":
      return `bytes.fromhex(${python(text)})`;
    case "date":
      return `date.fromisoformat(${python(text)})`;
    case "timestamp":
      return `datetime.fromisoformat(${python(text)})`;
    default:
      return python(text);
  }
}

function part({ type }: Column, text: string): Record<string, unknown> {
  switch (type) {
    case "boolean":
      return { boolean: text === "true" };
    case "smallint":
    case "int":
    case "bigint":
      return { integer: text };
    case "binary":
      return { binary: btoa(String.fromCharCode(...(text.match(/../g) ?? []).map((pair) => parseInt(pair, 16)))) };
    case "date":
      return { dateDays: Math.round(Date.parse(text) / 86_400_000) };
    case "timestamp":
      return { timestampMicros: String(Date.parse(/(z|[+-]\d\d:?\d\d)$/i.test(text) ? text : `${text}Z`) * 1000) };
    default:
      return { string: text };
  }
}

export interface Wanted {
  descriptor: Descriptor;
  columns: Column[];
  key: string[];
  /** One value, all entries of a key, or those of all keys. */
  what: "one" | "entries" | "all";
  /** Which entries, as HTTP takes it. */
  where: string[];
  /** By name of column and field. */
  types: Map<string, string>;
  grpcPort: number;
}

export function snippet(language: Language, wanted: Wanted): string {
  const host = location.hostname.includes(":") ? `[${location.hostname}]` : location.hostname;
  const grpc = `${host}:${wanted.grpcPort}`;
  return language === "Python" ? inPython(wanted, grpc) : language === "curl" ? byCurl(wanted) : byGrpc(wanted, grpc);
}

function inPython({ descriptor, columns, key, what, where, types }: Wanted, grpc: string): string {
  const values = columns.map((column, index) => pythonValue(column, key[index] ?? ""));
  const given = values.length === 1 ? values[0]! : `(${values.join(", ")})`;
  const predicate = where.length ? pythonWhere(where, types) : null;
  const dates = what === "all" ? [] : ["date", "timestamp"].filter((type) => columns.some((column) => column.type === type));
  const call = what === "one" ? "get" : what === "entries" ? "scan" : "scan_all";
  const names = [python(descriptor.application), python(descriptor.state)];
  const all = [...names, ...(what === "all" ? [] : [given]), ...(predicate ? [`where=${predicate}`] : [])].join(", ");
  return [
    ...(dates.length
      ? [`from datetime import ${dates.map((type) => (type === "date" ? type : "datetime")).join(", ")}`, ""]
      : []),
    "import keyhole",
    ...(predicate ? ["from keyhole import field"] : []),
    "",
    ...(where.length && !predicate ? ["# Without the filter: where= takes predicates, as field(...) > 30."] : []),
    `with keyhole.Client(${python(grpc)}) as client:`,
    ...(what === "one"
      ? [`    answer = client.get(${all})`, "    print(answer.value, answer.epoch, answer.commit_time)"]
      : what === "entries"
        ? [`    answer = client.${call}(${all})`, "    for map_key, value in answer:", "        print(map_key, value)"]
        : [`    for entry in client.${call}(${all}):`, "        print(entry.key, entry.value)"]),
  ].join("\n");
}

function byCurl({ descriptor, columns, key, what, where }: Wanted): string {
  const url = location.origin + statePath(descriptor.application, descriptor.state);
  if (what === "one") return `curl -d ${shell(JSON.stringify({ keys: [key] }))} \\\n  ${shell(`${url}:batchGet`)}`;
  const path = what === "all" || columns.length === 0 ? `${url}:scan` : `${url}/${keyInPath(key)}`;
  const filters = where.map((text) => `--data-urlencode ${shell(`where=${text}`)} \\\n  `);
  return `curl ${filters.length ? "-G " : ""}${filters.join("")}${shell(`${path}?limit=100`)}`;
}

function byGrpc({ descriptor, columns, key, what, where }: Wanted, grpc: string): string {
  const call = {
    state: { application: descriptor.application, state: descriptor.state },
    ...(what === "all"
      ? { keyGroup: { keyGroup: 0 } }
      : { key: { parts: columns.map((column, index) => part(column, key[index] ?? "")) } }),
    options: { format: "VALUE_FORMAT_JSON" },
  };
  const plain = location.protocol === "https:" ? "" : "-plaintext ";
  const last = descriptor.key_groups - 1;
  return [
    ...(what === "all" ? [`# Once for each key group, from 0 to ${last}.`] : []),
    ...(where.length ? ["# Without the filter: selection.where takes it as a message Predicate."] : []),
    `grpcurl ${plain}-d ${shell(JSON.stringify(call))} \\\n  ${shell(grpc)} keyhole.v1.Query/${what === "one" ? "Get" : "Scan"}`,
  ].join("\n");
}

/** A key as one step of a path. */
export const keyInPath = (key: string[]): string =>
  encodeURIComponent(key.length === 1 ? key[0]! : JSON.stringify(key));

/** Whether browsers leave such a path as it is: `.` and `..` are steps to them. */
export const fitsPath = (key: string[]): boolean => key.length !== 1 || (key[0] !== "." && key[0] !== "..");
