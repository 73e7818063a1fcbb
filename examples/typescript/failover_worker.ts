// A singleton worker with standbys: one works, the others take over: at once after a shutdown,
// within the ttl after a crash.
//
//   idle ─▶ acquiring ─▶ working ⇄ renewing        renewing ─▶ idle      the lease is lost
//                          │ ▲       │             pausing  ─▶ idle      it ends without a renewal
//                 shutdown ▼ └──── pausing ◀┘      pausing: nothing new is begun, while the renewal
//            idle ◀─ releasing ◀─────┘             is in doubt or the shutdown under way

import { spawn } from "node:child_process";
import { once } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { check, unique, until } from "./demo.js";
import { acquire, call, Refused, type Lease } from "./quorate.js";

type State =
  | { is: "idle" | "acquiring" }
  | { is: "working" | "renewing" | "pausing" | "releasing"; lease: Lease; renewAt: number };

class Worker {
  private readonly stopping = new AbortController();

  constructor(
    private readonly lock: string,
    private readonly id: string,
    private readonly step: (lease: Lease) => Promise<void>, // short against the ttl
    private readonly ttl_ms = 5_000,
  ) {}

  stop(): void {
    this.stopping.abort();
  }

  async run(): Promise<void> {
    let state: State | undefined = { is: "idle" };
    while (state) {
      console.log(state.is);
      state = await this.next(state);
    }
  }

  private async next(state: State): Promise<State | undefined> {
    const stop = this.stopping.signal;
    switch (state.is) {
      case "idle":
        return stop.aborted ? undefined : { is: "acquiring" };

      case "acquiring":
        try {
          // Aborted while it waits, the server takes back what it may have granted meanwhile.
          const lease = await acquire(this.lock, { ttl_ms: this.ttl_ms, wait_ms: 30_000, owner: this.id }, stop);
          return { is: "working", lease, renewAt: lease.since + this.ttl_ms / 3 };
        } catch (error) {
          // No quorum or no server: again, but not at full speed.
          if (!Refused.is(error, "lock_held")) await sleep(200);
          return stop.aborted ? { is: "idle" } : state;
        }

      case "working":
        while (performance.now() < state.renewAt) {
          if (stop.aborted) return { ...state, is: "pausing" };
          await this.step(state.lease);
        }
        return { ...state, is: "renewing" };

      case "renewing":
        try {
          const renewAt = performance.now() + this.ttl_ms / 3;
          await state.lease.extend(AbortSignal.timeout(this.ttl_ms / 4));
          return { ...state, is: "working", renewAt };
        } catch (error) {
          return Refused.is(error, "lease_lost") ? { is: "idle" } : { ...state, is: "pausing" };
        }

      case "pausing":
        if (stop.aborted) return { ...state, is: "releasing" };
        await sleep(this.ttl_ms / 30);
        return performance.now() < state.lease.validUntil ? { ...state, is: "renewing" } : { is: "idle" };

      case "releasing": // given back, not left to expire: the next one starts at once
        await state.lease.release(AbortSignal.timeout(2_000)).catch(() => {});
        return { is: "idle" };
    }
  }
}

async function demonstrate(): Promise<void> {
  const lock = `locks/${unique("scheduler")}`;
  const start = (id: string) => {
    const child = spawn(process.execPath, [fileURLToPath(import.meta.url), lock, id], { stdio: ["ignore", "pipe", "inherit"] });
    process.once("exit", () => child.kill("SIGKILL"));
    const states: string[] = [];
    child.stdout.setEncoding("utf8").on("data", (lines: string) => states.push(...lines.trim().split("\n")));
    return { child, states, ended: once(child, "close") };
  };
  const takesOver = (id: string, within_ms: number) =>
    until(async () => (await call<{ owner?: string }>("GET", `/v1/${lock}`)).owner === id, within_ms);

  const a = start("worker-a");
  check(await takesOver("worker-a", 20_000), "the first worker works, and is seen as the lock's owner");
  const b = start("worker-b");
  await until(() => b.states.includes("acquiring"));
  await sleep(1_000);
  a.child.kill("SIGKILL");
  check(await takesOver("worker-b", 5_000 + 2_000), "after a crash the standby works within the ttl");
  const c = start("worker-c");
  await until(() => c.states.includes("acquiring") && b.states.includes("renewing"));
  b.child.kill("SIGTERM");
  check(await takesOver("worker-c", 2_500), "after a shutdown the next one works at once");
  c.child.kill("SIGTERM");
  await Promise.all([b.ended, c.ended]);
  check(b.states.slice(0, 3).join() === "idle,acquiring,working", "idle, acquiring, working …");
  check(b.states.includes("renewing"), "… renewing …");
  check(b.states.slice(-4).join() === "working,pausing,releasing,idle", "… pausing, releasing, idle");
}

const [lock, id] = process.argv.slice(2);
if (lock && id) {
  const worker = new Worker(lock, id, async () => { await sleep(50); });
  process.once("SIGTERM", () => worker.stop());
  await worker.run();
} else {
  await demonstrate();
}
