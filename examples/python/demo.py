"""What only the demonstrations need: the recipes are tests too."""
import os
import secrets
import time


def unique(what):
    """A name that no other run of these examples uses."""
    return f"demo:{what}:{secrets.token_hex(4)}"


def check(holds, claim):
    print("ok  " if holds else "FAIL", claim, flush=True)
    if not holds:
        os._exit(1)  # whatever other threads do


def until(condition, seconds=15):
    ends = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > ends:
            return False
        time.sleep(0.02)
    return True
