"""The client that openapi-python-client makes, at work: a refusal is a value, not an exception."""
import os
import secrets

from quorate_client import AuthenticatedClient, Client
from quorate_client.api.elections import campaign, get_leader, proclaim, resign
from quorate_client.api.locks import acquire_lock, extend_lock, release_lock
from quorate_client.api.multilocks import acquire_multilock, release_multilock
from quorate_client.api.semaphores import acquire_semaphore, get_semaphore, release_semaphore
from quorate_client.api.service import list_nodes
from quorate_client.models import (
    AcquireLock, AcquireMultilock, AcquireSemaphore, Campaign, Extend, Leadership, Lease, MultilockLease,
    NodeList, Problem, Proclaim, Release, ReleaseMultilock, SemaphoreLease,
)  # fmt: skip


def refused(answer, code):
    assert isinstance(answer, Problem) and answer.code == code, answer
    return answer


url, key = os.environ["QUORATE_SERVER"], os.environ.get("QUORATE_API_KEY")
with AuthenticatedClient(url, token=key) if key else Client(url) as client:
    name = f"sdk:openapi-python-client:{secrets.token_hex(4)}"

    lease = acquire_lock.sync(name, client=client, body=AcquireLock(ttl_ms=10_000, owner="first"))
    assert isinstance(lease, Lease) and (lease.name, lease.owner) == (name, "first")
    problem = refused(acquire_lock.sync(name, client=client, body=AcquireLock()), "lock_held")
    assert problem.holder.owner == "first" and problem.holder.fencing_token == lease.fencing_token
    assert problem.nodes.total == 3
    problem = refused(acquire_lock.sync(name, client=client, body=AcquireLock(ttl_ms=10**9)), "invalid_request")
    assert problem.errors[0].field == "ttl_ms"
    extended = extend_lock.sync(name, client=client, body=Extend(lease.lease_id, ttl_ms=20_000))
    assert isinstance(extended, Lease) and extended.validity_ms > 10_000
    assert release_lock.sync(name, client=client, body=Release(lease_id=lease.lease_id)).released
    refused(extend_lock.sync(name, client=client, body=Extend(lease.lease_id)), "lease_lost")

    several = acquire_multilock.sync(client=client, body=AcquireMultilock([name, f"{name}:b"]))
    assert isinstance(several, MultilockLease) and several.fencing_tokens[name] > lease.fencing_token
    body = ReleaseMultilock(names=several.names, lease_id=several.lease_id)
    assert release_multilock.sync(client=client, body=body).released

    permits = acquire_semaphore.sync(name, client=client, body=AcquireSemaphore(limit=3, permits=2))
    assert isinstance(permits, SemaphoreLease) and len(permits.slots) == 2
    problem = acquire_semaphore.sync(name, client=client, body=AcquireSemaphore(limit=3, permits=2))
    assert sorted(refused(problem, "semaphore_full").holders[0].slots) == sorted(permits.slots)
    assert get_semaphore.sync(name, client=client).in_use == 2
    assert release_semaphore.sync(name, client=client, body=Release(lease_id=permits.lease_id)).released

    leadership = campaign.sync(name, client=client, body=Campaign("host-1", value="10.0.0.1"))
    assert isinstance(leadership, Leadership)
    problem = refused(campaign.sync(name, client=client, body=Campaign("host-2")), "election_lost")
    assert problem.holder.candidate == "host-1" and problem.holder.term == leadership.term
    proclaim.sync(name, client=client, body=Proclaim(leadership.lease_id, "10.0.0.2"))
    state = get_leader.sync(name, client=client)
    assert (state.leader, state.value, state.term) == ("host-1", "10.0.0.2", leadership.term)
    assert resign.sync(name, client=client, body=Release(lease_id=leadership.lease_id)).released

    nodes = list_nodes.sync(client=client)
    assert isinstance(nodes, NodeList) and nodes.available
print("ok")
