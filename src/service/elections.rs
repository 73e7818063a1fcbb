//! Leader election: a lease whose fencing token is the term, and what its leader proclaims.

use super::leases::count_extension;
use super::{Held, Lease, Note, Primitive, Service, ServiceError};
use crate::domain::{LeaseHandle, Name, Renewal, Scope, Value};

/// A value is being stored: tells so however that ends. Whoever proclaims it may leave before it hears.
struct Told<'a> {
    service: &'a Service,
    scope: Scope,
}

impl Drop for Told<'_> {
    fn drop(&mut self) {
        self.service.engine.publish(self.scope.channels());
    }
}

impl Service {
    /// Changes what the leader proclaims; the lease's remaining time stays as it is. Of several at
    /// the same time, each comes just before one of a later version, and the latest stays.
    ///
    /// # Errors
    /// [`ServiceError::LeaseLost`], [`ServiceError::QuorumUnavailable`].
    pub async fn proclaim(
        &self,
        name: &Name,
        handle: LeaseHandle,
        value: Value,
    ) -> Result<Lease, ServiceError> {
        let held = Held::Election(name.clone());
        let round = async |note: Option<&Note>| self.renew(&held, handle, Renewal::Keep, note).await;
        let proclaimed = async {
            let mut note = round(None).await?.note;
            note.value = Some(value);
            // At least the latest that a quorum stores is among what was read.
            note.version = self.engine.version_after(note.version);
            let _told = Told { service: self, scope: held.scope(self.engine.keys()) };
            let lease = round(Some(&note)).await?;
            // Stored by a quorum, or replaced there by a later version already.
            Ok(Lease { note, ..lease })
        }
        .await;
        count_extension(Primitive::Election, &proclaimed);
        proclaimed
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use futures_util::FutureExt as _;

    use super::*;
    use crate::domain::Candidate;
    use crate::node::Script;
    use crate::quorum::fixture::Api;
    use crate::service::{AcquireOptions, Target, WaitLimits};

    #[tokio::test(start_paused = true)]
    async fn observers_hear_of_a_value_whose_leader_has_left_while_it_was_stored() {
        let [api, _] = Api::pair().await;
        let limits = WaitLimits { waiters_max: 10, waiters_per_name_max: 10 };
        let service = Service::new(Arc::clone(&api.engine), limits);
        let name = Name::new("a").unwrap();
        let note = Note { candidate: Candidate::new("c").ok(), ..Note::default() };
        let options = AcquireOptions { ttl_ms: 30_000, wait_ms: 0, note, request: None };
        let lease = service.acquire(&Target::Election(name.clone()), &options).await.unwrap().deliver();
        let key: Arc<str> = api.engine.keys().election(&name).into();
        let observer = api.engine.hub().listen(&[key], None).await;
        observer.bell().reset();

        api.nodes.iter().for_each(|node| node.hang_with(Script::Extend));
        let mut proclaim = Box::pin(service.proclaim(&name, lease.handle, Value::new("new").unwrap()));
        assert!(proclaim.as_mut().now_or_never().is_none(), "it reads");
        api.nodes.iter().for_each(|node| node.go_on());
        api.nodes.iter().for_each(|node| node.hang_with(Script::Extend));
        assert!(proclaim.as_mut().now_or_never().is_none(), "it stores");
        drop(proclaim);
        api.nodes.iter().for_each(|node| node.go_on());
        let rung = observer.bell().rung(3, Duration::from_millis(1), Duration::ZERO);
        assert!(tokio::time::timeout(Duration::from_secs(1), rung).await.is_ok());
    }
}
