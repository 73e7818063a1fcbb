"""Scenarios S01 to S09: acquire, hold, release."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import quorate
from conftest import Deployment, Observer, until


def test_s01_a_lock_is_held_within_its_block_and_free_after_it(
    client: quorate.Client, observer: Observer, name: str
) -> None:
    with client.lock(name, ttl=2, owner="me") as lease:
        state = observer.lock(name)
        assert state["held"] and state["owner"] == "me"
        assert 0 < lease.remaining() <= 2
        lease.check()
    assert not observer.held(name)
    with pytest.raises(KeyError, match="of the body"), client.lock(name, ttl=2) as later:
        assert later.fencing_token > lease.fencing_token
        raise KeyError("of the body")
    assert not observer.held(name)


def test_s02_a_lock_that_is_held_is_refused_at_once_with_its_holder(
    client: quorate.Client, other: quorate.Client, name: str
) -> None:
    with other.lock(name):
        begun = time.monotonic()
        with pytest.raises(quorate.NotAcquired) as refused:
            client.lock(name, wait=0).acquire()
        assert time.monotonic() - begun < 2
        assert refused.value.holder and refused.value.holder.get("owner") == "the other"
        assert refused.value.nodes and refused.value.nodes["total"] == 3
        assert client.lock(name).try_acquire() is None
    lease = client.lock(name).try_acquire()
    assert lease is not None
    lease.release()
    lease.release()  # twice is no error


@pytest.mark.parametrize("wait", [0, 1])
def test_s03_without_a_server_it_is_unavailable_and_not_held(wait: float, name: str) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        client = quorate.Client(f"http://127.0.0.1:{closed.getsockname()[1]}")
        begun = time.monotonic()
        with pytest.raises(quorate.Unavailable):
            client.lock(name, wait=wait).acquire()
        assert time.monotonic() - begun < wait + 2


@pytest.mark.parametrize("wait", [0, 1])
def test_s03_without_a_quorum_it_is_unavailable_with_the_tally(
    wait: float, deployment: Deployment, name: str
) -> None:
    client = quorate.Client(deployment.serve().url)
    for node in deployment.nodes[:2]:
        node.kill()
    with pytest.raises(quorate.Unavailable) as refused:
        client.lock(name, wait=wait).acquire()
    assert refused.value.code == "quorum_unavailable"
    assert refused.value.nodes and refused.value.nodes["quorum"] == 2


def test_s04_ten_workers_lose_no_increment(urls: list[str], tmp_path: Path, name: str) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")

    def work(_: int) -> None:
        with quorate.Client(urls) as client:
            for _ in range(100):
                with client.lock(name, ttl=10, wait=60):
                    value = int(counter.read_text())
                    counter.write_text(str(value + 1))

    with ThreadPoolExecutor(10) as pool:
        list(pool.map(work, range(10)))
    assert counter.read_text() == "1000"


def test_s05_a_semaphore_lets_no_more_in_than_its_limit(client: quorate.Client, name: str) -> None:
    inside, most, lock = 0, 0, threading.Lock()

    def work(permits: int) -> None:
        nonlocal inside, most
        for _ in range(5):
            with client.semaphore(name, limit=3, permits=permits, wait=30) as lease:
                assert len(lease.answer["slots"]) == permits
                with lock:
                    inside += permits
                    most = max(most, inside)
                time.sleep(0.01)
                with lock:
                    inside -= permits

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, [1, 1, 1, 1, 1, 1, 2, 2]))
    assert most == 3


def test_s06_locks_in_any_order_do_not_deadlock(urls: list[str], name: str) -> None:
    a, b = f"{name}:a", f"{name}:b"

    def work(names: list[str]) -> None:
        with quorate.Client(urls) as client:
            for _ in range(20):
                with client.locks(*names, ttl=10, wait=30) as lease:
                    assert set(lease.fencing_tokens) == {a, b}

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, [[a, b], [b, a]]))


def test_s07_an_exclusive_lease_comes_after_all_shared_ones(
    client: quorate.Client, observer: Observer, name: str
) -> None:
    leases = [client.lock(name, shared=True, wait=0).acquire() for _ in range(3)]
    with ThreadPoolExecutor(1) as pool:
        exclusive = pool.submit(client.lock(name, wait=20).acquire)
        until(lambda: observer.waiters(name) == 1)
        for lease in leases:
            assert not exclusive.done()
            lease.release()
        assert exclusive.result(20).fencing_token > leases[-1].fencing_token
        exclusive.result().release()


def test_s08_max_hold_ends_a_lease(client: quorate.Client, name: str) -> None:
    begun = time.monotonic()
    with pytest.raises(quorate.LeaseLost) as lost, client.lock(name, ttl=2, max_hold=3) as lease:
        assert lease.wait_lost(20)
        assert time.monotonic() - begun >= 2.5
    assert lost.value.code == "hold_limit_reached"


def test_s09_what_the_api_does_not_take_is_an_error_that_names_the_field(client: quorate.Client, name: str) -> None:
    for ask, field in (
        (lambda: client.lock("a/b"), "name"),
        (lambda: client.lock(".."), "name"),
        (lambda: client.lock(name, ttl=0.0005), "ttl"),
        (lambda: client.lock(name, ttl=float("nan")), "ttl"),
        (lambda: client.lock(name, wait=-1), "wait"),
        (lambda: client.lock(name, ttl=0).acquire(), "ttl_ms"),
        (lambda: client.semaphore(name, limit=0).acquire(), "limit"),
        (lambda: client.locks(name, name), "names"),
    ):
        with pytest.raises(quorate.InvalidRequest) as refused:
            ask()
        assert [error["field"] for error in refused.value.errors] == [field]


def test_a_guard_can_be_entered_by_many_threads(client: quorate.Client, name: str) -> None:
    guard, order = client.lock(name, ttl=5, wait=30), []

    def work(number: int) -> None:
        with guard as lease:
            order.append(lease.fencing_token)

    with ThreadPoolExecutor(5) as pool:
        list(pool.map(work, range(5)))
    assert order == sorted(order) and len(set(order)) == 5


def test_a_lease_that_nobody_has_any_more_is_released(
    client: quorate.Client, observer: Observer, name: str
) -> None:
    lease = client.lock(name, ttl=30).acquire()
    assert observer.held(name)
    del lease
    until(lambda: not observer.held(name))


def test_a_rate_limit_counts_calls_in_a_window(client: quorate.Client, name: str) -> None:
    begun = time.monotonic()
    for _ in range(4):
        client.rate_limit(name, limit=2, per=1, wait=10)
    assert time.monotonic() - begun >= 1
    with pytest.raises(quorate.NotAcquired):
        client.rate_limit(name, limit=2, per=1, wait=0)


def test_every_call_of_the_api_can_be_made(client: quorate.Client, name: str) -> None:
    issued = client.api.issue_token(name)["fencing_token"]
    assert client.api.check_token(name, {"fencing_token": issued})["status"] == "current"
    client.api.issue_token(name)
    with pytest.raises(quorate.StaleToken) as stale:
        client.api.check_token(name, {"fencing_token": issued})
    assert (stale.value.highest_token or 0) > issued
    assert client.api.list_nodes()["quorum"] == 2
    with client.lock(name):
        assert [lock["name"] for lock in client.api.list_locks(prefix=name)["locks"]] == [name]
