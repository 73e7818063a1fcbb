"""Scenarios S40 to S44: nothing left behind."""

from __future__ import annotations

import asyncio
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import quorate
from conftest import Observer, until
from fault import Fault
from processes import line, script


def all_free(observer: Observer, name: str) -> None:
    """Long before their ttl: the client's own clean-up may take a second, on a busy machine some more."""
    for number in range(20):
        until(lambda: not observer.held(f"{name}:{number}"), 20)


def test_s40_a_task_that_is_cancelled_at_any_moment_leaves_nothing_behind(
    urls: list[str], observer: Observer, name: str
) -> None:
    async def one(client: quorate.AsyncClient, number: int) -> None:
        async def work() -> None:
            async with client.lock(f"{name}:{number % 20}", ttl=60):
                await asyncio.sleep(random.uniform(0, 0.01))

        task = asyncio.create_task(work())
        await asyncio.sleep(random.uniform(0, 0.06))
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            pass

    async def main() -> None:
        async with quorate.AsyncClient(urls) as client:
            for first in range(0, 200, 10):
                await asyncio.gather(*(one(client, number) for number in range(first, first + 10)))

    asyncio.run(main())
    all_free(observer, name)


def test_s40_a_wait_that_is_over_leaves_nothing_behind(
    client: quorate.Client, observer: Observer, urls: list[str], name: str
) -> None:
    def work(number: int) -> None:
        try:
            with client.lock(f"{name}:{number % 20}", ttl=60, wait=random.uniform(0, 0.06)):
                time.sleep(random.uniform(0, 0.01))
        except (quorate.NotAcquired, quorate.Unavailable):
            pass

    with ThreadPoolExecutor(10) as pool:
        list(pool.map(work, range(200)))
    all_free(observer, name)


@pytest.mark.parametrize("end", ["return", "raise"])
def test_s41_a_process_that_ends_releases_what_it_held(end: str, urls: list[str], observer: Observer, name: str) -> None:
    process = script("exits.py", urls[0], name)
    assert line(process) == ["held"]
    assert observer.held(f"{name}:2")
    process.communicate(f"{end}\n", timeout=20)
    assert not any(observer.held(f"{name}:{number}") for number in range(3))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("end", ["release", "die"])
def test_s42_a_child_neither_renews_nor_releases_its_parents_lease(
    end: str, urls: list[str], observer: Observer, name: str
) -> None:
    process = script("forks.py", urls[0], name, end)
    said = {line(process)[0], line(process)[0]}
    assert said == {"parent", "child"}
    until(lambda: not observer.held(name), 5)  # the child lives for some time
    process.communicate(timeout=20)
    until(lambda: not observer.held(f"{name}:child"), 5)


def test_s44_a_lease_that_was_over_when_its_answer_was_read_is_no_lease(fault: Fault, name: str) -> None:
    slow: list[str] = []

    def hold_up(path: str, answer: dict[str, object]) -> bool:
        if path.endswith("/acquire"):
            slow.append(path)
            if len(slow) == 1:
                time.sleep(0.7)
        return False

    fault.after = hold_up
    with quorate.Client(fault.url) as client, client.lock(name, ttl=0.5, wait=10) as lease:
        lease.check()
        assert len(slow) == 2


def test_closing_a_client_ends_its_waits_and_tells_the_servers(
    fault: Fault, other: quorate.Client, observer: Observer, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = quorate.Client(fault.url)
    with other.lock(name), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.lock(name).acquire)
        until(lambda: observer.waiters(name) == 1)
        client.close()
        with pytest.raises(RuntimeError, match="closed"):
            waiting.result(10)
        assert [path.split("/")[-1] for path in fault.requests] == ["acquire", "release"]
    assert "never retrieved" not in caplog.text
