"""Work once: a lock around a marker of what was processed, kept for 24 hours."""
import collections
import concurrent.futures
import contextlib
import secrets
import sqlite3
import tempfile
import time

from quorate import Refused, acquire, check

DAY_S = 24 * 3600


class Inbox:
    """The marker lives where the work's result lives; a lock is no place to remember things."""

    def __init__(self, path, handle):
        self.path, self.handle = path, handle
        with self._database() as db:
            db.execute("CREATE TABLE IF NOT EXISTS processed (event TEXT PRIMARY KEY, at REAL NOT NULL)")

    @contextlib.contextmanager
    def _database(self):
        with contextlib.closing(sqlite3.connect(self.path, timeout=10)) as db, db:  # commits, and closes
            yield db

    def _processed(self, event):
        with self._database() as db:
            since = time.time() - DAY_S
            return db.execute("SELECT 1 FROM processed WHERE event = ? AND at > ?", (event, since)).fetchone()

    def deliver(self, event):
        if self._processed(event):
            return "already_processed"
        try:
            lease = acquire(f"locks/demo:webhook:{event}", ttl_ms=30_000)
        except Refused as refusal:
            if refusal.code != "lock_held":
                raise  # the sender has to deliver it again
            return "duplicate"  # somebody is at it just now
        with lease:
            if self._processed(event):  # it was finished between the first look and the lock
                return "already_processed"
            with self._database() as db:  # the effect and its marker: both or neither
                db.execute("DELETE FROM processed WHERE at <= ?", (time.time() - DAY_S,))
                self.handle(db, event)
                # Fails on a marker that is there: the work took longer than the lease, and somebody
                # else has done it meanwhile. Then the effect is rolled back with it.
                db.execute("INSERT INTO processed VALUES (?, ?)", (event, time.time()))
            return "processed"


if __name__ == "__main__":
    handled = collections.Counter()

    def handle(db, event):
        time.sleep(0.2)
        handled[event] += 1
        if event.startswith("broken") and handled[event] == 1:
            raise ValueError("the first time it fails")

    with tempfile.TemporaryDirectory() as directory:
        inbox = Inbox(f"{directory}/inbox.sqlite", handle)
        event = f"invoice-{secrets.token_hex(4)}"
        with concurrent.futures.ThreadPoolExecutor() as pool:
            answers = collections.Counter(pool.map(inbox.deliver, [event] * 6))
        check(answers["processed"] == 1 and handled[event] == 1, "delivered six times at once, done once")
        check(answers["duplicate"] + answers["already_processed"] == 5, f"the others know: {dict(answers)}")
        check(inbox.deliver(event) == "already_processed", "delivered later: already_processed")

        with acquire(f"locks/demo:webhook:next-{event}"):
            check(inbox.deliver(f"next-{event}") == "duplicate", "delivered while another is at it: duplicate")

        try:
            inbox.deliver(f"broken-{event}")
            check(False, "a failure is told")
        except ValueError:
            pass
        check(inbox.deliver(f"broken-{event}") == "processed", "work that failed leaves no marker and is done again")

        with inbox._database() as db:
            db.execute("UPDATE processed SET at = at - ?", (DAY_S + 1,))
        check(inbox.deliver(event) == "processed", "after a day the marker counts no more")
