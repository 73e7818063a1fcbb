// The clock that leases are measured by. The wall clock is never read: it can be stepped.

import { builtin, host, isNode } from "./host.js";

interface Sources {
  /** Milliseconds of a monotonic clock, which may stand still while the machine is suspended. */
  steady: () => number;
  /** Milliseconds since boot, time in suspend included, in steps of 10 ms. */
  uptime?: (() => number) | undefined;
}

/** More than the steps of the uptime, so that only a suspend is taken for one. */
const GRAIN_MS = 20;

/**
 * Milliseconds of a clock that never steps back, and goes on in suspend where the platform can tell.
 *
 * On Linux `performance.now()` stands still in suspend, and a lease does not. The uptime goes on, but
 * in steps; so the clock takes from it only how much it gained on the other one.
 */
export function clock({ steady, uptime }: Sources): () => number {
  if (!uptime) return steady;
  // The uptime is read first: a pause between the two readings then never looks like suspend.
  const ahead = () => {
    const up = uptime();
    return up - steady();
  };
  let base = Math.max(ahead(), ahead(), ahead());
  let suspended = 0;
  return () => {
    const gained = ahead() - base;
    if (gained > GRAIN_MS) {
      suspended += gained;
      base += gained;
    }
    return steady() + suspended;
  };
}

/** Linux under Node only: other systems' monotonic clocks count suspend, and Deno would ask the user for leave. */
function linuxUptime(): (() => number) | undefined {
  const files = isNode && host?.platform === "linux" ? builtin<{ readFileSync(path: string, encoding: "utf8"): string }>("node:fs") : undefined;
  if (!files) return undefined;
  const read = () => parseFloat(files.readFileSync("/proc/uptime", "utf8")) * 1000;
  try {
    return Number.isFinite(read()) ? read : undefined;
  } catch {
    return undefined; // a sandbox without /proc
  }
}

export const now: () => number = clock({ steady: () => performance.now(), uptime: linuxUptime() });
