//! What is done every second besides serving: leases that are over are counted, and a quorum that is lost, or back, is
//! logged.

use std::time::Duration;

use crate::service::Service;
use crate::telemetry::audit;

const EVERY: Duration = Duration::from_secs(1);

/// Runs until dropped.
pub async fn run(service: Service) {
    let mut every = tokio::time::interval(EVERY);
    let mut told = None;
    loop {
        every.tick().await;
        service.sweep();
        audit::tell_of_dropped();
        let available = service.engine.available();
        match (told.replace(available), available) {
            (None, false) => tracing::warn!(
                "started without a quorum of nodes: nothing is granted until a majority votes; GET /v1/nodes says why"
            ),
            (Some(true), false) => tracing::error!(
                "the quorum of nodes is lost: nothing is granted or extended until it is back"
            ),
            (Some(false), true) => tracing::info!("a quorum of nodes votes again"),
            _ => {}
        }
    }
}
