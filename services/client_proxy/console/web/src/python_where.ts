/** Filters as predicates of Python (docs/predicates.md), as far as they are comparisons with numbers, texts and booleans. */

const NUMBER = /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/;
const NUMBERS = new Set(["tinyint", "smallint", "int", "bigint", "float", "double"]);

function literal(type: string, text: string): string | null {
  if (NUMBERS.has(type)) return NUMBER.test(text) ? text : null;
  if (type === "boolean") return text === "true" ? "True" : text === "false" ? "False" : null;
  return type === "string" ? JSON.stringify(text) : null;
}

function predicate(text: string, types: Map<string, string>): string | null {
  const name = [...types.keys()]
    .filter((of) => text.startsWith(of) && /^[\s=!<>]/.test(text.slice(of.length)))
    .sort((one, other) => other.length - one.length)[0];
  if (name === undefined) return null;
  const rest = text.slice(name.length).trim();
  const field = `field(${JSON.stringify(name)})`;
  const isNull = /^is\s+(not\s+)?null$/.exec(rest);
  if (isNull) return `${field}.is_${isNull[1] ? "not_" : ""}null()`;
  const [, sign = "", value = ""] = /^(==|=|!=|<=|>=|<|>)\s*(.*)$/s.exec(rest) ?? [];
  const given = sign ? literal(types.get(name)!, value) : null;
  return given === null ? null : `${field} ${sign === "=" ? "==" : sign} ${given}`;
}

/** null: one of them can't be told so. */
export function pythonWhere(texts: string[], types: Map<string, string>): string | null {
  const parts = texts.map((text) => predicate(text, types));
  if (parts.includes(null)) return null;
  return parts.length === 1 ? parts[0]! : parts.map((part) => `(${part})`).join(" & ");
}
