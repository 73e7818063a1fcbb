//! Fencing tokens without a lease.

use std::sync::Arc;
use std::time::Duration;

use super::Engine;
use super::rounds::IssueRound;
use super::tally::Count;
use crate::domain::{Nodes, Token};
use crate::node::calls;

impl Engine {
    /// The next token of the sequence under `key`. A round counts only where a quorum stored
    /// exactly the same new value: two issuers can then never get the same one.
    ///
    /// # Errors
    /// The votes, where fewer than a quorum answered.
    pub async fn issue(self: &Arc<Self>, key: &str) -> Result<Token, Nodes> {
        let mut ride = self.ride();
        loop {
            let mut issued = self.issue_once(key).await;
            if !ride.is_still() {
                // A token of two memberships is given to nobody.
                issued = Err(Count { failed: self.total(), ..Count::new(self.total()) }.nodes());
            }
            if issued.is_ok() || !Box::pin(ride.again()).await {
                return issued;
            }
        }
    }

    async fn issue_once(self: &Arc<Self>, key: &str) -> Result<Token, Nodes> {
        /// Rounds lost to concurrent issuers before giving up; each backs off a little longer.
        const ROUNDS: u64 = 16;
        let mut least = 0;
        let mut nodes = Nodes::default();
        for round in 0..ROUNDS {
            let proposed = self.propose(self.clock.now()).max(least);
            let command = Arc::new(calls::issue(&self.bounds, key, proposed));
            let mut ballot = self.vote(&command);
            let mut issue = IssueRound::new(self.total());
            self.drive_all(&mut issue, &mut ballot).await;
            nodes = issue.count.nodes();
            if let Some(token) = issue.token() {
                return Token::new(token).map_err(|_| nodes);
            }
            least = issue.greatest().ok_or(nodes)? + 1;
            tokio::time::sleep(Duration::from_micros(self.clock.random_below(500 << round.min(6)))).await;
        }
        Err(nodes)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::node::Script;
    use crate::quorum::fixture::Api;

    /// Another issuer got to one node and to no other.
    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_a_node_that_hangs_where_the_others_have_issued_different_tokens() {
        let [api, _] = Api::pair().await;
        let key = &api.scope.channels()[0];
        let first = api.engine.issue(key).await.unwrap();
        let ahead = format!("{:042}", first.get() + 1_000_000);
        api.nodes[0].node.command(&["SET", key, &ahead]).unwrap();
        api.nodes[2].hang_with(Script::Issue);
        let issued = tokio::time::timeout(Duration::from_millis(100), api.engine.issue(key)).await;
        assert!(issued.expect("in time").unwrap().get() > first.get() + 1_000_000);
    }
}
