"""Scenarios S50 to S52: elections."""

from __future__ import annotations

import queue
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import quorate
from conftest import Deployment
from processes import line, script


def test_s50_never_two_lead_at_once_by_their_own_clocks(urls: list[str], name: str) -> None:
    reigns: dict[int, list[float]] = {}
    leaders: queue.Queue[subprocess.Popen[str]] = queue.Queue()
    standing: list[subprocess.Popen[str]] = []

    def watch(process: subprocess.Popen[str]) -> None:
        while len(words := line(process)) == 2:
            term, at = int(words[0]), float(words[1])
            if term not in reigns:
                leaders.put(process)
            reigns.setdefault(term, [at, at])[1] = at

    def stand() -> None:
        process = script("candidate.py", urls[0], name, f"candidate-{len(standing)}")
        standing.append(process)
        threading.Thread(target=watch, args=(process,), daemon=True).start()

    for _ in range(3):
        stand()
    for turn in range(6):
        leader = leaders.get(timeout=30)
        time.sleep(0.1)
        if turn % 3 == 0:
            leader.kill()
            stand()
        elif turn % 3 == 1:
            leader.send_signal(signal.SIGSTOP)
            threading.Timer(1.5, leader.send_signal, [signal.SIGCONT]).start()
        else:
            leader.communicate("resign\n")
            stand()
    leaders.get(timeout=30)
    for process in standing:
        process.kill()
    in_order = sorted((begins, ends, term) for term, (begins, ends) in list(reigns.items()))
    assert len(in_order) >= 7
    for before, after in zip(in_order, in_order[1:]):
        assert before[1] < after[0] and before[2] < after[2]


def test_s51_the_next_candidate_leads_at_once_when_a_function_returns(client: quorate.Client, name: str) -> None:
    terms: list[int] = []
    leads, goes = threading.Event(), threading.Event()

    def first(term: int, lost: threading.Event) -> None:
        terms.append(term)
        leads.set()
        goes.wait(20)

    def second(term: int, lost: threading.Event) -> None:
        terms.append(term)

    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(client.lead, name, candidate="first", run=first, ttl=60)
        assert leads.wait(20)
        two = pool.submit(client.lead, name, candidate="second", run=second)
        goes.set()
        one.result(20)
        two.result(20)
    assert terms == sorted(terms) and len(terms) == 2


def test_a_leader_that_lost_its_term_stands_again(client: quorate.Client, name: str) -> None:
    terms: list[int] = []

    def run(term: int, lost: threading.Event) -> None:
        terms.append(term)
        if len(terms) == 1:
            held = client._core.keeper.all()[0]
            client.api.resign(name, {"lease_id": held.lease_id})
            assert lost.wait(20)

    client.lead(name, candidate="one", run=run, ttl=1)
    assert len(terms) == 2 and terms == sorted(terms)


def test_s52_an_observer_sees_each_change_in_order_and_survives_its_server(deployment: Deployment, name: str) -> None:
    a, b = deployment.serve(), deployment.serve()
    seen: queue.Queue[tuple[Any, Any]] = queue.Queue()
    observing, campaigning = quorate.Client([a.url, b.url]), quorate.Client(b.url)
    observing._core.piece = 0.1

    def observe() -> None:
        try:
            for state in observing.observe_election(name):
                seen.put((state.get("leader"), state.get("value")))
        except RuntimeError:  # the client was closed
            pass

    threading.Thread(target=observe, daemon=True).start()
    assert seen.get(timeout=20) == (None, None)
    with campaigning.election(name, candidate="first", value="at:1") as leadership:
        assert seen.get(timeout=20) == ("first", "at:1")
        leadership.proclaim("at:2")
        assert seen.get(timeout=20) == ("first", "at:2")
        time.sleep(0.3)  # Polls without a change are none.
        a.kill()
    assert seen.get(timeout=20) == (None, None)
    with campaigning.election(name, candidate="second"):
        assert seen.get(timeout=20) == ("second", None)
    assert seen.get(timeout=20) == (None, None)
    observing.close()
    campaigning.close()
