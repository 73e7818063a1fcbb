"""The client that openapi-generator makes for Python, at work."""
import os
import secrets

import quorate_client
from quorate_client import models
from quorate_client.exceptions import BadRequestException, ConflictException


def refusal(of, call, *args):
    """The problem that a call is refused with, parsed by the client."""
    try:
        call(*args)
    except of as error:
        return error.data
    raise AssertionError("it was granted")


configuration = quorate_client.Configuration(
    host=os.environ["QUORATE_SERVER"], access_token=os.environ.get("QUORATE_API_KEY")
)
with quorate_client.ApiClient(configuration) as client:
    locks, run = quorate_client.LocksApi(client), secrets.token_hex(4)
    name = f"sdk:python:{run}"

    ask = models.AcquireLock(ttl_ms=10_000, owner="first", metadata={"job": "sdk"})
    lease = locks.acquire_lock(name, ask)
    assert (lease.name, lease.owner, lease.ttl_ms) == (name, "first", 10_000)
    assert 0 < lease.fencing_token < 2**53 and lease.nodes.total == 3

    problem = refusal(ConflictException, locks.acquire_lock, name, models.AcquireLock(owner="second"))
    assert isinstance(problem, models.Problem) and problem.code == "lock_held" and problem.status == 409
    assert problem.holder.owner == "first" and problem.holder.fencing_token == lease.fencing_token
    assert problem.nodes.total == 3 and problem.retry_after_ms is not None

    problem = refusal(BadRequestException, locks.acquire_lock, name, models.AcquireLock(metadata={"long": "x" * 2000}))
    assert problem.code == "invalid_request" and problem.errors[0].var_field.startswith("metadata")

    extended = locks.extend_lock(name, models.Extend(lease_id=lease.lease_id, ttl_ms=20_000))
    assert extended.validity_ms > 10_000 and extended.fencing_token == lease.fencing_token
    assert locks.get_lock(name).metadata == {"job": "sdk"}
    assert [lock.name for lock in locks.list_locks(prefix=name).locks] == [name]
    assert locks.release_lock(name, models.Release(lease_id=lease.lease_id)).released
    assert not locks.release_lock(name, models.Release(lease_id=lease.lease_id)).released
    assert refusal(ConflictException, locks.extend_lock, name, models.Extend(lease_id=lease.lease_id)).code == "lease_lost"

    again = locks.acquire_lock(name)
    both = [models.LeaseOfMany(primitive="lock", name=name, lease_id=one.lease_id) for one in (again, lease)]
    results = quorate_client.LeasesApi(client).extend_leases(models.ManyLeases(leases=both)).results
    assert results[0].lease.fencing_token == again.fencing_token and results[1].problem.code == "lease_lost"
    held = locks.get_lock(name, after="free", wait_ms=1000)
    assert locks.force_release_lock(name, reason="the test takes it away").released
    assert locks.get_lock(name, after=held.revision, wait_ms=5000).revision == "free"

    multilocks = quorate_client.MultilocksApi(client)
    several = multilocks.acquire_multilock(models.AcquireMultilock(names=[name, f"{name}:b"]))
    assert set(several.fencing_tokens) == {name, f"{name}:b"}
    assert multilocks.release_multilock(models.ReleaseMultilock(names=several.names, lease_id=several.lease_id)).released

    semaphores = quorate_client.SemaphoresApi(client)
    permits = semaphores.acquire_semaphore(name, models.AcquireSemaphore(limit=3, permits=2, owner="first"))
    assert len(permits.slots) == 2
    problem = refusal(ConflictException, semaphores.acquire_semaphore, name, models.AcquireSemaphore(limit=3, permits=2))
    assert problem.code == "semaphore_full" and problem.holders[0].owner == "first"
    assert semaphores.get_semaphore(name).in_use == 2
    assert [semaphore.in_use for semaphore in semaphores.list_semaphores(prefix=name).semaphores] == [2]
    assert semaphores.release_semaphore(name, models.Release(lease_id=permits.lease_id)).released

    elections = quorate_client.ElectionsApi(client)
    leadership = elections.campaign(name, models.Campaign(candidate="host-1", value="10.0.0.1"))
    problem = refusal(ConflictException, elections.campaign, name, models.Campaign(candidate="host-2"))
    assert problem.code == "election_lost" and problem.holder.candidate == "host-1"
    elections.proclaim(name, models.Proclaim(lease_id=leadership.lease_id, value="10.0.0.2"))
    state = elections.get_leader(name)
    assert (state.leader, state.value, state.term) == ("host-1", "10.0.0.2", leadership.term)
    assert [election.leader for election in elections.list_elections(prefix=name).elections] == ["host-1"]
    assert elections.resign(name, models.Release(lease_id=leadership.lease_id)).released
    assert elections.get_leader(name, after=state.revision, wait_ms=1000).leader is None

    fencing = quorate_client.FencingApi(client)
    first, second = fencing.issue_token(name), fencing.issue_token(name)
    assert lease.fencing_token < first.fencing_token < second.fencing_token
    assert fencing.check_token(name, models.CheckToken(fencing_token=second.fencing_token)).status == "current"
    problem = refusal(ConflictException, fencing.check_token, name, models.CheckToken(fencing_token=first.fencing_token))
    assert (problem.code, problem.highest_token) == ("stale_token", second.fencing_token)

    service = quorate_client.ServiceApi(client)
    assert service.list_waiters(prefix=name).waiters == []
    assert "lock" in service.get_key().scopes
    assert service.get_readyz().nodes.quorum == 2
    assert [node.state for node in service.list_nodes().nodes] == ["voting"] * 3
    assert "quorate_acquisitions_total" in service.get_metrics()
print("ok")
