"""Sends one request to one server, and says what became of it."""

from __future__ import annotations

import asyncio
import os
import ssl
from typing import Any, Mapping, Optional, Sequence, Union

import httpx

from .errors import Unavailable, invalid, of_problem

__all__ = ["Servers", "Transport", "Tour"]

CONNECT_TIMEOUT = 3.0
ANSWER_TIMEOUT = 10.0


class Servers:
    """The URLs, and which of them the client is with: each server has a queue of its own."""

    def __init__(self, servers: Union[str, Sequence[str], None]) -> None:
        given: Union[str, Sequence[str]] = servers or os.environ.get("QUORATE_SERVER") or "http://127.0.0.1:8080"
        urls = given.split(",") if isinstance(given, str) else list(given)
        self.urls = [url.strip().rstrip("/") for url in urls if url.strip()]
        for url in self.urls:
            if not url.startswith(("http://", "https://")):
                raise invalid("servers", "a URL begins with http:// or https://")
        if not self.urls:
            raise invalid("servers", "at least one URL")
        self.current = self.urls[0]

    def leave(self, url: str) -> None:
        """Goes on to the next one, unless that has been done."""
        if url == self.current:
            self.current = self.urls[(self.urls.index(url) + 1) % len(self.urls)]


class Tour:
    """Where one operation has been: it goes from server to server at once, until all have failed it."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._failed: set[str] = set()
        self._broken: set[str] = set()

    def goes_on(self, url: str, error: Unavailable) -> bool:
        """Whether there is one to try at once after this failure."""
        if error._broken and url not in self._broken:
            self._broken.add(url)
            return True
        if error._elsewhere:
            self._failed.add(url)
            self._servers.leave(url)
            return self._servers.current not in self._failed
        return False

    def answered(self) -> None:
        """A server gave a verdict: whatever failed before may be back."""
        self._failed.clear()
        self._broken.clear()


class Transport:
    """Connections to the servers. Belongs to the event loop that uses it."""

    def __init__(self, api_key: Optional[str], tls: Optional[ssl.SSLContext], proxy: Optional[str]) -> None:
        self._options: dict[str, Any] = {
            "headers": headers(api_key),
            "verify": True if tls is None else tls,
            "proxy": proxy,
            # A server closes what was idle for 75 s.
            "limits": httpx.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=60.0),
        }
        self._client: Optional[httpx.AsyncClient] = None

    async def send(
        self,
        url: str,
        method: str,
        path: str,
        body: Any = None,
        query: Optional[Mapping[str, Any]] = None,
        *,
        timeout: float = ANSWER_TIMEOUT,
    ) -> Any:
        """The answer, or an error: Unavailable for whatever another try may bring."""
        client = self._client
        if client is None:
            client = self._client = httpx.AsyncClient(timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT), **self._options)
        try:
            request = client.request(method, url + path, json=body, params=query)
            response = await asyncio.wait_for(request, max(timeout, 0.001))
        except (httpx.HTTPError, httpx.StreamError, asyncio.TimeoutError, OSError) as error:
            raise failure(url, error) from error
        return answer(response)

    def send_at_exit(self, url: str, method: str, path: str, body: Any, timeout: float) -> Any:
        """The same without an event loop, whose resolver does not work any more when the process exits."""
        try:
            with httpx.Client(timeout=timeout, **self._options) as client:
                return answer(client.request(method, url + path, json=body))
        except (httpx.HTTPError, OSError) as error:
            raise failure(url, error) from error

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()


def headers(api_key: Optional[str]) -> dict[str, str]:
    key = os.environ.get("QUORATE_API_KEY") if api_key is None else api_key
    return {"Authorization": f"Bearer {key}"} if key else {}


def tls_context(ca: Optional[str], certificate: Optional[str]) -> Optional[ssl.SSLContext]:
    """Trusts a CA besides the usual ones; QUORATE_CA and QUORATE_CLIENT_CERT are the same as for the commands."""
    ca, certificate = ca or os.environ.get("QUORATE_CA"), certificate or os.environ.get("QUORATE_CLIENT_CERT")
    if not (ca or certificate):
        return None
    context = httpx.create_ssl_context()
    if ca:
        context.load_verify_locations(ca)
    if certificate:
        context.load_cert_chain(certificate)
    return context


def failure(url: str, error: Exception) -> Unavailable:
    broken = isinstance(error, (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError))
    slow = isinstance(error, (asyncio.TimeoutError, httpx.TimeoutException))
    what = "no answer in time" if slow else str(error) or type(error).__name__
    return Unavailable("no_server", f"{url}: {what}", broken=broken)


def answer(response: httpx.Response) -> Any:
    try:
        content = response.json()
    except ValueError:
        content = None
    if response.is_success:
        if not isinstance(content, dict):
            raise Unavailable("no_server", f"{response.url}: the answer is not JSON")
        return content
    problem = content if isinstance(content, dict) else {}
    after = response.headers.get("retry-after", "")
    if "retry_after_ms" not in problem and after.isdigit():
        problem["retry_after_ms"] = int(after) * 1000
    raise of_problem(response.status_code, problem)
