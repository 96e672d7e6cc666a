/** A look-up as code for elsewhere. All that goes in is quoted: names and keys are anybody's. */

import { statePath } from "./api";
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
  /** All entries of the key, in place of one value. */
  scan: boolean;
  grpcPort: number;
}

export function snippet(language: Language, wanted: Wanted): string {
  const { descriptor, columns, key, scan } = wanted;
  const { application, state } = descriptor;
  const host = location.hostname.includes(":") ? `[${location.hostname}]` : location.hostname;
  const grpc = `${host}:${wanted.grpcPort}`;
  if (language === "Python") {
    const values = columns.map((column, index) => pythonValue(column, key[index] ?? ""));
    const given = values.length === 1 ? values[0]! : `(${values.join(", ")})`;
    const imports = ["import keyhole"];
    const dates = ["date", "timestamp"].filter((type) => columns.some((column) => column.type === type));
    if (dates.length) {
      imports.unshift(`from datetime import ${dates.map((type) => (type === "date" ? type : "datetime")).join(", ")}`, "");
    }
    return [
      ...imports,
      "",
      `with keyhole.Client(${python(grpc)}) as client:`,
      `    answer = client.${scan ? "scan" : "get"}(${python(application)}, ${python(state)}, ${given})`,
      scan ? "    for map_key, value in answer:" : "    print(answer.value, answer.epoch, answer.commit_time)",
      ...(scan ? ["        print(map_key, value)"] : []),
    ].join("\n");
  }
  if (language === "curl") {
    const url = location.origin + statePath(application, state);
    if (!scan) return `curl -d ${shell(JSON.stringify({ keys: [key] }))} \\\n  ${shell(`${url}:batchGet`)}`;
    if (columns.length === 0) return `curl ${shell(`${url}:scan?limit=100`)}`;
    return `curl ${shell(`${url}/${keyInPath(key)}?limit=100`)}`;
  }
  const call = {
    state: { application, state },
    key: { parts: columns.map((column, index) => part(column, key[index] ?? "")) },
    options: { format: "VALUE_FORMAT_JSON" },
  };
  const plain = location.protocol === "https:" ? "" : "-plaintext ";
  return `grpcurl ${plain}-d ${shell(JSON.stringify(call))} \\\n  ${shell(grpc)} keyhole.v1.Query/${scan ? "Scan" : "Get"}`;
}

/** A key as one step of a path. */
export const keyInPath = (key: string[]): string =>
  encodeURIComponent(key.length === 1 ? key[0]! : JSON.stringify(key));

/** Whether browsers leave such a path as it is: `.` and `..` are steps to them. */
export const fitsPath = (key: string[]): boolean => key.length !== 1 || (key[0] !== "." && key[0] !== "..");
