// Shutdown: give back all that is held, in parallel, within 5 seconds, and then end.

import { Client } from "@quorate/client";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { fileURLToPath } from "node:url";
import { check, unique } from "./demo.js";

async function service(run: string): Promise<void> {
  const client = new Client();
  const working = setInterval(() => {}, 1_000); // the work
  const stop = once(process, "SIGTERM");
  await Promise.all(Array.from({ length: 10 }, (_, i) => client.lock(`${run}:${i}`, { ttlMs: 60_000 })));
  await client.semaphore(run, { limit: 2, ttlMs: 60_000 });
  await client.campaign(run, { candidate: "service", ttlMs: 60_000 });
  console.log("ready");
  await stop;
  clearInterval(working); // no new work, what is begun is finished
  await client.close(); // waits end, leases go back; what takes longer than 5 s ends with its ttl
}

async function demonstrate(): Promise<void> {
  const [client, run] = [new Client(), unique("shutdown")];
  const inUse = async () => {
    const { locks } = await client.request<{ locks: { held: boolean }[] }>("GET", `/v1/locks?prefix=${run}:`);
    const { in_use } = await client.getSemaphore(run);
    const { leader } = await client.getLeader(run);
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
  check(took < 5_000, `within 5 s: after ${took} ms`);
  check((await inUse()) === 0, "and holds nothing any more, a minute before its leases would have ended");
}

const [run] = process.argv.slice(2);
await (run ? service(run) : demonstrate());
