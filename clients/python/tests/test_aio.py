"""The client for asyncio, where it differs from the one for threads."""

from __future__ import annotations

import asyncio
from typing import Any, Coroutine

import pytest

import quorate
from conftest import Observer


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 60))


def test_s01_s28_an_async_block(urls: list[str], observer: Observer, name: str) -> None:
    async def main() -> None:
        async with quorate.AsyncClient(urls) as client:
            async with client.lock(name, ttl=2) as lease:
                assert observer.held(name) and lease.remaining() > 0
            assert not observer.held(name)
            with pytest.raises(KeyError, match="mine"):
                async with client.lock(name):
                    observer.force_release(name)
                    raise KeyError("mine")

    run(main())


def test_s24_the_task_is_cancelled_when_its_lease_is_lost(urls: list[str], observer: Observer, name: str) -> None:
    async def main() -> None:
        async with quorate.AsyncClient(urls) as client:
            with pytest.raises(quorate.LeaseLost):
                async with client.lock(name, ttl=1):
                    observer.force_release(name)
                    await asyncio.sleep(30)
            await asyncio.sleep(0)  # It is not cancelled any more.

    run(main())


def test_s70_to_s72_async_helpers(urls: list[str], name: str) -> None:
    async def main() -> None:
        async with quorate.AsyncClient(urls) as client:
            marks: list[int] = []

            async def token(lease: quorate.AsyncLease) -> int:
                return len(lease.names)

            async def done() -> bool:
                return bool(marks)

            async def process(lease: quorate.AsyncLease) -> None:
                marks.append(lease.fencing_token)

            assert await client.with_lock(name, token) == 1
            assert await client.with_locks([name, f"{name}:b"], token) == 2
            async with client.lock(name):
                assert await client.try_with_lock(name, token) == (False, None)
                assert await client.idempotent(name, done=done, process=process) == "duplicate"
            assert await client.idempotent(name, done=done, process=process) == "processed"
            assert await client.idempotent(name, done=done, process=process) == "already_processed"

    run(main())


def test_s51_s52_s73_s74_async_leaders_and_observers(urls: list[str], name: str) -> None:
    async def main() -> None:
        async with quorate.AsyncClient(urls) as client:
            told: list[str] = []
            elected = asyncio.Event()

            def became(term: int) -> None:
                told.append("became")
                elected.set()

            leading = asyncio.create_task(
                client.lead_with_hooks(name, candidate="a", became=became, lost=lambda term: told.append("lost"))
            )
            await elected.wait()
            async for state in client.observe_election(name):
                assert state.get("leader") == "a"
                break
            leading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leading
            assert told == ["became", "lost"]

            async def next_leader(term: int, lost: asyncio.Event) -> None:
                told.append("next")

            await client.lead(name, candidate="b", run=next_leader)

            async def alone(lease: quorate.AsyncLease, lost: asyncio.Event) -> None:
                told.append("alone")

            await client.singleton(name, alone)
            assert told == ["became", "lost", "next", "alone"]

    run(main())
