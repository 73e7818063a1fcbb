// Shutdown: give back all that is held, in parallel, within 5 seconds, and then end.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { fileURLToPath } from "node:url";
import { check, unique } from "./demo.js";
import { acquire, call, type Ask, type Lease } from "./quorate.js";

const GIVE_BACK_MS = 5_000;

/** All leases of this process. */
class Held {
  private readonly leases: Lease[] = [];

  async acquire(what: string, ask: Ask): Promise<void> {
    this.leases.push(await acquire(what, ask));
  }

  /** True if all of them are given back; what is not in time ends with its ttl. */
  async giveBack(): Promise<boolean> {
    const signal = AbortSignal.timeout(GIVE_BACK_MS);
    const releases = await Promise.allSettled(this.leases.map((lease) => lease.release(signal)));
    return releases.every(({ status }) => status === "fulfilled");
  }
}

async function service(run: string): Promise<void> {
  const working = setInterval(() => {}, 1_000); // the work
  const stop = once(process, "SIGTERM");
  const held = new Held();
  await Promise.all(Array.from({ length: 10 }, (_, i) => held.acquire(`locks/${run}:${i}`, { ttl_ms: 60_000 })));
  await held.acquire(`semaphores/${run}`, { limit: 2, ttl_ms: 60_000 });
  await held.acquire(`elections/${run}`, { candidate: "service", ttl_ms: 60_000 });
  console.log("ready");
  await stop;
  clearInterval(working); // no new work, what is begun is finished
  process.exit((await held.giveBack()) ? 0 : 1);
}

async function demonstrate(): Promise<void> {
  const run = unique("shutdown");
  const inUse = async () => {
    const { locks } = await call<{ locks: { held: boolean }[] }>("GET", `/v1/locks?prefix=${run}:`);
    const { in_use } = await call<{ in_use: number }>("GET", `/v1/semaphores/${run}`);
    const { leader } = await call<{ leader?: string }>("GET", `/v1/elections/${run}`);
    return locks.filter(({ held }) => held).length + in_use + (leader ? 1 : 0);
  };

  const child = spawn(process.execPath, [fileURLToPath(import.meta.url), run], { stdio: ["ignore", "pipe", "inherit"] });
  process.once("exit", () => child.kill("SIGKILL"));
  await once(child.stdout, "data");
  check((await inUse()) === 12, "a service holds ten locks, a permit and a leadership");
  const begun = performance.now();
  child.kill("SIGTERM");
  const [status] = (await once(child, "exit")) as [number | null];
  const took = Math.round(performance.now() - begun);
  check(status === 0, "told to end, it ends well");
  check(took < GIVE_BACK_MS, `within 5 s: after ${took} ms`);
  check((await inUse()) === 0, "and holds nothing any more, a minute before its leases would have ended");
}

const [run] = process.argv.slice(2);
await (run ? service(run) : demonstrate());
