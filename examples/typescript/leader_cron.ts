// Leader election for a cron runner: of several that run, one is the leader and runs the jobs.

import { setTimeout as sleep } from "node:timers/promises";
import { check, unique, until } from "./demo.js";
import { kept } from "./keeper.js";
import { acquire, call, Refused } from "./quorate.js";

interface Hooks {
  // They get the term: a store that refuses smaller ones than it has seen is safe from a leader
  // that was paused and does not know that it is none any more.
  becameLeader(term: number): void;
  job(term: number): void;
  lostLeadership(term: number): void;
}

async function runCron(election: string, candidate: string, hooks: Hooks, every_ms: number, stop: AbortSignal): Promise<void> {
  while (!stop.aborted) {
    try {
      const leadership = await acquire(`elections/${election}`, { candidate, ttl_ms: 3_000, wait_ms: 30_000 }, stop);
      // Resigns at the end, unless the leadership is lost already.
      await kept(leadership, (lost) => lead(leadership.answer.term, hooks, every_ms, AbortSignal.any([lost, stop])));
    } catch (error) {
      if (!stop.aborted && !Refused.is(error, "election_lost")) await sleep(200);
    }
  }
}

async function lead(term: number, hooks: Hooks, every_ms: number, end: AbortSignal): Promise<void> {
  hooks.becameLeader(term);
  try {
    while (!end.aborted) {
      hooks.job(term);
      await sleep(every_ms, undefined, { signal: end }).catch(() => {});
    }
  } finally {
    hooks.lostLeadership(term); // before it is given up, so that the hooks of two never overlap
  }
}

const election = unique("cron");
const log: { kind: string; host: string; term: number }[] = [];
const leader = async () => (await call<{ leader?: string }>("GET", `/v1/elections/${election}`)).leader;
const ran = (host: string) => until(() => log.filter((entry) => entry.kind === "job" && entry.host === host).length >= 3);

const runners = new Map(["host-1", "host-2", "host-3"].map((host) => {
  const note = (kind: string) => (term: number) => void log.push({ kind, host, term });
  const hooks = { becameLeader: note("becameLeader"), job: note("job"), lostLeadership: note("lostLeadership") };
  const stop = new AbortController();
  return [host, { stop, ended: runCron(election, host, hooks, 100, stop.signal) }];
}));

check(await until(async () => (await leader()) !== undefined), "one of three candidates is elected");
const first = (await leader()) ?? "";
check(await ran(first), "and runs the jobs");
runners.get(first)?.stop.abort();
check(await until(async () => ![undefined, first].includes(await leader())), "when it stops it resigns, and another is elected");
const second = (await leader()) ?? "";
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
check((await leader()) === undefined, "the last one has resigned");
