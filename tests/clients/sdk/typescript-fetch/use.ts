// The client that openapi-generator makes for TypeScript (typescript-fetch), at work.

import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import {
  Configuration, ElectionsApi, LocksApi, MultilocksApi, ProblemFromJSON, ResponseError, SemaphoresApi, ServiceApi,
  type Problem,
} from "./client/index.js";

/** The problem that a call is refused with, parsed by the client. */
async function refusal(call: Promise<unknown>): Promise<Problem> {
  const error: unknown = await call.then(() => assert.fail("it was granted"), (error: unknown) => error);
  assert(error instanceof ResponseError);
  return ProblemFromJSON(await error.response.json());
}

const key = process.env.QUORATE_API_KEY;
const configuration = new Configuration({ basePath: process.env.QUORATE_SERVER ?? "", ...(key && { accessToken: key }) });
const name = `sdk:typescript-fetch:${randomBytes(4).toString("hex")}`;

const locks = new LocksApi(configuration);
const lease = await locks.acquireLock({ name, acquireLock: { ttlMs: 10_000, owner: "first" } });
assert.equal(lease.owner, "first");
assert(Number.isSafeInteger(lease.fencingToken));
let problem = await refusal(locks.acquireLock({ name }));
assert.equal(problem.code, "lock_held");
assert.equal(problem.holder?.owner, "first");
assert.equal(problem.holder?.fencingToken, lease.fencingToken);
assert.equal(problem.nodes?.total, 3);
problem = await refusal(locks.acquireLock({ name, acquireLock: { ttlMs: 1e9 } }));
assert.equal(problem.errors?.[0]?.field, "ttl_ms");
const extended = await locks.extendLock({ name, extend: { leaseId: lease.leaseId, ttlMs: 20_000 } });
assert(extended.validityMs > 10_000 && extended.fencingToken === lease.fencingToken);
assert.deepEqual((await locks.listLocks({ prefix: name })).locks.map((lock) => lock.name), [name]);
assert((await locks.releaseLock({ name, release: { leaseId: lease.leaseId } })).released);
problem = await refusal(locks.extendLock({ name, extend: { leaseId: lease.leaseId } }));
assert.equal(problem.code, "lease_lost");

const multilocks = new MultilocksApi(configuration);
const names = new Set([name, `${name}:b`]);
const several = await multilocks.acquireMultilock({ acquireMultilock: { names } });
assert((several.fencingTokens[name] ?? 0) > lease.fencingToken);
const { leaseId } = several;
assert((await multilocks.releaseMultilock({ releaseMultilock: { names, leaseId } })).released);

const semaphores = new SemaphoresApi(configuration);
const permits = await semaphores.acquireSemaphore({ name, acquireSemaphore: { limit: 3, permits: 2 } });
assert.equal(permits.slots.length, 2);
problem = await refusal(semaphores.acquireSemaphore({ name, acquireSemaphore: { limit: 3, permits: 2 } }));
assert.equal(problem.code, "semaphore_full");
assert.deepEqual(problem.holders?.[0]?.slots?.sort(), permits.slots.sort());
const { semaphores: [listed] } = await semaphores.listSemaphores({ prefix: name });
assert.equal(listed?.inUse, 2);
assert((await semaphores.releaseSemaphore({ name, release: { leaseId: permits.leaseId } })).released);

const elections = new ElectionsApi(configuration);
const leadership = await elections.campaign({ name, campaign: { candidate: "host-1", value: "10.0.0.1" } });
problem = await refusal(elections.campaign({ name, campaign: { candidate: "host-2" } }));
assert.equal(problem.code, "election_lost");
assert.equal(problem.holder?.candidate, "host-1");
await elections.proclaim({ name, proclaim: { leaseId: leadership.leaseId, value: "10.0.0.2" } });
const state = await elections.getLeader({ name });
assert.deepEqual([state.leader, state.value, state.term], ["host-1", "10.0.0.2", leadership.term]);
assert.deepEqual((await elections.listElections({ prefix: name })).elections.map(({ leader }) => leader), ["host-1"]);
const change = elections.getLeader({ name, after: state.revision, waitMs: 10_000 });
assert((await elections.resign({ name, release: { leaseId: leadership.leaseId } })).released);
assert.equal((await change).leader, undefined);

assert((await locks.acquireLock({ name })).fencingToken > lease.fencingToken);
assert((await locks.forceReleaseLock({ name, reason: "the test takes it away" })).released);
const { nodes } = await new ServiceApi(configuration).listNodes();
assert.deepEqual(nodes.map((node) => node.state), ["voting", "voting", "voting"]);
console.log("ok");
