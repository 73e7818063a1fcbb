"""A process that ends without closing its client."""

import subprocess
import sys

from conftest import Deployment

SCRIPT = """
import quorate, sys
client = quorate.Client(sys.argv[1])
with client.lock(sys.argv[2]):
    print("held")
"""


def test_a_process_that_does_not_close_its_client_says_nothing_of_it(
    deployment: Deployment, name: str
) -> None:
    server = deployment.serve()
    ended = subprocess.run([sys.executable, "-c", SCRIPT, server.url, name], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "held\n", "")
