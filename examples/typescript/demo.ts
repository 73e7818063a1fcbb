// What only the demonstrations need: the recipes are tests too.

import { randomBytes } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

/** A name that no other run of these examples uses. */
export const unique = (what: string): string => `demo:${what}:${randomBytes(4).toString("hex")}`;

export function check(holds: boolean, claim: string): void {
  console.log(holds ? "ok  " : "FAIL", claim);
  if (!holds) process.exit(1);
}

export async function until(condition: () => boolean | Promise<boolean>, within_ms = 15_000): Promise<boolean> {
  const ends = performance.now() + within_ms;
  while (!(await condition())) {
    if (performance.now() > ends) return false;
    await sleep(20);
  }
  return true;
}

/** The error that it ends with; undefined if it ends well. */
export const failure = (work: Promise<unknown>): Promise<unknown> => work.then(() => undefined, (error: unknown) => error);
