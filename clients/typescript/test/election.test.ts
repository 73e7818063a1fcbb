// Scenarios S50 to S52: elections.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Fault, Program, client, own, shared, unique, until } from "./support.js";

const here = shared();

test("S50: of three candidates never two lead at once by their own clocks", async (t) => {
  const name = unique();
  const start = (candidate: string) => new Program(t, "candidate", [here.urls.join(), name, candidate, "1000"]);
  const all: Program[] = [];
  const candidates = new Map<string, Program>();
  const enter = (candidate: string) => {
    const program = start(candidate);
    all.push(program);
    candidates.set(candidate, program);
  };
  ["a", "b", "c"].forEach(enter);
  const seen = client(t, here.urls);
  let last = "";
  const next = async () => {
    await until(async () => {
      const { leader } = await seen.getLeader(name);
      return leader !== undefined && leader !== last && ((last = leader), true);
    });
    const program = candidates.get(last) as Program;
    await until(() => program.lines.some((line) => line.startsWith("leads")));
    return program;
  };
  (await next()).process.kill("SIGKILL");
  enter(`${last}2`);
  (await next()).process.stdin?.write("resign\n");
  const paused = await next();
  paused.process.kill("SIGSTOP");
  await next();
  paused.process.kill("SIGCONT");
  await until(() => paused.lines.includes("lost"));
  for (const program of candidates.values()) program.process.stdin?.end();
  await Promise.all([...candidates.values()].map(({ ended }) => ended));

  // Each line is a moment at which a candidate was the leader, by a clock that all processes share.
  const moments = all.flatMap(({ lines }) => lines.map((line) => line.split(" ")))
    .filter(([word]) => word === "leads").map(([, term, at]) => ({ term: Number(term), at: BigInt(at as string) }))
    .sort((one, other) => (one.at < other.at ? -1 : 1));
  assert.ok(new Set(moments.map(({ term }) => term)).size >= 4);
  moments.slice(1).forEach(({ term }, i) => assert.ok(term >= (moments[i]?.term ?? 0), "an earlier term leads while a later one does"));
});

test("S51: after a leader whose function returns the next one leads at once", async (t) => {
  const [mine, other, name] = [client(t, here.urls), client(t, here.urls), unique()];
  let [ends, begins] = [0, 0];
  const both = [
    mine.lead(name, { candidate: "a", ttlMs: 30_000 }, async () => {
      await until(async () => (await mine.getLeader(name)).waiters === 1);
      ends = performance.now();
      return "done";
    }),
  ];
  await until(async () => (await mine.getLeader(name)).leader === "a");
  both.push(other.lead(name, { candidate: "b", ttlMs: 30_000 }, () => {
    begins = performance.now();
    return "next";
  }));
  assert.deepEqual(await Promise.all(both), ["done", "next"]);
  assert.ok(begins > ends && begins - ends < 10_000); // of 30 s
  assert.equal((await mine.getLeader(name)).leader, undefined);
});

test("S51: who loses the leadership campaigns again, and an error of its own ends it", async (t) => {
  const [mine, name] = [client(t, here.urls), unique()];
  const terms: number[] = [];
  const leads = mine.lead(name, { candidate: "a", ttlMs: 1_000 }, async (leadership, signal) => {
    terms.push(leadership.term);
    if (terms.length > 1) throw new RangeError("mine");
    await mine.request("POST", `/v1/elections/${name}/resign`, { lease_id: leadership.answer.lease_id });
    await sleep(10_000, undefined, { signal });
  });
  await assert.rejects(leads, new RangeError("mine"));
  assert.ok((terms[1] ?? 0) > (terms[0] ?? 0));
});

test("S52: an observer sees the state and each change, and rides through the death of its server", async (t) => {
  const deployment = await own(t, 2);
  const [mine, name] = [client(t, deployment.urls[1] as string), unique()];
  const seen: string[] = [];
  const stop = new AbortController();
  const observing = (async () => {
    for await (const { leader, value } of client(t, deployment.urls).observeElection(name, { signal: stop.signal })) {
      seen.push(leader ? `${leader} at ${value}` : "vacant");
    }
  })();
  const sees = (what: string) => until(() => seen.at(-1) === what);
  await sees("vacant");
  const leadership = await mine.campaign(name, { candidate: "a", value: "1" });
  await sees("a at 1");
  await deployment.servers[0]?.kill();
  await leadership.proclaim("2");
  await sees("a at 2");
  await leadership.release();
  await sees("vacant");
  await mine.campaign(name, { candidate: "b", value: "3" });
  await sees("b at 3");
  assert.deepEqual(seen, ["vacant", "a at 1", "a at 2", "vacant", "b at 3"]);
  stop.abort();
  await assert.rejects(observing, { name: "AbortError" });
});

test("S52: a poll that ends without a change shows none", async (t) => {
  const [fault, name] = [await Fault.before(t, here.urls[0] as string), unique()];
  const observed = client(t, fault.url, { pieceMs: 100 }).observeElection(name);
  await observed.next();
  let changes = 0;
  const next = observed.next().then((state) => (changes++, state));
  await until(() => (fault.requests.get(`/v1/elections/${name}`) ?? 0) >= 4);
  assert.equal(changes, 0);
  await client(t, here.urls).campaign(name, { candidate: "a" });
  assert.equal((await next).value?.leader, "a");
});

test("S52: an observer of a server that takes no long waits asks for shorter ones", async (t) => {
  const deployment = await own(t, 0);
  const { url } = await deployment.serve("--max-wait", "1s");
  const [mine, name] = [client(t, url), unique()];
  const observed = mine.observeElection(name);
  assert.equal((await observed.next()).value?.leader, undefined);
  const next = observed.next();
  await mine.campaign(name, { candidate: "a" });
  assert.equal((await next).value?.leader, "a");
});
