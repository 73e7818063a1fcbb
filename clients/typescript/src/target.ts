// A lease's target: a primitive and its name or names, the paths of its calls, and its label among others.

import { invalid } from "./errors.js";

export type Primitive = "lock" | "semaphore" | "election" | "multilock";

export interface Target {
  readonly names: string[];
  /** What a body has besides, because the path does not name it. */
  readonly body: { names?: string[] };
  /** How a batch names it. */
  readonly label: { primitive: Primitive; name?: string; names?: string[] };
  path(verb: "acquire" | "extend" | "release"): string;
}

export function single(primitive: Exclude<Primitive, "multilock">, name: string): Target {
  checkName(name);
  const verbs: Record<string, string> = primitive === "election" ? { acquire: "campaign", release: "resign" } : {};
  const path = `/v1/${primitive}s/${name}`;
  return { names: [name], body: {}, label: { primitive, name }, path: (verb) => `${path}/${verbs[verb] ?? verb}` };
}

/** One name makes a plain lock: a multilock has two or more. */
export function several(names: string[]): Target {
  if (names.length === 1) return single("lock", names[0] as string);
  names.forEach(checkName);
  if (names.length === 0 || names.length > 64 || new Set(names).size < names.length) throw invalid("names", "must be 1 to 64, all different");
  return { names, body: { names }, label: { primitive: "multilock", names }, path: (verb) => `/v1/multilocks/${verb}` };
}

export function checkName(name: unknown): void {
  if (typeof name !== "string" || !/^[A-Za-z0-9._~:@-]{1,200}$/.test(name) || name === "." || name === "..") {
    throw invalid("name", `must have 1 to 200 characters of A-Z a-z 0-9 . _ ~ : @ -, not ${JSON.stringify(name)}`);
  }
}
