"""Every call of the API as it is, typed. Generated from openapi/quorate-v1.json by tools/generate.py: do not edit."""

from __future__ import annotations

from typing import Any, Awaitable, Callable, Optional, cast

from . import types

__all__ = ["Api", "AsyncApi"]


class Api:
    """The calls, each tried at one server after the other; see `Client.api`."""

    def __init__(self, call: Callable[[str, str, dict[str, Any], dict[str, Any], Any], Any]) -> None:
        self._call = call

    def list_elections(
        self,
        *,
        prefix: Optional[str] = None,
        limit: Optional[int] = None,
        cursor: Optional[str] = None,
    ) -> types.ElectionList:
        """List the elections that have a leader."""
        answer = self._call('GET', '/v1/elections', {}, {'prefix': prefix, 'limit': limit, 'cursor': cursor}, None)
        return cast('types.ElectionList', answer)

    def force_resign(
        self,
        name: str,
        *,
        reason: Optional[str] = None,
    ) -> types.Released:
        """Force a leader to resign."""
        answer = self._call('DELETE', '/v1/elections/{name}', {'name': name}, {'reason': reason}, None)
        return cast('types.Released', answer)

    def get_leader(
        self,
        name: str,
        *,
        after: Optional[str] = None,
        wait_ms: Optional[int] = None,
    ) -> types.ElectionState:
        """See who leads."""
        answer = self._call('GET', '/v1/elections/{name}', {'name': name}, {'after': after, 'wait_ms': wait_ms}, None)
        return cast('types.ElectionState', answer)

    def campaign(
        self,
        name: str,
        body: types.Campaign,
    ) -> types.Leadership:
        """Campaign for leadership."""
        answer = self._call('POST', '/v1/elections/{name}/campaign', {'name': name}, {}, body)
        return cast('types.Leadership', answer)

    def extend_election(
        self,
        name: str,
        body: types.Extend,
    ) -> types.Leadership:
        """Stay leader."""
        answer = self._call('POST', '/v1/elections/{name}/extend', {'name': name}, {}, body)
        return cast('types.Leadership', answer)

    def proclaim(
        self,
        name: str,
        body: types.Proclaim,
    ) -> types.Leadership:
        """Proclaim a value as leader."""
        answer = self._call('POST', '/v1/elections/{name}/proclaim', {'name': name}, {}, body)
        return cast('types.Leadership', answer)

    def resign(
        self,
        name: str,
        body: types.Release,
    ) -> types.Released:
        """Resign."""
        answer = self._call('POST', '/v1/elections/{name}/resign', {'name': name}, {}, body)
        return cast('types.Released', answer)

    def get_fence(
        self,
        name: str,
    ) -> types.Fence:
        """Read the highest token."""
        answer = self._call('GET', '/v1/fencing/{name}', {'name': name}, {}, None)
        return cast('types.Fence', answer)

    def check_token(
        self,
        name: str,
        body: types.CheckToken,
    ) -> types.TokenState:
        """Check a token."""
        answer = self._call('POST', '/v1/fencing/{name}/check', {'name': name}, {}, body)
        return cast('types.TokenState', answer)

    def issue_token(
        self,
        name: str,
    ) -> types.IssuedToken:
        """Issue a token."""
        answer = self._call('POST', '/v1/fencing/{name}/issue', {'name': name}, {}, None)
        return cast('types.IssuedToken', answer)

    def get_key(
        self,
    ) -> types.Key:
        """What may I do?"""
        answer = self._call('GET', '/v1/key', {}, {}, None)
        return cast('types.Key', answer)

    def extend_leases(
        self,
        body: types.ManyLeases,
    ) -> types.ManyExtended:
        """Extend many leases."""
        answer = self._call('POST', '/v1/leases/extend', {}, {}, body)
        return cast('types.ManyExtended', answer)

    def release_leases(
        self,
        body: types.ManyLeases,
    ) -> types.ManyReleased:
        """Release many leases."""
        answer = self._call('POST', '/v1/leases/release', {}, {}, body)
        return cast('types.ManyReleased', answer)

    def list_locks(
        self,
        *,
        prefix: Optional[str] = None,
        limit: Optional[int] = None,
        cursor: Optional[str] = None,
    ) -> types.LockList:
        """List the locks that are held."""
        answer = self._call('GET', '/v1/locks', {}, {'prefix': prefix, 'limit': limit, 'cursor': cursor}, None)
        return cast('types.LockList', answer)

    def force_release_lock(
        self,
        name: str,
        *,
        reason: Optional[str] = None,
    ) -> types.Released:
        """Force the release of a lock."""
        answer = self._call('DELETE', '/v1/locks/{name}', {'name': name}, {'reason': reason}, None)
        return cast('types.Released', answer)

    def get_lock(
        self,
        name: str,
        *,
        after: Optional[str] = None,
        wait_ms: Optional[int] = None,
    ) -> types.LockState:
        """Read a lock."""
        answer = self._call('GET', '/v1/locks/{name}', {'name': name}, {'after': after, 'wait_ms': wait_ms}, None)
        return cast('types.LockState', answer)

    def acquire_lock(
        self,
        name: str,
        body: Optional[types.AcquireLock] = None,
    ) -> types.Lease:
        """Acquire a lock."""
        answer = self._call('POST', '/v1/locks/{name}/acquire', {'name': name}, {}, body)
        return cast('types.Lease', answer)

    def extend_lock(
        self,
        name: str,
        body: types.Extend,
    ) -> types.Lease:
        """Extend a lock's lease."""
        answer = self._call('POST', '/v1/locks/{name}/extend', {'name': name}, {}, body)
        return cast('types.Lease', answer)

    def release_lock(
        self,
        name: str,
        body: types.Release,
    ) -> types.Released:
        """Release a lock."""
        answer = self._call('POST', '/v1/locks/{name}/release', {'name': name}, {}, body)
        return cast('types.Released', answer)

    def list_members(
        self,
    ) -> types.MemberList:
        """List the members."""
        answer = self._call('GET', '/v1/members', {}, {}, None)
        return cast('types.MemberList', answer)

    def add_member(
        self,
        body: types.JoiningMember,
    ) -> types.MemberList:
        """Add a member."""
        answer = self._call('POST', '/v1/members', {}, {}, body)
        return cast('types.MemberList', answer)

    def remove_member(
        self,
        id: str,
    ) -> types.MemberList:
        """Remove a member."""
        answer = self._call('DELETE', '/v1/members/{id}', {'id': id}, {}, None)
        return cast('types.MemberList', answer)

    def close_member(
        self,
        id: str,
    ) -> types.MemberList:
        """Close a member for a restart."""
        answer = self._call('POST', '/v1/members/{id}/close', {'id': id}, {}, None)
        return cast('types.MemberList', answer)

    def replace_member(
        self,
        id: str,
        body: types.JoiningMember,
    ) -> types.MemberList:
        """Replace a member."""
        answer = self._call('POST', '/v1/members/{id}/replace', {'id': id}, {}, body)
        return cast('types.MemberList', answer)

    def acquire_multilock(
        self,
        body: types.AcquireMultilock,
    ) -> types.MultilockLease:
        """Acquire several locks at once."""
        answer = self._call('POST', '/v1/multilocks/acquire', {}, {}, body)
        return cast('types.MultilockLease', answer)

    def extend_multilock(
        self,
        body: types.ExtendMultilock,
    ) -> types.MultilockLease:
        """Extend a lease of several locks."""
        answer = self._call('POST', '/v1/multilocks/extend', {}, {}, body)
        return cast('types.MultilockLease', answer)

    def release_multilock(
        self,
        body: types.ReleaseMultilock,
    ) -> types.Released:
        """Release several locks."""
        answer = self._call('POST', '/v1/multilocks/release', {}, {}, body)
        return cast('types.Released', answer)

    def list_nodes(
        self,
    ) -> types.NodeList:
        """List the nodes."""
        answer = self._call('GET', '/v1/nodes', {}, {}, None)
        return cast('types.NodeList', answer)

    def list_semaphores(
        self,
        *,
        prefix: Optional[str] = None,
        limit: Optional[int] = None,
        cursor: Optional[str] = None,
    ) -> types.SemaphoreList:
        """List the semaphores in use."""
        answer = self._call('GET', '/v1/semaphores', {}, {'prefix': prefix, 'limit': limit, 'cursor': cursor}, None)
        return cast('types.SemaphoreList', answer)

    def force_release_semaphore(
        self,
        name: str,
        *,
        fencing_token: Optional[int] = None,
        reason: Optional[str] = None,
    ) -> types.Released:
        """Force the release of permits."""
        answer = self._call('DELETE', '/v1/semaphores/{name}', {'name': name}, {'fencing_token': fencing_token, 'reason': reason}, None)
        return cast('types.Released', answer)

    def get_semaphore(
        self,
        name: str,
        *,
        after: Optional[str] = None,
        wait_ms: Optional[int] = None,
    ) -> types.SemaphoreState:
        """Read a semaphore."""
        answer = self._call('GET', '/v1/semaphores/{name}', {'name': name}, {'after': after, 'wait_ms': wait_ms}, None)
        return cast('types.SemaphoreState', answer)

    def acquire_semaphore(
        self,
        name: str,
        body: types.AcquireSemaphore,
    ) -> types.SemaphoreLease:
        """Acquire permits of a semaphore."""
        answer = self._call('POST', '/v1/semaphores/{name}/acquire', {'name': name}, {}, body)
        return cast('types.SemaphoreLease', answer)

    def extend_semaphore(
        self,
        name: str,
        body: types.Extend,
    ) -> types.SemaphoreLease:
        """Extend a lease of permits."""
        answer = self._call('POST', '/v1/semaphores/{name}/extend', {'name': name}, {}, body)
        return cast('types.SemaphoreLease', answer)

    def release_semaphore(
        self,
        name: str,
        body: types.Release,
    ) -> types.Released:
        """Release permits."""
        answer = self._call('POST', '/v1/semaphores/{name}/release', {'name': name}, {}, body)
        return cast('types.Released', answer)

    def list_waiters(
        self,
        *,
        primitive: Optional[str] = None,
        prefix: Optional[str] = None,
        limit: Optional[int] = None,
        cursor: Optional[str] = None,
    ) -> types.WaiterList:
        """List who waits at this server."""
        answer = self._call('GET', '/v1/waiters', {}, {'primitive': primitive, 'prefix': prefix, 'limit': limit, 'cursor': cursor}, None)
        return cast('types.WaiterList', answer)


class AsyncApi:
    """The calls, each tried at one server after the other; see `Client.api`."""

    def __init__(self, call: Callable[[str, str, dict[str, Any], dict[str, Any], Any], Awaitable[Any]]) -> None:
        self._call = call

    async def list_elections(
        self,
        *,
        prefix: Optional[str] = None,
        limit: Optional[int] = None,
        cursor: Optional[str] = None,
    ) -> types.ElectionList:
        """List the elections that have a leader."""
        answer = await self._call('GET', '/v1/elections', {}, {'prefix': prefix, 'limit': limit, 'cursor': cursor}, None)
        return cast('types.ElectionList', answer)

    async def force_resign(
        self,
        name: str,
        *,
        reason: Optional[str] = None,
    ) -> types.Released:
        """Force a leader to resign."""
        answer = await self._call('DELETE', '/v1/elections/{name}', {'name': name}, {'reason': reason}, None)
        return cast('types.Released', answer)

    async def get_leader(
        self,
        name: str,
        *,
        after: Optional[str] = None,
        wait_ms: Optional[int] = None,
    ) -> types.ElectionState:
        """See who leads."""
        answer = await self._call('GET', '/v1/elections/{name}', {'name': name}, {'after': after, 'wait_ms': wait_ms}, None)
        return cast('types.ElectionState', answer)

    async def campaign(
        self,
        name: str,
        body: types.Campaign,
    ) -> types.Leadership:
        """Campaign for leadership."""
        answer = await self._call('POST', '/v1/elections/{name}/campaign', {'name': name}, {}, body)
        return cast('types.Leadership', answer)

    async def extend_election(
        self,
        name: str,
        body: types.Extend,
    ) -> types.Leadership:
        """Stay leader."""
        answer = await self._call('POST', '/v1/elections/{name}/extend', {'name': name}, {}, body)
        return cast('types.Leadership', answer)

    async def proclaim(
        self,
        name: str,
        body: types.Proclaim,
    ) -> types.Leadership:
        """Proclaim a value as leader."""
        answer = await self._call('POST', '/v1/elections/{name}/proclaim', {'name': name}, {}, body)
        return cast('types.Leadership', answer)

    async def resign(
        self,
        name: str,
        body: types.Release,
    ) -> types.Released:
        """Resign."""
        answer = await self._call('POST', '/v1/elections/{name}/resign', {'name': name}, {}, body)
        return cast('types.Released', answer)

    async def get_fence(
        self,
        name: str,
    ) -> types.Fence:
        """Read the highest token."""
        answer = await self._call('GET', '/v1/fencing/{name}', {'name': name}, {}, None)
        return cast('types.Fence', answer)

    async def check_token(
        self,
        name: str,
        body: types.CheckToken,
    ) -> types.TokenState:
        """Check a token."""
        answer = await self._call('POST', '/v1/fencing/{name}/check', {'name': name}, {}, body)
        return cast('types.TokenState', answer)

    async def issue_token(
        self,
        name: str,
    ) -> types.IssuedToken:
        """Issue a token."""
        answer = await self._call('POST', '/v1/fencing/{name}/issue', {'name': name}, {}, None)
        return cast('types.IssuedToken', answer)

    async def get_key(
        self,
    ) -> types.Key:
        """What may I do?"""
        answer = await self._call('GET', '/v1/key', {}, {}, None)
        return cast('types.Key', answer)

    async def extend_leases(
        self,
        body: types.ManyLeases,
    ) -> types.ManyExtended:
        """Extend many leases."""
        answer = await self._call('POST', '/v1/leases/extend', {}, {}, body)
        return cast('types.ManyExtended', answer)

    async def release_leases(
        self,
        body: types.ManyLeases,
    ) -> types.ManyReleased:
        """Release many leases."""
        answer = await self._call('POST', '/v1/leases/release', {}, {}, body)
        return cast('types.ManyReleased', answer)

    async def list_locks(
        self,
        *,
        prefix: Optional[str] = None,
        limit: Optional[int] = None,
        cursor: Optional[str] = None,
    ) -> types.LockList:
        """List the locks that are held."""
        answer = await self._call('GET', '/v1/locks', {}, {'prefix': prefix, 'limit': limit, 'cursor': cursor}, None)
        return cast('types.LockList', answer)

    async def force_release_lock(
        self,
        name: str,
        *,
        reason: Optional[str] = None,
    ) -> types.Released:
        """Force the release of a lock."""
        answer = await self._call('DELETE', '/v1/locks/{name}', {'name': name}, {'reason': reason}, None)
        return cast('types.Released', answer)

    async def get_lock(
        self,
        name: str,
        *,
        after: Optional[str] = None,
        wait_ms: Optional[int] = None,
    ) -> types.LockState:
        """Read a lock."""
        answer = await self._call('GET', '/v1/locks/{name}', {'name': name}, {'after': after, 'wait_ms': wait_ms}, None)
        return cast('types.LockState', answer)

    async def acquire_lock(
        self,
        name: str,
        body: Optional[types.AcquireLock] = None,
    ) -> types.Lease:
        """Acquire a lock."""
        answer = await self._call('POST', '/v1/locks/{name}/acquire', {'name': name}, {}, body)
        return cast('types.Lease', answer)

    async def extend_lock(
        self,
        name: str,
        body: types.Extend,
    ) -> types.Lease:
        """Extend a lock's lease."""
        answer = await self._call('POST', '/v1/locks/{name}/extend', {'name': name}, {}, body)
        return cast('types.Lease', answer)

    async def release_lock(
        self,
        name: str,
        body: types.Release,
    ) -> types.Released:
        """Release a lock."""
        answer = await self._call('POST', '/v1/locks/{name}/release', {'name': name}, {}, body)
        return cast('types.Released', answer)

    async def list_members(
        self,
    ) -> types.MemberList:
        """List the members."""
        answer = await self._call('GET', '/v1/members', {}, {}, None)
        return cast('types.MemberList', answer)

    async def add_member(
        self,
        body: types.JoiningMember,
    ) -> types.MemberList:
        """Add a member."""
        answer = await self._call('POST', '/v1/members', {}, {}, body)
        return cast('types.MemberList', answer)

    async def remove_member(
        self,
        id: str,
    ) -> types.MemberList:
        """Remove a member."""
        answer = await self._call('DELETE', '/v1/members/{id}', {'id': id}, {}, None)
        return cast('types.MemberList', answer)

    async def close_member(
        self,
        id: str,
    ) -> types.MemberList:
        """Close a member for a restart."""
        answer = await self._call('POST', '/v1/members/{id}/close', {'id': id}, {}, None)
        return cast('types.MemberList', answer)

    async def replace_member(
        self,
        id: str,
        body: types.JoiningMember,
    ) -> types.MemberList:
        """Replace a member."""
        answer = await self._call('POST', '/v1/members/{id}/replace', {'id': id}, {}, body)
        return cast('types.MemberList', answer)

    async def acquire_multilock(
        self,
        body: types.AcquireMultilock,
    ) -> types.MultilockLease:
        """Acquire several locks at once."""
        answer = await self._call('POST', '/v1/multilocks/acquire', {}, {}, body)
        return cast('types.MultilockLease', answer)

    async def extend_multilock(
        self,
        body: types.ExtendMultilock,
    ) -> types.MultilockLease:
        """Extend a lease of several locks."""
        answer = await self._call('POST', '/v1/multilocks/extend', {}, {}, body)
        return cast('types.MultilockLease', answer)

    async def release_multilock(
        self,
        body: types.ReleaseMultilock,
    ) -> types.Released:
        """Release several locks."""
        answer = await self._call('POST', '/v1/multilocks/release', {}, {}, body)
        return cast('types.Released', answer)

    async def list_nodes(
        self,
    ) -> types.NodeList:
        """List the nodes."""
        answer = await self._call('GET', '/v1/nodes', {}, {}, None)
        return cast('types.NodeList', answer)

    async def list_semaphores(
        self,
        *,
        prefix: Optional[str] = None,
        limit: Optional[int] = None,
        cursor: Optional[str] = None,
    ) -> types.SemaphoreList:
        """List the semaphores in use."""
        answer = await self._call('GET', '/v1/semaphores', {}, {'prefix': prefix, 'limit': limit, 'cursor': cursor}, None)
        return cast('types.SemaphoreList', answer)

    async def force_release_semaphore(
        self,
        name: str,
        *,
        fencing_token: Optional[int] = None,
        reason: Optional[str] = None,
    ) -> types.Released:
        """Force the release of permits."""
        answer = await self._call('DELETE', '/v1/semaphores/{name}', {'name': name}, {'fencing_token': fencing_token, 'reason': reason}, None)
        return cast('types.Released', answer)

    async def get_semaphore(
        self,
        name: str,
        *,
        after: Optional[str] = None,
        wait_ms: Optional[int] = None,
    ) -> types.SemaphoreState:
        """Read a semaphore."""
        answer = await self._call('GET', '/v1/semaphores/{name}', {'name': name}, {'after': after, 'wait_ms': wait_ms}, None)
        return cast('types.SemaphoreState', answer)

    async def acquire_semaphore(
        self,
        name: str,
        body: types.AcquireSemaphore,
    ) -> types.SemaphoreLease:
        """Acquire permits of a semaphore."""
        answer = await self._call('POST', '/v1/semaphores/{name}/acquire', {'name': name}, {}, body)
        return cast('types.SemaphoreLease', answer)

    async def extend_semaphore(
        self,
        name: str,
        body: types.Extend,
    ) -> types.SemaphoreLease:
        """Extend a lease of permits."""
        answer = await self._call('POST', '/v1/semaphores/{name}/extend', {'name': name}, {}, body)
        return cast('types.SemaphoreLease', answer)

    async def release_semaphore(
        self,
        name: str,
        body: types.Release,
    ) -> types.Released:
        """Release permits."""
        answer = await self._call('POST', '/v1/semaphores/{name}/release', {'name': name}, {}, body)
        return cast('types.Released', answer)

    async def list_waiters(
        self,
        *,
        primitive: Optional[str] = None,
        prefix: Optional[str] = None,
        limit: Optional[int] = None,
        cursor: Optional[str] = None,
    ) -> types.WaiterList:
        """List who waits at this server."""
        answer = await self._call('GET', '/v1/waiters', {}, {'primitive': primitive, 'prefix': prefix, 'limit': limit, 'cursor': cursor}, None)
        return cast('types.WaiterList', answer)
