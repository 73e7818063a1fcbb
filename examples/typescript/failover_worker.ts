// A singleton worker with standbys: one works, the others take over: at once after a shutdown,
// within the ttl after a crash.

import { Client, singleton } from "@quorate/client";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { check, failure, unique, until } from "./demo.js";

/** Works in steps that are short against the ttl, until it is told to stop. Where its lease is lost it stands by again. */
async function work(lock: string, id: string, stop: AbortSignal): Promise<void> {
  const client = new Client({ owner: id });
  await failure(singleton(client, lock, async (lease, signal) => {
    console.log("working");
    while (!signal.aborted) {
      lease.check(); // nothing is begun without a lease
      await sleep(50); // a step
    }
  }, { ttlMs: 5_000, signal: stop }));
  await client.close();
}

async function demonstrate(): Promise<void> {
  const lock = unique("scheduler");
  const client = new Client();
  const start = (id: string) => {
    const child = spawn(process.execPath, [fileURLToPath(import.meta.url), lock, id], { stdio: ["ignore", "pipe", "inherit"] });
    process.once("exit", () => child.kill("SIGKILL"));
    let working = false;
    child.stdout.once("data", () => (working = true));
    return { child, works: () => working, ended: once(child, "close") };
  };
  const takesOver = (id: string, within_ms: number) => until(async () => (await client.getLock(lock)).owner === id, within_ms);
  const standsBy = () => until(async () => (await client.getLock(lock)).waiters === 1);

  const a = start("worker-a");
  check((await takesOver("worker-a", 20_000)) && (await until(a.works)), "the first worker works, and is seen as the lock's owner");
  const b = start("worker-b");
  check((await standsBy()) && !b.works(), "the second one stands by");
  a.child.kill("SIGKILL");
  check(await takesOver("worker-b", 5_000 + 2_000), "after a crash it works within the ttl");
  const c = start("worker-c");
  await standsBy();
  b.child.kill("SIGTERM");
  check(await takesOver("worker-c", 2_500), "after a shutdown the next one works at once");
  c.child.kill("SIGTERM");
  await Promise.all([b.ended, c.ended]);
  check([b, c].every(({ child }) => child.exitCode === 0), "told to end, they end well");
  check(!(await client.getLock(lock)).held, "and leave nothing behind");
}

const [lock, id] = process.argv.slice(2);
if (lock && id) {
  const stop = new AbortController();
  process.once("SIGTERM", () => stop.abort());
  await work(lock, id, stop.signal);
} else {
  await demonstrate();
}
