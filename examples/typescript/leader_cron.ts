// Leader election for a cron runner: of several that run, one is the leader and runs the jobs.

import { Client, leader } from "@quorate/client";
import { setTimeout as sleep } from "node:timers/promises";
import { check, unique, until } from "./demo.js";

interface Hooks {
  // They get the term: a store that refuses smaller ones than it has seen is safe from a leader
  // that was paused and does not know that it is none any more.
  becameLeader(term: number): void;
  job(term: number): void;
  lostLeadership(term: number): void;
}

async function runCron(election: string, candidate: string, hooks: Hooks, every_ms: number, stop: AbortSignal): Promise<void> {
  const client = new Client();
  await leader(client, election, {
    became: async ({ term }, signal) => {
      hooks.becameLeader(term);
      while (!signal.aborted) {
        hooks.job(term);
        await sleep(every_ms, undefined, { signal }).catch(() => {});
      }
    },
    lost: hooks.lostLeadership, // before it is given up, so that the hooks of two never overlap
  }, { candidate, ttlMs: 3_000, signal: stop });
}

const client = new Client();
const election = unique("cron");
const log: { kind: string; host: string; term: number }[] = [];
const present = async () => (await client.getLeader(election)).leader;
const ran = (host: string) => until(() => log.filter((entry) => entry.kind === "job" && entry.host === host).length >= 3);

const stopObserving = new AbortController();
const observed: string[] = [];
const observing = (async () => {
  for await (const { leader } of client.observeElection(election, { signal: stopObserving.signal })) observed.push(leader ?? "vacant");
})().catch(() => {});

const runners = new Map(["host-1", "host-2", "host-3"].map((host) => {
  const note = (kind: string) => (term: number) => void log.push({ kind, host, term });
  const hooks = { becameLeader: note("becameLeader"), job: note("job"), lostLeadership: note("lostLeadership") };
  const stop = new AbortController();
  return [host, { stop, ended: runCron(election, host, hooks, 100, stop.signal) }];
}));

check(await until(async () => (await present()) !== undefined), "one of three candidates is elected");
const first = (await present()) ?? "";
check(await ran(first), "and runs the jobs");
runners.get(first)?.stop.abort();
check(await until(async () => ![undefined, first].includes(await present())), "when it stops it resigns, and another is elected");
const second = (await present()) ?? "";
check(await ran(second), "which runs them from now on");
for (const { stop } of runners.values()) stop.abort();
await Promise.all([...runners.values()].map(({ ended }) => ended));

const terms = log.map(({ term }) => term);
check(terms.every((term, i) => i === 0 || term >= (terms[i - 1] ?? 0)), "terms only ever grow");
for (const term of new Set(terms)) {
  const kinds = log.filter((entry) => entry.term === term).map(({ kind }) => kind);
  const jobs = kinds.slice(1, -1);
  check(
    kinds[0] === "becameLeader" && kinds.at(-1) === "lostLeadership" && jobs.every((kind) => kind === "job"),
    `${jobs.length} runs between becameLeader and lostLeadership`,
  );
}
check(await until(() => observed.at(-1) === "vacant"), "the last one has resigned");
check(observed.includes(first) && observed.indexOf(first) < observed.indexOf(second), "those who only follow have seen each leader");
stopObserving.abort();
await observing;
