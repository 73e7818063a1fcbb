"""Scenarios S10 to S15: waiting and retries."""

from __future__ import annotations

import signal
import socket
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

import quorate
from conftest import Deployment, Observer, until
from fault import Fate, Fault, problem


def test_s10_a_wait_in_pieces_keeps_its_place(fault: Fault, other: quorate.Client, observer: Observer, name: str) -> None:
    order: list[str] = []
    with quorate.Client(fault.url) as first, quorate.Client(fault.url) as second, ThreadPoolExecutor(2) as pool:
        first._core.piece = second._core.piece = 1

        def wait(client: quorate.Client, label: str) -> None:
            with client.lock(name, wait=20):
                order.append(label)

        with quorate.Client(fault.url).lock(name):
            waiting = [pool.submit(wait, first, "first")]
            until(lambda: observer.waiters(name) == 1)
            waiting.append(pool.submit(wait, second, "second"))
            until(lambda: sum(fault.requests.values()) >= 6, 30)
            until(lambda: observer.waiters(name) == 2)  # and not between two pieces
        for one in waiting:
            one.result(20)
    assert len({body["request_id"] for body in fault.bodies if "request_id" in body}) == 3
    assert order == ["first", "second"]


def test_s10_a_server_that_takes_no_long_waits_gets_shorter_ones(deployment: Deployment, name: str) -> None:
    server = deployment.serve("--max-wait", "1s")
    with quorate.Client(server.url) as client, ThreadPoolExecutor(1) as pool:
        with client.lock(name):
            waiting = pool.submit(client.lock(name, wait=20).acquire)
            until(lambda: Observer(server.url).waiters(name) == 1)
        waiting.result(20).release()


def test_s11_a_waiter_goes_on_at_the_next_server(deployment: Deployment, name: str) -> None:
    a, b = deployment.serve(), deployment.serve()
    with quorate.Client([a.url, b.url]) as client, quorate.Client(b.url) as holder, ThreadPoolExecutor(1) as pool:
        with holder.lock(name):
            waiting = pool.submit(client.lock(name, wait=20).acquire)
            until(lambda: Observer(a.url).waiters(name) == 1)
            a.kill()
            until(lambda: Observer(b.url).waiters(name) == 1)
        waiting.result(20).release()


@pytest.mark.parametrize("wait", [0, 5])
def test_s12_an_answer_that_is_cut_off_costs_no_lease(
    wait: float, fault: Fault, urls: list[str], observer: Observer, name: str
) -> None:
    granted: list[dict[str, object]] = []

    def cut_once(path: str, answer: dict[str, object]) -> bool:
        if path.endswith("/acquire"):
            granted.append(answer)
        return len(granted) == 1 and path.endswith("/acquire")

    fault.after = cut_once
    with quorate.Client([fault.url, urls[1]]) as client:
        with client.lock(name, wait=wait) as lease:
            assert lease.fencing_token == granted[0]["fencing_token"]
        assert not observer.held(name)


def test_s12_a_release_whose_answer_is_cut_off_is_no_loss(fault: Fault, name: str) -> None:
    cut: list[str] = []

    def cut_once(path: str, answer: dict[str, object]) -> bool:
        if path.endswith("/release"):
            cut.append(path)
        return cut == [path]

    fault.after = cut_once
    with quorate.Client(fault.url) as client, client.lock(name):
        pass
    assert len(cut) == 2


def test_s13_a_server_that_drains_costs_nothing(deployment: Deployment, name: str) -> None:
    a, b = deployment.serve(), deployment.serve()
    with quorate.Client([a.url, b.url]) as client, ThreadPoolExecutor(3) as pool:

        def wait() -> None:
            with client.lock(name, ttl=2, wait=20):
                time.sleep(0.1)

        with client.lock(name, ttl=1.5) as lease:
            waiting = [pool.submit(wait) for _ in range(3)]
            until(lambda: Observer(a.url).waiters(name) == 3)
            a.signal(signal.SIGTERM)
            until(lambda: Observer(b.url).waiters(name) == 3)
            assert not lease._held.lost_event.wait(3)  # two of its ttls
        for one in waiting:
            one.result(20)


@pytest.mark.parametrize("status, code", [(503, "quorum_unavailable"), (429, "too_many_waiters"), (503, "overloaded")])
def test_s14_retry_after_is_heeded_within_the_wait(
    status: int, code: str, fault: Fault, name: str
) -> None:
    asked: list[float] = []

    def refuse(path: str, body: dict[str, object]) -> Fate:
        if not path.endswith("/acquire"):
            return None
        asked.append(time.monotonic())
        return problem(status, code, retry_after_ms=400) if len(asked) < 3 else None

    fault.before = refuse
    with quorate.Client(fault.url) as client:
        with client.lock(name, wait=10):
            assert len(asked) == 3
            assert all(later - earlier >= 0.4 for earlier, later in zip(asked, asked[1:]))
        asked.clear()
        begun = time.monotonic()
        with pytest.raises(quorate.Unavailable) as refused:
            client.lock(name, wait=0.3).acquire()
        assert time.monotonic() - begun < 1.3 and len(asked) == 1
        assert refused.value.code == code and refused.value.retry_after == 0.4


def test_s14_a_server_is_left_alone_for_as_long_as_it_asks_though_another_fails_sooner(
    fault: Fault, urls: list[str], name: str
) -> None:
    asked: list[float] = []

    def refuse(path: str, body: dict[str, object]) -> Fate:
        if not path.endswith("/acquire"):
            return None
        asked.append(time.monotonic())
        return problem(503, "overloaded", retry_after_ms=700) if len(asked) < 3 else None

    fault.before = refuse
    broken = Fault(urls[0])
    broken.before = lambda path, body: problem(502, "bad_gateway")
    with quorate.Client([fault.url, broken.url]) as client, client.lock(name, wait=20):
        assert len(asked) == 3
        assert all(later - earlier >= 0.7 for earlier, later in zip(asked, asked[1:]))
        assert sum(broken.requests.values()) >= 3
    broken.close()


def test_s15_a_silent_server_costs_no_more_than_the_wait(name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = quorate.Client(f"http://127.0.0.1:{silent.getsockname()[1]}")
        begun = time.monotonic()
        with pytest.raises(quorate.Unavailable):
            client.lock(name, wait=1).acquire()
        assert time.monotonic() - begun < 3


def test_s43_who_waits_behind_one_that_gives_up_is_served(
    client: quorate.Client, other: quorate.Client, observer: Observer, name: str
) -> None:
    with ThreadPoolExecutor(2) as pool:
        with other.lock(name):
            gives_up: Future[quorate.Lease] = pool.submit(client.lock(name, wait=1.5).acquire)
            until(lambda: observer.waiters(name) == 1)
            behind = pool.submit(client.lock(name, wait=20).acquire)
            with pytest.raises(quorate.NotAcquired):
                gives_up.result(10)
        begun = time.monotonic()
        behind.result(10).release()
        assert time.monotonic() - begun < 5


def test_s63_many_threads_share_a_client(client: quorate.Client, name: str) -> None:
    inside, lock = 0, threading.Lock()

    def work(number: int) -> None:
        nonlocal inside
        for _ in range(5):
            with client.lock(f"{name}:{number % 7}", wait=30):
                with lock:
                    inside += 1
                with lock:
                    inside -= 1

    with ThreadPoolExecutor(50) as pool:
        list(pool.map(work, range(50)))
    assert inside == 0
