"""At most N calls at a time to somebody else's API, however many processes make them."""
import concurrent.futures
import secrets
import threading
import time

from quorate import acquire, check

LIMIT = 3


def call_partner(semaphore, request):
    # The limit is said by whoever asks; all must say the same.
    with acquire(semaphore, limit=LIMIT, ttl_ms=10_000, wait_ms=30_000, owner=f"request-{request}"):
        return partner_api(request)


if __name__ == "__main__":
    lock, now, most = threading.Lock(), 0, 0

    def partner_api(request):
        global now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.1)
        with lock:
            now -= 1
        return request

    semaphore = f"semaphores/demo:partner-api:{secrets.token_hex(4)}"
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda request: call_partner(semaphore, request), range(10)))
    check(answers == list(range(10)), "ten calls, all answered")
    check(1 < most <= LIMIT, f"never more than {LIMIT} at a time; at the peak {most}")
