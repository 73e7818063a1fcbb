// The types that openapi-typescript makes, with its small client openapi-fetch: a refusal is a
// value, and its type is known.

import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import createClient from "openapi-fetch";
import type { components, paths } from "./client/quorate.js";

type Problem = components["schemas"]["Problem"];

const key = process.env.QUORATE_API_KEY;
const api = createClient<paths>({
  baseUrl: process.env.QUORATE_SERVER ?? "",
  headers: key ? { Authorization: `Bearer ${key}` } : {},
});

function granted<T>(answer: { data?: T; error?: Problem }): T {
  assert(answer.data !== undefined, `refused: ${answer.error?.code}`);
  return answer.data;
}

function refused(answer: { error?: Problem }, code: string): Problem {
  assert.equal(answer.error?.code, code);
  return answer.error;
}

const name = `sdk:openapi-typescript:${randomBytes(4).toString("hex")}`;
const params = { path: { name } };

const lease = granted(await api.POST("/v1/locks/{name}/acquire", { params, body: { ttl_ms: 10_000, owner: "first" } }));
assert(Number.isSafeInteger(lease.fencing_token));
let problem = refused(await api.POST("/v1/locks/{name}/acquire", { params, body: {} }), "lock_held");
assert.equal(problem.holder?.owner, "first");
assert.equal(problem.nodes?.total, 3);
problem = refused(await api.POST("/v1/locks/{name}/acquire", { params, body: { ttl_ms: 1e9 } }), "invalid_request");
assert.equal(problem.errors?.[0]?.field, "ttl_ms");
const { lease_id } = lease;
const extended = granted(await api.POST("/v1/locks/{name}/extend", { params, body: { lease_id, ttl_ms: 20_000 } }));
assert(extended.validity_ms > 10_000);
assert(granted(await api.POST("/v1/locks/{name}/release", { params, body: { lease_id } })).released);
refused(await api.POST("/v1/locks/{name}/extend", { params, body: { lease_id } }), "lease_lost");

const several = granted(await api.POST("/v1/multilocks/acquire", { body: { names: [name, `${name}:b`] } }));
assert((several.fencing_tokens[name] ?? 0) > lease.fencing_token);
const { names } = several;
assert(granted(await api.POST("/v1/multilocks/release", { body: { names, lease_id: several.lease_id } })).released);

const body = { limit: 3, permits: 2 };
const permits = granted(await api.POST("/v1/semaphores/{name}/acquire", { params, body }));
problem = refused(await api.POST("/v1/semaphores/{name}/acquire", { params, body }), "semaphore_full");
assert.deepEqual(problem.holders?.[0]?.slots?.sort(), permits.slots.sort());
assert(granted(await api.POST("/v1/semaphores/{name}/release", { params, body: { lease_id: permits.lease_id } })).released);

const leadership = granted(await api.POST("/v1/elections/{name}/campaign", { params, body: { candidate: "host-1" } }));
problem = refused(await api.POST("/v1/elections/{name}/campaign", { params, body: { candidate: "host-2" } }), "election_lost");
assert.equal(problem.holder?.candidate, "host-1");
const state = granted(await api.GET("/v1/elections/{name}", { params }));
assert.deepEqual([state.leader, state.term], ["host-1", leadership.term]);
const query = { after: state.revision, wait_ms: 10_000 };
const change = api.GET("/v1/elections/{name}", { params: { ...params, query } });
assert(granted(await api.POST("/v1/elections/{name}/resign", { params, body: { lease_id: leadership.lease_id } })).released);
assert.equal(granted(await change).leader, undefined);
console.log("ok");
