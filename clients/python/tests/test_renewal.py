"""Scenarios S20 to S30: renewal and loss."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import quorate
from quorate.clock import now
from quorate.held import Held, Target
from quorate.keeper import batches
from conftest import Deployment, Observer, until
from fault import Fate, Fault, problem
from processes import line, script

def lasts(lease: quorate.Lease, seconds: float) -> None:
    assert not lease.wait_lost(seconds)
    lease.check()


def test_s20_a_block_longer_than_its_ttl_is_held_throughout(
    client: quorate.Client, observer: Observer, name: str
) -> None:
    # Long enough for a machine that is busy with other tests.
    with client.lock(name, ttl=3) as lease:
        for _ in range(4):
            lasts(lease, 1)
            assert observer.lock(name)["fencing_token"] == lease.fencing_token


def test_s21_s22_renewal_goes_on_at_the_next_server_and_without_a_node(deployment: Deployment, name: str) -> None:
    a, b = deployment.serve(), deployment.serve()
    with quorate.Client([a.url, b.url]) as client, client.lock(name, ttl=2) as lease:
        a.kill()
        deployment.nodes[0].kill()
        lasts(lease, 4)
        assert Observer(b.url).held(name)


def test_s23_without_any_server_the_loss_is_told_in_time(deployment: Deployment, name: str) -> None:
    server = deployment.serve()
    told: list[float] = []
    client = quorate.Client(server.url)
    with pytest.raises(quorate.LeaseLost) as lost, client.lock(name, ttl=1) as lease:
        lease.on_lost(lambda: told.append(now()))
        server.kill()
        assert lease.wait_lost(5)
        assert lease.remaining() == 0 and lease.lost
        with pytest.raises(quorate.LeaseLost):
            lease.check()
        until(lambda: told)
    assert lost.value.code == "lease_expired"
    assert told[0] - lease._held.valid_until < 0.5


def test_s24_a_forced_release_is_a_loss_by_the_next_renewal(
    client: quorate.Client, observer: Observer, name: str
) -> None:
    with pytest.raises(quorate.LeaseLost) as lost, client.lock(name, ttl=2) as lease:
        observer.force_release(name)
        assert lease.wait_lost(1.5)
        assert lease._held.valid_until > now()
    assert lost.value.code == "lease_lost"


def test_s24_a_lease_that_was_taken_away_is_a_loss_where_its_block_ends(
    client: quorate.Client, observer: Observer, name: str
) -> None:
    with pytest.raises(quorate.LeaseLost), client.lock(name, ttl=30):
        observer.force_release(name)


def test_s25_a_pause_past_the_ttl_is_noticed_at_once(urls: list[str], name: str) -> None:
    late = []
    for attempt in range(3):  # A busy machine may be slow to resume a process.
        process = script("paused.py", ",".join(urls), f"{name}:{attempt}", "1")
        assert line(process) == ["held"]
        process.send_signal(signal.SIGSTOP)
        time.sleep(1.3)
        resumed = now()
        process.send_signal(signal.SIGCONT)
        told = {words[0]: float(words[1]) for words in (line(process), line(process))}
        process.communicate(timeout=10)
        assert process.returncode == 0, "its first check did not fail, or its block ended without an error"
        late.append(max(told["callback"], told["check"]) - resumed)
        if late[-1] < 0.05:
            return
    pytest.fail(f"noticed after {late} s")


def test_s26_a_pause_within_the_ttl_loses_nothing(urls: list[str], name: str) -> None:
    process = script("paused.py", ",".join(urls), name, "3")
    assert line(process) == ["held"]
    process.send_signal(signal.SIGSTOP)
    time.sleep(1)
    process.send_signal(signal.SIGCONT)
    time.sleep(3)
    assert process.poll() is None
    out, _ = process.communicate("end\n", timeout=10)
    assert out == "kept\n"


def test_s27_the_wall_clock_does_not_matter(
    client: quorate.Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (3600.0, -3600.0):
        real = time.time
        with client.lock(name, ttl=3) as lease:
            monkeypatch.setattr(time, "time", lambda: real() + step)
            lasts(lease, 4)
            assert 0 < lease.remaining() <= 3
        monkeypatch.undo()


def test_s28_the_error_of_the_body_comes_before_the_loss(
    client: quorate.Client, observer: Observer, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "quorate"):
        with pytest.raises(KeyError, match="mine"), client.lock(name, ttl=5):
            observer.force_release(name)
            raise KeyError("mine")
    assert "lease_lost" in caplog.text


def test_s29_two_hundred_leases_are_renewed_together(fault: Fault, observer: Observer, name: str) -> None:
    path = "/v1/leases/extend"
    with quorate.Client(fault.url) as client, ThreadPoolExecutor(20) as pool:
        guards = [client.lock(f"{name}:{number}", ttl=9) for number in range(200)]
        leases = list(pool.map(lambda guard: guard.acquire(), guards))
        fault.requests.clear()
        assert not leases[0].wait_lost(12)
        for lease in leases:
            lease.check()
        # One that was acquired long after the others, on a busy machine, is due alone, and extended alone.
        assert fault.requests[path] > 0 and sum(fault.requests.values()) < 10 * 5
        list(pool.map(lambda lease: lease.release(), leases))


def test_s29_many_leases_are_renewed_one_by_one_where_the_server_knows_no_other_way(fault: Fault, name: str) -> None:
    path = "/v1/leases/extend"
    fault.before = lambda asked, body: problem(404, "not_found") if asked == path else None
    with quorate.Client(fault.url) as client:
        leases = [client.lock(f"{name}:{number}", ttl=2).acquire() for number in range(5)]
        lasts(leases[0], 4)
        for lease in leases:
            lease.check()
        assert fault.requests[path] == 1


def test_s29_an_answer_that_says_nothing_of_the_leases_costs_none(fault: Fault, urls: list[str], name: str) -> None:
    path, answers = "/v1/leases/extend", iter([{}, {"results": None}, {"results": [{}, 7, {"lease": {}}]}])
    fault.before = lambda asked, body: (200, next(answers, {})) if asked == path else None
    with quorate.Client([fault.url, urls[1]]) as client:
        leases = [client.lock(f"{name}:{number}", ttl=2).acquire() for number in range(5)]
        lasts(leases[0], 4)
        for lease in leases:
            lease.check()
        assert fault.requests[path] >= 1


def test_s29_a_renewal_of_many_leases_fits_in_a_body() -> None:
    answer = {"lease_id": "f" * 46, "ttl_ms": 2000, "waited_ms": 0, "validity_ms": 1900}
    targets = [Target("multilock", *(f"{number:0200}" for number in range(64)))] * 100 + [Target("lock", "a")] * 1200
    held = [Held(target, answer, 0.0, 0.0, None) for target in targets]
    requests = list(batches(held))
    assert [one for batch in requests for one in batch] == held and len(requests) <= 12
    for batch in requests:
        leases = [{"primitive": "multilock", **one.target.label, "lease_id": one.lease_id} for one in batch]
        assert len(batch) <= 500 and len(json.dumps({"leases": leases})) <= 256 << 10


def test_s30_a_slow_server_costs_no_lease(fault: Fault, urls: list[str], name: str) -> None:
    slow = threading.Event()

    def hold_up(path: str, body: dict[str, object]) -> Fate:
        if "/extend" in path:
            slow.wait(10)
        return None

    fault.before = hold_up
    with quorate.Client([fault.url, urls[1]]) as client, client.lock(name, ttl=2) as lease:
        lasts(lease, 4)
        slow.set()


def test_a_callback_that_is_late_or_fails_disturbs_nothing(
    client: quorate.Client, observer: Observer, name: str
) -> None:
    told = threading.Event()
    with pytest.raises(quorate.LeaseLost), client.lock(name, ttl=1) as lease:
        lease.on_lost(lambda: 1 / 0)
        observer.force_release(name)
        assert lease.wait_lost(3)
        lease.on_lost(told.set)
        assert told.wait(3)


def test_nothing_secret_is_shown(client: quorate.Client, name: str) -> None:
    with quorate.Client(api_key="the-secret") as other:
        assert "the-secret" not in repr(other) + repr(vars(other))
    with client.lock(name) as lease:
        assert lease.answer["lease_id"] not in repr(lease)
        assert os.getpid() == lease._held.pid
