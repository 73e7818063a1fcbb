"""At most N calls at a time to somebody else's API, however many processes make them."""
import concurrent.futures
import threading
import time

import quorate
from demo import check, unique

LIMIT = 3  # said by each who asks; all must say the same
client = quorate.Client()


def call_partner(semaphore, request):
    with client.semaphore(semaphore, limit=LIMIT, wait=30, owner=f"request-{request}"):
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

    semaphore = unique("partner-api")
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda request: call_partner(semaphore, request), range(10)))
    check(answers == list(range(10)), "ten calls, all answered")
    check(1 < most <= LIMIT, f"never more than {LIMIT} at a time; at the peak {most}")
