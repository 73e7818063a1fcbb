"""A process that ends without closing its client."""

import subprocess
import sys

import pytest

from conftest import Deployment

BLOCK = """
import quorate, sys
client = quorate.Client(sys.argv[1])
with client.lock(sys.argv[2]):
    print("held")
"""

FORGOTTEN = """
import gc, quorate, sys, time

def hold():
    client = quorate.Client(sys.argv[1])
    lease = client.lock(sys.argv[2]).acquire()
    del client
    gc.collect()

hold()
time.sleep(1.5)
gc.collect()
print("held")
"""


@pytest.mark.parametrize("script", [BLOCK, FORGOTTEN])
def test_a_process_that_does_not_close_its_client_says_nothing_of_it(
    script: str, deployment: Deployment, name: str
) -> None:
    server = deployment.serve()
    ended = subprocess.run([sys.executable, "-c", script, server.url, name], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "held\n", "")
