"""Leader election for a cron runner: of several that run, one is the leader and runs the jobs."""
import secrets
import threading
import time

from auto_extension import Keeper
from quorate import Refused, acquire, call, check


class CronRunner:
    def __init__(self, election, candidate, job, every_s, became_leader, lost_leadership, ttl_ms=3000):
        self.election, self.candidate, self.job, self.every_s = election, candidate, job, every_s
        self.became_leader, self.lost_leadership, self.ttl_ms = became_leader, lost_leadership, ttl_ms
        self.stop = threading.Event()

    def run(self):
        while not self.stop.is_set():
            try:
                leadership = acquire(self.election, candidate=self.candidate, ttl_ms=self.ttl_ms, wait_ms=1000)
            except Refused as refusal:
                if refusal.code != "election_lost":
                    self.stop.wait(0.2)
                continue
            except OSError:
                self.stop.wait(0.2)
                continue
            with Keeper(leadership) as keeper:  # resigns at the end, unless it is lost already
                self.lead(keeper, leadership.answer["term"])

    def lead(self, keeper, term):
        self.became_leader(self.candidate, term)
        try:
            while not (self.stop.is_set() or keeper.lost.is_set()):
                # The term goes along: a store that refuses smaller ones than it has seen is safe
                # from a leader that was paused and does not know that it is none any more.
                self.job(self.candidate, term)
                self.stop.wait(self.every_s)
        finally:
            self.lost_leadership(self.candidate, term)


if __name__ == "__main__":
    election = f"elections/demo:cron:{secrets.token_hex(4)}"
    log = []  # what happened, in order: hooks and runs of the job

    def note(kind):
        return lambda candidate, term: log.append((kind, candidate, term))

    def leader():
        return call("GET", f"/v1/{election}").get("leader")

    def until(condition, seconds=10):
        ends = time.monotonic() + seconds
        while not condition() and time.monotonic() < ends:
            time.sleep(0.02)
        return condition()

    def ran(candidate):
        return lambda: sum(entry[:2] == ("job", candidate) for entry in log) >= 3

    runners = {
        name: CronRunner(election, name, note("job"), 0.1, note("became_leader"), note("lost_leadership"))
        for name in ("host-1", "host-2", "host-3")
    }
    threads = [threading.Thread(target=runner.run) for runner in runners.values()]
    for thread in threads:
        thread.start()

    check(until(lambda: leader() is not None), "one of three candidates is elected")
    first = leader()
    check(until(ran(first)), "and runs the jobs")
    runners[first].stop.set()
    check(until(lambda: leader() not in (None, first)), "when it stops it resigns, and another is elected")
    second = leader()
    check(until(ran(second)), "which runs them from now on")
    for runner in runners.values():
        runner.stop.set()
    for thread in threads:
        thread.join(timeout=10)

    terms = [term for _, _, term in log]
    check(terms == sorted(terms), "terms only ever grow")
    for term in sorted(set(terms)):
        kinds = [kind for kind, _, of in log if of == term]
        check(
            kinds == ["became_leader"] + ["job"] * (len(kinds) - 2) + ["lost_leadership"],
            f"{len(kinds) - 2} runs between became_leader and lost_leadership",
        )
    check(leader() is None, "the last one has resigned")
