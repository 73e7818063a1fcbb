"""Something between client and server that does to chosen requests what networks do."""

from __future__ import annotations

import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable, Optional

import httpx

Fate = Optional[tuple[int, dict[str, Any]]]


class Fault:
    """
    Forwards to `target`, also as an HTTP proxy. `before` may answer in its place, or hold it up;
    `after` sees the answer, and cuts it off by returning True.
    """

    def __init__(self, target: str) -> None:
        self.requests: Counter[str] = Counter()
        self.bodies: list[dict[str, Any]] = []
        self.before: Callable[[str, dict[str, Any]], Fate] = lambda path, body: None
        self.after: Callable[[str, dict[str, Any]], bool] = lambda path, answer: False
        fault, http = self, httpx.Client(timeout=60, limits=httpx.Limits(max_connections=None))

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one(self) -> None:
                raw = self.rfile.read(int(self.headers.get("content-length", 0)))
                body = json.loads(raw) if raw else {}
                url = self.path if self.path.startswith("http") else target + self.path
                path = "/" + url.split("/", 3)[3]
                fault.requests[path] += 1
                fault.bodies.append(body)
                fate = fault.before(path, body)
                if fate is None:
                    head = {key: value for key, value in self.headers.items() if key.lower() == "authorization"}
                    got = http.request(self.command, url, json=body if raw else None, headers=head)
                    fate = got.status_code, got.json()
                    if fault.after(path, fate[1]):
                        self.close_connection = True
                        self.connection.close()
                        return
                text = json.dumps(fate[1]).encode()
                self.send_response(fate[0])
                kind = "application/json" if fate[0] < 400 else "application/problem+json"
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_DELETE = handle_one

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass

        self._server = Quiet(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def problem(status: int, code: str, **more: Any) -> Fate:
    return status, {"type": "about:blank", "title": code, "status": status, "code": code, **more}
