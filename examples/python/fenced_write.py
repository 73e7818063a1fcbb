"""A write that a stale holder cannot make: the database compares fencing tokens.

No lock service can wake a process that was paused past its lease and tell it so. The resource
can refuse it, when each write carries the token of the lease it was made under.
"""
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile

import quorate
from demo import check, unique


class Stale(Exception):
    """Somebody with a later lease has written."""


def write(db, document, text, token):
    with db:  # one statement: compared and written at once
        changed = db.execute(
            "UPDATE documents SET text = :text, fence_token = :token WHERE id = :id AND fence_token < :token",
            {"text": text, "token": token, "id": document},
        ).rowcount
    if not changed:
        raise Stale(document)


def pause_self():
    """The whole process, past the end of its lease: another one lets it go on."""
    resume = f"import os, signal, time; time.sleep(1); os.kill({os.getpid()}, signal.SIGCONT)"
    subprocess.Popen([sys.executable, "-c", resume])
    os.kill(os.getpid(), signal.SIGSTOP)


if __name__ == "__main__":
    client, document = quorate.Client(), unique("document")
    with tempfile.TemporaryDirectory() as directory, contextlib.closing(sqlite3.connect(f"{directory}/db")) as db:
        db.execute("CREATE TABLE documents (id TEXT PRIMARY KEY, text TEXT, fence_token INTEGER NOT NULL DEFAULT 0)")
        db.execute("INSERT INTO documents (id, text) VALUES (?, 'empty')", (document,))

        paused = client.lock(document, ttl=0.5, owner="paused").acquire()
        pause_self()
        with client.lock(document, wait=5, owner="next") as lease:
            check(lease.fencing_token > paused.fencing_token, "the later holder has the greater token")
            write(db, document, "by the next holder", lease.fencing_token)
        try:
            write(db, document, "by the paused holder", paused.fencing_token)
            check(False, "the write of the stale holder is refused")
        except Stale:
            check(True, "the write of the stale holder is refused")
        row = db.execute("SELECT text, fence_token FROM documents").fetchone()
        check(row == ("by the next holder", lease.fencing_token), "and nothing of it is there")
        check(paused.wait_lost(10), "the stale holder knows by now, which is too late for its write")
