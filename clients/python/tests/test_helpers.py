"""Scenarios S70 to S75: helpers."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import quorate
from conftest import Observer, until
from processes import line, script


def test_s70_with_locks_lets_one_in_at_a_time_and_returns_the_result(urls: list[str], name: str) -> None:
    inside, names = 0, [[f"{name}:a", f"{name}:b"], [f"{name}:b", f"{name}:a"]]

    def work(lease: quorate.Lease) -> int:
        nonlocal inside
        inside += 1
        assert inside == 1
        time.sleep(0.005)
        inside -= 1
        return lease.fencing_tokens[f"{name}:a"]

    def call(number: int) -> int:
        with quorate.Client(urls) as client:
            if number % 3 == 2:
                return client.with_lock(f"{name}:a", work, wait=30)
            return client.with_locks(names[number % 2], work, wait=30)

    with ThreadPoolExecutor(10) as pool:
        assert len(set(pool.map(call, range(10)))) == 10


def test_s71_try_with_lock_says_whether_it_ran(client: quorate.Client, other: quorate.Client, name: str) -> None:
    with other.lock(name):
        assert client.try_with_lock(name, lambda lease: 1) == (False, None)
    assert client.try_with_lock(name, lambda lease: 1) == (True, 1)
    with pytest.raises(quorate.Unavailable):
        quorate.Client("http://127.0.0.1:1").try_with_lock(name, lambda lease: 1)


def test_s72_an_event_is_processed_once(client: quorate.Client, name: str) -> None:
    marks: set[int] = set()

    def fail(lease: quorate.Lease) -> None:
        raise KeyError("broken")

    def process(lease: quorate.Lease) -> None:
        marks.add(lease.fencing_token)

    with pytest.raises(KeyError, match="broken"):
        client.idempotent(name, done=lambda: bool(marks), process=fail)
    with ThreadPoolExecutor(6) as pool:
        answers = Counter(pool.map(lambda _: client.idempotent(name, done=lambda: bool(marks), process=process), range(6)))
    assert len(marks) == 1 and answers["processed"] == 1
    assert answers["already_processed"] + answers["duplicate"] == 5
    assert client.idempotent(name, done=lambda: bool(marks), process=process) == "already_processed"


def test_s73_became_and_lost_are_called_in_turn(urls: list[str], name: str) -> None:
    told: list[str] = []
    stops = [threading.Event() for _ in range(3)]

    def stand(number: int) -> None:
        with quorate.Client(urls) as client:
            client.lead_with_hooks(
                name,
                candidate=str(number),
                became=lambda term: told.append("became"),
                lost=lambda term: told.append("lost"),
                stop=stops[number],
            )

    with ThreadPoolExecutor(3) as pool:
        standing = [pool.submit(stand, number) for number in range(3)]
        until(lambda: told)
        for stop in stops:
            stop.set()
        for one in standing:
            one.result(20)
    assert told[:2] == ["became", "lost"] and told == ["became", "lost"] * (len(told) // 2)


def test_s74_a_singleton_runs_in_one_process_and_another_takes_over(
    urls: list[str], observer: Observer, name: str
) -> None:
    first = script("singleton.py", urls[0], name)
    assert line(first) == ["runs"]
    second = script("singleton.py", urls[0], name)
    until(lambda: observer.waiters(name) == 1)
    first.kill()
    assert line(second) == ["runs"]
    second.kill()


def test_s75_a_late_writer_changes_nothing(
    client: quorate.Client, observer: Observer, tmp_path: Path, name: str
) -> None:
    with sqlite3.connect(tmp_path / "db") as db:
        db.execute("CREATE TABLE documents (text TEXT, fence_token INTEGER)")
        db.execute("INSERT INTO documents VALUES ('empty', 0)")

        def write(text: str, token: int) -> int:
            update = "UPDATE documents SET text = ?, fence_token = ? WHERE fence_token < ?"
            return db.execute(update, (text, token, token)).rowcount

        late = client.lock(name).acquire()
        observer.force_release(name)
        with client.lock(name) as following:
            assert write("by the next", following.fencing_token) == 1
            assert write("by the late one", late.fencing_token) == 0
        assert db.execute("SELECT text FROM documents").fetchone() == ("by the next",)
    with pytest.raises(quorate.LeaseLost):
        late.release()
