// A write that a stale holder cannot make: the database compares fencing tokens.
//
// No lock service can wake a process that was paused past its lease and tell it so. The resource
// can refuse it, when each write carries the token of the lease it was made under.

import { Client } from "@quorate/client";
import initSqlJs, { type Database } from "sql.js"; // SQLite, without anything to compile
import { check, unique, until } from "./demo.js";

/** False when somebody with a later lease has written. One statement: compared and written at once. */
function write(db: Database, id: string, text: string, token: number): boolean {
  db.run("UPDATE documents SET text = $1, fence_token = $2 WHERE id = $3 AND fence_token < $2", {
    $1: text, $2: token, $3: id,
  });
  return db.getRowsModified() === 1;
}

const client = new Client();
const id = unique("document");
const db = new (await initSqlJs()).Database();
db.run("CREATE TABLE documents (id TEXT PRIMARY KEY, text TEXT, fence_token INTEGER NOT NULL DEFAULT 0)");
db.run("INSERT INTO documents (id, text) VALUES (?, 'empty')", [id]);

const paused = await client.lock(id, { ttlMs: 300, owner: "paused" });
const resume = performance.now() + 600;
while (performance.now() < resume); // a pause of the whole process, past the end of its lease
const next = await client.lock(id, { waitMs: 5_000, owner: "next" });
check(next.fencingToken > paused.fencingToken, "the later holder has the greater token");
check(write(db, id, "by the next holder", next.fencingToken), "and writes");
await next.release();
check(!write(db, id, "by the paused holder", paused.fencingToken), "the write of the stale holder is refused");
const row = db.exec("SELECT text, fence_token FROM documents")[0]?.values[0];
check(row?.[0] === "by the next holder" && row[1] === next.fencingToken, "and nothing of it is there");
check(await until(() => paused.signal.aborted), "the stale holder knows by now, which is too late for its write");
