"""Work once: a lock around a marker of what was processed, kept for 24 hours."""
import collections
import concurrent.futures
import contextlib
import sqlite3
import tempfile
import time

import quorate
from demo import check, unique

DAY_S = 24 * 3600
client = quorate.Client()


class Inbox:
    """The marker lives where the work's result lives; a lock is no place to remember things."""

    def __init__(self, path, handle):
        self.path, self.handle = path, handle
        with self._database() as db:
            db.execute("CREATE TABLE IF NOT EXISTS processed (event TEXT PRIMARY KEY, at REAL NOT NULL)")

    def deliver(self, event):
        """processed, already_processed, or duplicate: answer that with a status that makes the sender try again."""
        return client.idempotent(
            f"webhook:{event}", done=lambda: self._processed(event), process=lambda lease: self._process(event)
        )

    @contextlib.contextmanager
    def _database(self):
        with contextlib.closing(sqlite3.connect(self.path, timeout=10)) as db, db:  # commits, and closes
            yield db

    def _processed(self, event):
        with self._database() as db:
            since = time.time() - DAY_S
            return bool(db.execute("SELECT 1 FROM processed WHERE event = ? AND at > ?", (event, since)).fetchone())

    def _process(self, event):
        with self._database() as db:  # the effect and its marker: both or neither
            db.execute("DELETE FROM processed WHERE at <= ?", (time.time() - DAY_S,))
            self.handle(db, event)
            # Fails on a marker that is there: the lease was lost during the work, and somebody
            # else has done it meanwhile. Then the effect is rolled back with it.
            db.execute("INSERT INTO processed VALUES (?, ?)", (event, time.time()))


if __name__ == "__main__":
    handled = collections.Counter()

    def handle(db, event):
        time.sleep(0.2)
        handled[event] += 1
        if event.startswith("broken") and handled[event] == 1:
            raise ValueError("the first time it fails")

    with tempfile.TemporaryDirectory() as directory:
        inbox = Inbox(f"{directory}/inbox.sqlite", handle)
        event = unique("invoice")
        with concurrent.futures.ThreadPoolExecutor() as pool:
            answers = collections.Counter(pool.map(inbox.deliver, [event] * 6))
        check(answers["processed"] == 1 and handled[event] == 1, "delivered six times at once, done once")
        check(answers["duplicate"] + answers["already_processed"] == 5, f"the others know: {dict(answers)}")
        check(inbox.deliver(event) == "already_processed", "delivered later: already_processed")

        with client.lock(f"webhook:next-{event}"):
            check(inbox.deliver(f"next-{event}") == "duplicate", "delivered while another is at it: duplicate")

        try:
            inbox.deliver(f"broken-{event}")
            check(False, "a failure is told")
        except ValueError:
            check(True, "a failure is told")
        check(inbox.deliver(f"broken-{event}") == "processed", "work that failed leaves no marker and is done again")

        with inbox._database() as db:
            db.execute("UPDATE processed SET at = at - ?", (DAY_S + 1,))
        check(inbox.deliver(event) == "processed", "after a day the marker counts no more")
