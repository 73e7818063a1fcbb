#!/usr/bin/env python3
"""Runs check_live.py against a server of its own, under load that touches every metric.

    live.py BINARY [arguments of check_live.py]

Three redis-servers, `quorate init`, two of `quorate serve`; then clients that take, wait for,
extend, lose and give back every primitive, leave in the middle, send nonsense and too much of
it. The first server is watched. Two, because contenders at one server stand in a queue, and only
those at different ones split votes.
"""

import argparse
import http.client
import json
import pathlib
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
PATIENCE = 60


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def until(what, holds):
    deadline = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > deadline:
            raise SystemExit(f"never: {what}")
        time.sleep(0.05)


# What the load must have moved at the watched server. Left out is what healthy nodes never do.
MOVED = [
    *[f'quorate_acquisitions_total{{primitive="{p}",outcome="granted"}}'
      for p in ("lock", "multilock", "semaphore", "election")],
    *[f'quorate_acquisitions_total{{primitive="lock",outcome="{o}"}}'
      for o in ("held", "timeout", "cancelled", "rejected")],
    *[f'quorate_extensions_total{{primitive="lock",outcome="{o}"}}' for o in ("extended", "lost")],
    *[f'quorate_releases_total{{primitive="lock",outcome="{o}"}}' for o in ("released", "not_held")],
    *[f'quorate_http_refused_total{{reason="{r}"}}' for r in ("malformed", "header_bytes")],
    'quorate_acquire_duration_seconds_count{primitive="lock"}',
    'quorate_wait_duration_seconds_count{primitive="lock"}',
    'quorate_hold_duration_seconds_count{primitive="lock"}',
    'quorate_undos_total{outcome="done"}',
    "quorate_waiters",
    "quorate_streams",
    "quorate_http_connections",
    "quorate_http_in_flight",
]
# What takes contenders that meet within a round trip: it mostly happens, and is only told if not.
LUCK = ["quorate_split_votes_total", "quorate_fencing_raises_total"]


def unmoved(port, names):
    """Of these, what is zero or not there."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    values = dict(re.findall(r"^(quorate_\S+) (\S+)$", text, re.M))
    return [name for name in names if float(values.get(name, 0)) == 0]


class Client:
    """One connection. Whatever the server answers is fine; that it answers is not its matter."""

    def __init__(self, port):
        self.port, self.http = port, None

    def call(self, method, path, body=None, timeout=30):
        self.http = self.http or http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            self.http.request(method, path, json.dumps(body) if body is not None else None,
                              {"content-type": "application/json"})
            answer = self.http.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException):
            self.http = None
            return {}
        try:
            return json.loads(text)
        except ValueError:
            return {}

    def leave_during(self, path, body, after):
        """Asks, and is gone before the answer."""
        text = json.dumps(body).encode()
        with socket.create_connection(("127.0.0.1", self.port)) as s:
            s.sendall(b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
                      % (path.encode(), len(text), text))
            time.sleep(after)

    def raw(self, data):
        with socket.create_connection(("127.0.0.1", self.port)) as s:
            s.sendall(data)
            s.settimeout(5)
            try:
                while s.recv(4096):
                    pass
            except OSError:
                pass


def round_of_everything(c, n):
    """Each primitive taken, extended, given back, given back again, and lost."""
    name = f"r:{n}:{random.randrange(50)}"
    for path, body, end in [
        (f"/v1/locks/{name}", {"wait_ms": 200}, "release"),
        (f"/v1/semaphores/{name}", {"limit": 2, "wait_ms": 200}, "release"),
        (f"/v1/elections/{name}", {"candidate": "c", "wait_ms": 200}, "resign"),
    ]:
        take = "campaign" if "elections" in path else "acquire"
        lease = c.call("POST", f"{path}/{take}", {"ttl_ms": 5000, **body})
        if "lease_id" not in lease:
            continue
        mine = {"lease_id": lease["lease_id"]}
        c.call("POST", f"{path}/extend", mine)
        c.call("GET", path)
        for _ in range(2):
            c.call("POST", f"{path}/{end}", mine)
        c.call("POST", f"{path}/extend", mine)
    names = [f"{name}:a", f"{name}:b"]
    lease = c.call("POST", "/v1/multilocks/acquire", {"names": names, "ttl_ms": 5000})
    if "lease_id" in lease:
        mine = {"names": names, "lease_id": lease["lease_id"]}
        for end in ("extend", "release", "extend"):
            c.call("POST", f"/v1/multilocks/{end}", mine)
    token = c.call("POST", f"/v1/fencing/{name}/issue", {}).get("fencing_token")
    if token:
        c.call("POST", f"/v1/fencing/{name}/check", {"fencing_token": token})
    c.call("GET", "/v1/locks?prefix=r:")
    c.call("GET", "/v1/nodes")


def contend(c, n):
    """Many at the same name: refused at once, after a wait, or granted and held for a moment."""
    wait = random.choice([0, 0, 20, 500])
    # A name that is new to all of them every few milliseconds is what splits votes.
    name = "hot" if wait else f"new:{int(time.monotonic() * 200)}"
    lease = c.call("POST", f"/v1/locks/{name}/acquire", {"ttl_ms": 1000, "wait_ms": wait})
    if "lease_id" in lease:
        time.sleep(0.01)
        c.call("POST", f"/v1/locks/{name}/release", {"lease_id": lease["lease_id"]})


def crowd(c, n):
    """More waiters for one name than may be."""
    c.call("POST", "/v1/locks/crowd/acquire", {"ttl_ms": 60_000, "wait_ms": 400})


def misbehave(c, n):
    c.leave_during("/v1/locks/hot/acquire", {"wait_ms": 5000, "ttl_ms": 1000}, 0.05)
    c.leave_during(f"/v1/locks/left:{random.random()}/acquire", {}, 0)
    c.call("POST", "/v1/locks/hot/acquire", {"ttl": 1})
    c.call("GET", "/nothing")
    c.raw(b"this is no HTTP\r\n\r\n")
    c.raw(b"GET / HTTP/1.1\r\nx: " + b"x" * 40_000 + b"\r\n\r\n")
    time.sleep(0.1)


def stream(c, n):
    """A lease bound to a connection, for a while."""
    c.leave_during(f"/v1/locks/stream:{n}/hold", {"ttl_ms": 600}, 1.5)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary")
    args, rest = parser.parse_known_args()
    processes, over = [], threading.Event()

    def start(*command, log=subprocess.DEVNULL):
        processes.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))
        return processes[-1]

    def client(work, n):
        c = Client(ports[1] if work is contend and n % 2 else ports[0])
        while not over.is_set():
            try:
                work(c, n)
            except OSError:
                time.sleep(0.1)

    with tempfile.TemporaryDirectory(prefix="quorate-load-") as folder:
        try:
            nodes = []
            for i in range(3):
                node, place = free_port(), pathlib.Path(folder, str(i))
                place.mkdir()
                start("redis-server", "--port", str(node), "--bind", "127.0.0.1", "--dir", str(place), "--save", "")
                until("a node listens", lambda: socket.socket().connect_ex(("127.0.0.1", node)) == 0)
                nodes += ["--redis", f"redis://127.0.0.1:{node}"]
            subprocess.run([args.binary, "init", *nodes], check=True, stdout=subprocess.DEVNULL)
            ports = [free_port(), free_port()]
            log = pathlib.Path(folder, "log")
            with open(log, "wb") as out:
                servers = [start(args.binary, "serve", *nodes, "--listen", f"127.0.0.1:{port}",
                                 "--max-waiters-per-name", "6", log=out) for port in ports]

            def ended():
                return any(server.poll() is not None for server in servers)

            until("the servers are ready", lambda: ended() or all(
                Client(port).call("GET", "/readyz").get("status") == "ready" for port in ports))
            works = [round_of_everything] * 2 + [contend] * 4 + [crowd] * 8 + [misbehave, stream]
            clients = [threading.Thread(target=client, args=(work, n)) for n, work in enumerate(works)]
            for thread in clients:
                thread.start()
            status = subprocess.run(
                [sys.executable, str(HERE / "check_live.py"), f"http://127.0.0.1:{ports[0]}", *rest]).returncode
            if ended():
                print(f"a server ended: {log.read_text()[-2000:]}", file=sys.stderr)
                return 1
            left = unmoved(ports[0], MOVED)
            for _ in range(50):
                # A gauge may be zero just now.
                if left:
                    time.sleep(0.1)
                    left = unmoved(ports[0], left)
            for name in unmoved(ports[0], LUCK):
                print(f"  stayed at zero this time: {name}")
            for name in left:
                print(f"  the load did not move {name}", file=sys.stderr)
                status = 1
            return status
        finally:
            over.set()
            for process in reversed(processes):
                process.terminate()
            for process in processes:
                process.wait(30)
            for thread in threading.enumerate():
                if thread is not threading.current_thread():
                    thread.join(40)


if __name__ == "__main__":
    sys.exit(main())
