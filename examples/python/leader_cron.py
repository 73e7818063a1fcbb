"""Leader election for a cron runner: of several that run, one is the leader and runs the jobs."""
import threading

import quorate
from demo import check, unique, until

client = quorate.Client()


class CronRunner:
    def __init__(self, election, candidate, job, every_s, became_leader, lost_leadership, ttl_s=3):
        self.election, self.candidate, self.job, self.every_s = election, candidate, job, every_s
        self.became_leader, self.lost_leadership, self.ttl_s = became_leader, lost_leadership, ttl_s
        self.stop = threading.Event()

    def run(self):
        try:
            client.lead(self.election, candidate=self.candidate, run=self.lead, ttl=self.ttl_s, stop=self.stop)
        except quorate.Unavailable:
            if not self.stop.is_set():
                raise

    def lead(self, term, lost):
        self.became_leader(self.candidate, term)
        try:
            while not (self.stop.is_set() or lost.is_set()):
                # The term goes along: a store that refuses smaller ones than it has seen is safe
                # from a leader that was paused and does not know that it is none any more.
                self.job(self.candidate, term)
                self.stop.wait(self.every_s)
        finally:
            # Before it resigns, so that the hooks of two leaders never overlap.
            self.lost_leadership(self.candidate, term)


if __name__ == "__main__":
    election = unique("cron")
    log = []  # what happened, in order: hooks and runs of the job
    observed = []

    def observe():
        for state in client.observe_election(election):
            observed.append(state.get("leader"))

    threading.Thread(target=observe, daemon=True).start()

    def note(kind):
        return lambda candidate, term: log.append((kind, candidate, term))

    def leader():
        return client.api.get_leader(election).get("leader")

    def ran(candidate):
        return until(lambda: sum(entry[:2] == ("job", candidate) for entry in log) >= 3)

    runners = {
        name: CronRunner(election, name, note("job"), 0.1, note("became_leader"), note("lost_leadership"))
        for name in ("host-1", "host-2", "host-3")
    }
    threads = [threading.Thread(target=runner.run) for runner in runners.values()]
    for thread in threads:
        thread.start()

    check(until(lambda: leader() is not None), "one of three candidates is elected")
    first = leader()
    check(ran(first), "and runs the jobs")
    runners[first].stop.set()
    check(until(lambda: leader() not in (None, first)), "when it stops it resigns, and another is elected")
    second = leader()
    check(ran(second), "which runs them from now on")
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
    check(until(lambda: observed[-1] is None), "the last one has resigned")
    check(observed.index(first) < observed.index(second), "those who only follow have seen each leader")
