"""Scenarios S16 and S60 to S62: the way to the servers."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest

import quorate
from conftest import BINARY, Deployment
from fault import Fault


def openssl(*arguments: str, **options: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, text=True, **options)


@pytest.fixture
def certificates(tmp_path: Path) -> tuple[str, str, str]:
    """A CA, and a certificate by it for 127.0.0.1, with its key."""
    ca, ca_key, cert, key = (str(tmp_path / f"{name}.pem") for name in ("ca", "ca-key", "cert", "key"))
    new = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    openssl(*new, "-keyout", ca_key, "-out", ca, "-subj", "/CN=test CA", "-addext", "keyUsage=critical,keyCertSign")
    signed = ["-CA", ca, "-CAkey", ca_key, "-addext", "subjectAltName=IP:127.0.0.1"]
    signed += ["-addext", "basicConstraints=critical,CA:FALSE"]
    openssl(*new, "-keyout", key, "-out", cert, "-subj", "/CN=server", *signed)
    return ca, cert, key


def test_s60_a_server_with_a_ca_of_its_own_needs_that_ca(
    deployment: Deployment, certificates: tuple[str, str, str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca, cert, key = certificates
    url = deployment.serve("--tls-cert", cert, "--tls-key", key, scheme="https").url
    with pytest.raises(quorate.Unavailable, match="(?i)certificate"):
        quorate.Client(url).lock(name, wait=0).acquire()
    quorate.Client(url, ca=ca).lock(name, wait=0).acquire().release()
    monkeypatch.setenv("QUORATE_CA", ca)
    quorate.Client(url).lock(name, wait=0).acquire().release()


def test_s61_a_key_that_may_not_is_refused_at_once(deployment: Deployment, tmp_path: Path) -> None:
    command = [BINARY, "keys", "new", "--name", "test", "--scope", "lock", "--scope", "read", "--prefix", "mine:"]
    made = subprocess.run(command, check=True, capture_output=True, text=True)
    text = made.stdout + made.stderr
    right = re.findall(r"^quorate_[0-9a-f]+$", text, re.MULTILINE)[0]
    file = tmp_path / "keys.toml"
    file.write_text(text[text.index("[[key]]") :])
    url = deployment.serve("--api-keys", str(file)).url
    wrong = "quorate_wrong"
    for key, name, code in ((None, "mine:x", "unauthenticated"), (wrong, "mine:x", "unauthenticated"), (right, "yours:x", "forbidden")):
        client, begun = quorate.Client(url, api_key=key), time.monotonic()
        with pytest.raises(quorate.Forbidden) as refused:
            client.lock(name, wait=60).acquire()
        assert refused.value.code == code and time.monotonic() - begun < 10
        assert key is None or key not in str(refused.value) + repr(client)
    quorate.Client(url, api_key=right).lock("mine:x", wait=0).acquire().release()


def test_s62_a_proxy_can_be_between(fault: Fault, urls: list[str], name: str) -> None:
    with quorate.Client(urls[0], proxy=fault.url) as client:
        client.lock(name, wait=0).acquire().release()
    assert sum(fault.requests.values()) == 2


@pytest.mark.parametrize("what", ["page", "other JSON", "cut"])
def test_s16_what_is_no_server_is_unavailable(what: str, fault: Fault, urls: list[str], name: str) -> None:
    if what == "cut":
        fault.after = lambda path, answer: True
    else:
        fault.before = lambda path, body: (502, {}) if what == "page" else (200, {"hello": 1})
    with pytest.raises(quorate.Unavailable):
        quorate.Client(fault.url).lock(f"{name}:alone", ttl=1, wait=0).acquire()
    quorate.Client([fault.url, urls[1]]).lock(name, wait=0).acquire().release()
