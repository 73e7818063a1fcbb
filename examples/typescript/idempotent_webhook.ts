// Work once: a lock around a marker of what was processed, kept for 24 hours.

import { Client, idempotent } from "@quorate/client";
import { setTimeout as sleep } from "node:timers/promises";
import initSqlJs, { type Database } from "sql.js"; // SQLite, without anything to compile
import { check, failure, unique } from "./demo.js";

const DAY_MS = 24 * 3_600_000;
const client = new Client();

/** The marker lives where the work's result lives; a lock is no place to remember things. */
class Inbox {
  constructor(readonly db: Database, private readonly handle: (db: Database, event: string) => Promise<() => void>) {
    db.run("CREATE TABLE processed (event TEXT PRIMARY KEY, at INTEGER NOT NULL)");
  }

  /** Answer "duplicate" with a status that makes the sender try again. */
  deliver(event: string): Promise<"processed" | "duplicate" | "already_processed"> {
    return idempotent(client, `webhook:${event}`, { done: () => this.processed(event), work: () => this.process(event) });
  }

  private processed(event: string): boolean {
    return this.db.exec("SELECT 1 FROM processed WHERE event = ? AND at > ?", [event, Date.now() - DAY_MS]).length > 0;
  }

  private async process(event: string): Promise<void> {
    const effect = await this.handle(this.db, event);
    this.db.run("BEGIN IMMEDIATE"); // the effect and its marker: both or neither
    try {
      effect();
      this.db.run("DELETE FROM processed WHERE at <= ?", [Date.now() - DAY_MS]);
      // Fails on a marker that is there: the lease was lost during the work, and somebody else
      // has done it meanwhile. Then the effect is rolled back with it.
      this.db.run("INSERT INTO processed VALUES (?, ?)", [event, Date.now()]);
      this.db.run("COMMIT");
    } catch (error) {
      this.db.run("ROLLBACK");
      throw error;
    }
  }
}

const db = new (await initSqlJs()).Database();
db.run("CREATE TABLE bookings (event TEXT)");
const bookings = (event: string) => db.exec("SELECT count(*) FROM bookings WHERE event = ?", [event])[0]?.values[0]?.[0];
let failures = 1;
const inbox = new Inbox(db, async (db, event) => {
  await sleep(200);
  if (event.startsWith("broken") && failures-- > 0) throw new Error("the first time it fails");
  return () => db.run("INSERT INTO bookings VALUES (?)", [event]);
});

const event = unique("invoice");
const answers = await Promise.all(Array.from({ length: 6 }, () => inbox.deliver(event)));
check(bookings(event) === 1, "delivered six times at once, done once");
check(answers.filter((answer) => answer !== "processed").length === 5, `the others know: ${answers.join(", ")}`);
check((await inbox.deliver(event)) === "already_processed", "delivered later: already_processed");

await client.lock(`webhook:next-${event}`, {}, async () => {
  check((await inbox.deliver(`next-${event}`)) === "duplicate", "delivered while another is at it: duplicate");
});

check((await failure(inbox.deliver(`broken-${event}`))) !== undefined, "a failure is told");
check((await inbox.deliver(`broken-${event}`)) === "processed", "work that failed leaves no marker and is done again");

db.run("UPDATE processed SET at = at - ?", [DAY_MS + 1]);
check((await inbox.deliver(event)) === "processed", "after a day the marker counts no more");
