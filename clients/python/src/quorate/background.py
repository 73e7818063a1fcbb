"""One daemon thread per client, with an event loop: what runs there goes on while the caller works, or blocks."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Any, Callable, Coroutine, Optional, TypeVar

__all__ = ["Background"]

T = TypeVar("T")


class Background:
    """The thread is started by the first work that is given to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._thread: Optional[threading.Thread] = None
        self._closed = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._endless: set[asyncio.Task[Any]] = set()
        self._calls: set[asyncio.Task[Any]] = set()
        """Those that a caller waits for, and can cancel."""

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._closed:
                raise RuntimeError("the client was closed")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._run, args=(self._loop,), name="quorate", daemon=True)
                self._thread.start()
            return self._loop

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            loop.close()

    @property
    def running(self) -> bool:
        return self._loop is not None

    def post(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Calls it in the thread. Nothing where the thread has ended."""
        try:
            self._started().call_soon_threadsafe(call, *arguments)
        except RuntimeError:  # the client was closed
            pass

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Lets work run that nobody waits for. Only from within the thread."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def spawn_endless(self, work: Coroutine[Any, Any, Any]) -> None:
        """The same for work that ends with the thread. Nobody waits for it, `pending` neither."""
        task = asyncio.get_running_loop().create_task(work)
        self._endless.add(task)
        task.add_done_callback(self._endless.discard)

    def submit(
        self,
        work: Callable[[], Coroutine[Any, Any, T]],
        undo: Optional[Callable[[T], None]] = None,
        *,
        shielded: bool = False,
    ) -> Future[T]:
        """
        Runs it in the thread. Cancelling the future cancels the work, unless it is shielded. A result
        that comes nevertheless, at the same moment, is handed to `undo`.
        """
        future: Future[T] = Future()

        def finish(task: asyncio.Task[T]) -> None:
            self._tasks.discard(task)
            error = None if task.cancelled() else task.exception()
            if not future.set_running_or_notify_cancel():
                if undo is not None and error is None and not task.cancelled():
                    undo(task.result())
            elif task.cancelled():
                future.set_exception(RuntimeError("the client was closed"))
            elif error is not None:
                future.set_exception(error)
            else:
                future.set_result(task.result())

        def start() -> None:
            task = asyncio.get_running_loop().create_task(work())
            self._tasks.add(task)
            task.add_done_callback(finish)
            if not shielded:
                self._calls.add(task)
                task.add_done_callback(self._calls.discard)
                future.add_done_callback(lambda done: self.post(task.cancel) if done.cancelled() else None)

        self._started().call_soon_threadsafe(start)
        return future

    async def wind_up(self) -> None:
        """Ends the calls that callers wait for, and waits for all else that runs. Only from within the thread."""
        for call in self._calls:
            call.cancel()
        while others := self._tasks - {asyncio.current_task()}:
            await asyncio.wait(others)

    def pending(self) -> Future[None]:
        """Done as soon as everything is that runs now."""

        async def all_done() -> None:
            others = self._tasks - {asyncio.current_task()}
            await asyncio.gather(*others, return_exceptions=True)

        return self.submit(all_done)

    def join(self, timeout: float) -> None:
        """Waits for the end of the thread, after `stop`."""
        if self._thread is not None:
            self._thread.join(timeout)

    def stop(self) -> None:
        """Ends the thread. Work that still runs is cancelled."""

        async def end() -> None:
            others = (self._tasks | self._endless) - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            asyncio.get_running_loop().stop()

        with self._lock:
            self._closed = True
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(lambda: self._tasks.add(loop.create_task(end())))


def abandon(future: Future[T], undo: Callable[[T], None]) -> None:
    """For a caller that was interrupted: cancels the work, or undoes what it came to."""
    if not future.cancel() and future.exception() is None:
        undo(future.result())
