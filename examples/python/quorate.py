"""What the recipes share: a request, a lease, and its end by this machine's own clock.

Standard library only. An SDK generated from the OpenAPI document does as well (docs/clients.md).
"""
import http.client
import json
import os
import sys
import time
import urllib.error
import urllib.request

URL = os.environ.get("QUORATE_SERVER", "http://127.0.0.1:8080")


class Refused(Exception):
    """An answer that is not 2xx; `code` says which: lock_held, quorum_unavailable, lease_lost …"""

    def __init__(self, problem):
        super().__init__(f"{problem['code']}: {problem.get('detail', '')}")
        self.code, self.problem = problem["code"], problem


def call(method, path, body=None, timeout=10.0):
    """One request; raises Refused, or OSError where no server answers, or not all of it arrives."""
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("QUORATE_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(URL + path, data, headers, method=method)
    try:
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.headers.get_content_type() == "application/problem+json":
                raise Refused(json.load(error)) from None
            raise Refused({"code": f"http_{error.code}"}) from None  # a proxy in between
    except (http.client.HTTPException, ValueError) as error:
        raise OSError(f"no whole answer: {error!r}") from error


class Lease:
    """Held until `release`, or until `valid_until` on time.monotonic() unless extended."""

    def __init__(self, path, verb, body, sent, answer):
        self.path, self.verb, self.answer, self.id = path, verb, answer, answer["lease_id"]
        self.token, self.ttl = answer.get("fencing_token"), answer["ttl_ms"] / 1000
        self.body = {"lease_id": self.id} | ({"names": body["names"]} if "names" in body else {})
        # Counted from the earliest moment it can have been granted: the way here takes time too.
        self.since = sent + answer["waited_ms"] / 1000
        self.valid_until = self.since + answer["validity_ms"] / 1000

    def extend(self, timeout=10.0):
        sent = time.monotonic()
        answer = call("POST", f"{self.path}/extend", self.body, timeout)
        self.valid_until = sent + answer["validity_ms"] / 1000

    def release(self, timeout=10.0):
        return call("POST", f"{self.path}/{self.verb}", self.body, timeout)["released"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.release()
        except (Refused, OSError) as error:  # the work is done; the lease ends with its ttl
            print(f"not released: {error}", file=sys.stderr)


def acquire(what, **body):
    """acquire("locks/orders:42", ttl_ms=10_000); also "semaphores/…", "elections/…", "multilocks"."""
    take, give = ("campaign", "resign") if what.startswith("elections/") else ("acquire", "release")
    sent, path = time.monotonic(), f"/v1/{what}"
    answer = call("POST", f"{path}/{take}", body, timeout=10 + body.get("wait_ms", 0) / 1000)
    return Lease(path, give, body, sent, answer)


def check(holds, what):
    """The recipes are tests too."""
    print("ok  " if holds else "FAIL", what, flush=True)
    if not holds:
        os._exit(1)  # whatever other threads do
