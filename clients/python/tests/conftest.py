"""Real servers over real redis-servers, a pair for most tests."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any, Callable, Iterator

import httpx
import pytest

import quorate
from fault import Fault

BINARY = os.environ.get("QUORATE_BIN", "quorate")


def until(condition: Callable[[], Any], seconds: float = 10.0) -> None:
    """Waits for it; what never comes is a failure."""
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "it did not happen in time"
        time.sleep(0.005)


class Server:
    """A `quorate serve`, at the same address after a restart."""

    def __init__(self, directory: Path, redis: list[str], *options: str, listen: str = "127.0.0.1:0") -> None:
        self._log = directory / f"server-{uuid.uuid4().hex}.log"
        flags = [word for url in redis for word in ("--redis", url)]
        with self._log.open("w") as log:
            command = [BINARY, "serve", *flags, "--listen", listen, *options]
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        until(self._listening, 20)

    def _listening(self) -> bool:
        assert self.process.poll() is None, self._log.read_text()
        lines = [line for line in self._log.read_text().splitlines() if line.startswith("listening on ")]
        self.url = lines[0].split()[-1] if lines else ""
        return bool(lines)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)


class Deployment:
    """Three nodes, and the servers over them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.servers: list[Server] = []
        self.nodes: list[subprocess.Popen[bytes]] = []
        self.redis: list[str] = []
        for number in range(3):
            home = directory / f"node-{number}"
            home.mkdir()
            command = ["redis-server", "--port", "0", "--unixsocket", str(home / "redis"), "--save", ""]
            command += ["--dir", str(home), "--maxmemory-policy", "noeviction"]
            self.nodes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            self.redis.append(f"unix://{home}/redis")
        for number in range(3):
            until((directory / f"node-{number}" / "redis").exists)
        flags = [word for url in self.redis for word in ("--redis", url)]
        until(lambda: subprocess.run([BINARY, "init", *flags], capture_output=True).returncode == 0, 20)

    def serve(self, *options: str, scheme: str = "http", **more: str) -> Server:
        server = Server(self.directory, self.redis, *options, **more)
        self.servers.append(server)
        if scheme == "http":
            until(lambda: httpx.get(f"{server.url}/readyz").is_success, 20)
        return server

    def end(self) -> None:
        for server in self.servers:
            server.process.kill()
        for node in self.nodes:
            node.send_signal(signal.SIGCONT)
            node.kill()
        for process in [*(server.process for server in self.servers), *self.nodes]:
            process.wait()


class Observer:
    """What a server says of a name, asked without the client under test."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url)

    def lock(self, name: str) -> dict[str, Any]:
        return dict(self._http.get(f"/v1/locks/{name}").json())

    def held(self, name: str) -> bool:
        return bool(self.lock(name)["held"])

    def waiters(self, name: str) -> int:
        return int(self.lock(name)["waiters"])

    def force_release(self, name: str) -> None:
        assert self._http.delete(f"/v1/locks/{name}").json()["released"]


@pytest.fixture(scope="session")
def shared_deployment() -> Iterator[Deployment]:
    with tempfile.TemporaryDirectory(prefix="qpy") as directory:
        deployment = Deployment(Path(directory))
        deployment.serve()
        deployment.serve()
        yield deployment
        deployment.end()


@pytest.fixture
def deployment() -> Iterator[Deployment]:
    """Of the test alone, to break things in. It starts the servers itself."""
    with tempfile.TemporaryDirectory(prefix="qpy") as directory:
        own = Deployment(Path(directory))
        yield own
        own.end()


@pytest.fixture(scope="session")
def urls(shared_deployment: Deployment) -> list[str]:
    return [server.url for server in shared_deployment.servers]


@pytest.fixture(scope="session")
def observer(urls: list[str]) -> Observer:
    return Observer(urls[0])


@pytest.fixture
def client(urls: list[str]) -> Iterator[quorate.Client]:
    with quorate.Client(urls) as client:
        yield client


@pytest.fixture
def other(urls: list[str]) -> Iterator[quorate.Client]:
    with quorate.Client(urls, owner="the other") as client:
        yield client


@pytest.fixture
def fault(urls: list[str]) -> Iterator[Fault]:
    """In front of the first server."""
    fault = Fault(urls[0])
    yield fault
    fault.close()


@pytest.fixture
def name() -> str:
    return f"test:{uuid.uuid4().hex}"


__all__ = ["Deployment", "Observer", "Server", "until"]
