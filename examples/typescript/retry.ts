// Retry: the client does it. It keeps one request id, goes on to the next server, and heeds retry_after_ms;
// the wait bounds all of it.

import { Client, NotAcquiredError, UnavailableError } from "@quorate/client";
import { check, failure, unique } from "./demo.js";

// Requests of a second at most, e.g. behind a proxy that cuts longer ones off.
const client = new Client({ pieceMs: 1_000 });

const lock = unique("report");
let holder = await client.lock(lock);
setTimeout(() => void holder.release(), 2_500);
let begun = performance.now();
await client.lock(lock, { waitMs: 20_000 }, () => {
  check(performance.now() - begun > 2_000, "a wait of many requests, granted as soon as it is free");
});

holder = await client.lock(lock, { owner: "the holder" });
begun = performance.now();
const refusal = await failure(client.lock(lock, { waitMs: 1_500 }));
check(refusal instanceof NotAcquiredError && refusal.holder?.owner === "the holder", "bounded by the wait, with the last refusal");
check(performance.now() - begun < 6_000, "which is kept");

const stop = new AbortController();
setTimeout(() => stop.abort(), 300);
check((await failure(client.lock(lock, { signal: stop.signal }))) === stop.signal.reason, "or by the caller's signal");
await holder.release();

// The first server does not exist: each attempt goes on to the next one at once.
const elsewhere = new Client({ servers: ["http://127.0.0.1:1", ...(process.env["QUORATE_SERVER"] ?? "http://127.0.0.1:8080").split(",")] });
await elsewhere.lock(lock, { waitMs: 10_000 }, (lease) => lease.check());
check(true, "a server that is down costs nothing where there is another");
const nobody = new Client({ servers: "http://127.0.0.1:1" });
check((await failure(nobody.lock(lock, { waitMs: 500 }))) instanceof UnavailableError, "and without any, that is no \"held\"");
