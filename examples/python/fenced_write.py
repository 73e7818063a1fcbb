"""A write that a stale holder cannot make: the database compares fencing tokens.

No lock service can wake a process that was paused past its lease and tell it so. The resource
can refuse it, when each write carries the token of the lease it was made under.
"""
import contextlib
import secrets
import sqlite3
import tempfile
import time

from quorate import acquire, check


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


if __name__ == "__main__":
    document = f"demo:document:{secrets.token_hex(4)}"
    with tempfile.TemporaryDirectory() as directory, contextlib.closing(sqlite3.connect(f"{directory}/db")) as db:
        db.execute("CREATE TABLE documents (id TEXT PRIMARY KEY, text TEXT, fence_token INTEGER NOT NULL DEFAULT 0)")
        db.execute("INSERT INTO documents (id, text) VALUES (?, 'empty')", (document,))

        paused = acquire(f"locks/{document}", ttl_ms=300, owner="paused")
        time.sleep(0.6)  # a pause of the whole process, past the end of its lease
        with acquire(f"locks/{document}", wait_ms=5000, owner="next") as lease:
            check(lease.token > paused.token, "the later holder has the greater token")
            write(db, document, "by the next holder", lease.token)
        try:
            write(db, document, "by the paused holder", paused.token)
            check(False, "the write of the stale holder is refused")
        except Stale:
            check(True, "the write of the stale holder is refused")
        text, token = db.execute("SELECT text, fence_token FROM documents").fetchone()
        check((text, token) == ("by the next holder", lease.token), "and nothing of it is there")
