//! Whether a node does all that leases need, tried on a semaphore that no request can name.

use std::sync::Arc;

use super::Member;
use crate::domain::{Ask, LeaseId, Mode, Renewal, Scope};
use crate::node::ballot::Ballot;
use crate::node::calls::{self, Cause};
use crate::node::{Call, Marker, NodeError, ReplyTo, Settle};

/// How long the lease lives where its release fails, ms.
const TTL_MS: u64 = 1000;

impl Member {
    /// Takes a permit, extends and releases it, and publishes: with the same scripts, and the marker before the
    /// keys, as a request does. What a user has no right to, or a server cannot do, shows only so.
    ///
    /// # Errors
    /// [`NodeError::Redis`] with the reason where the node must not vote; another one where that is not known.
    pub(super) async fn try_out(&self, marker: Arc<Marker>) -> Result<(), NodeError> {
        match &*self.hindrance.load() {
            Some(why) if is_of_rights(why) => return Err(NodeError::Redis(why.as_str().into())),
            // A node without memory may still release, and knows who holds what.
            Some(_) => return Ok(()),
            None => {}
        }
        match self.take_and_release(marker).await {
            Err(NodeError::Redis(why)) if is_for_now(&why) => Err(NodeError::Overloaded),
            Err(NodeError::Redis(why)) => {
                Err(NodeError::Redis(format!("a trial lease failed: {why}").into()))
            }
            other => other,
        }
    }

    async fn take_and_release(&self, marker: Arc<Marker>) -> Result<(), NodeError> {
        let now = self.clock.now();
        let index: Arc<str> = self.keys.trial().into();
        let (scope, lease) = (Scope::Slots(Arc::clone(&index)), LeaseId::from_bits(self.clock.random_bits()));
        let ask = Ask {
            scope: &scope,
            slots: &[0],
            mode: Mode::Exclusive,
            ttl_ms: TTL_MS,
            max_hold_ms: 0,
            lock_delay_ms: 0,
            request: Some(lease.expose()),
            params: "-",
            data: "",
            look_only: false,
            limit: 1,
            standing: None,
        };
        let steps = [
            calls::survey(&index, 1, 1, 1),
            calls::acquire(&ask, &lease, 1),
            calls::extend(&scope, &lease, None, Renewal::Own, None, false),
            calls::release(&scope, &lease, Cause::Release, Settle::new(TTL_MS, false, now)),
            calls::publish(&[Arc::clone(&index)]),
        ];
        let mut answers = Ballot::new(steps.len());
        for (i, step) in steps.into_iter().enumerate() {
            let marker = step.script.is_marked().then(|| Arc::clone(&marker));
            let command = Arc::new(step);
            let reply = ReplyTo::new(Arc::clone(&command), None, now, Some(answers.seat(i)));
            self.node.submit(Call { command, marker, reply });
        }
        while let Some((_, answer)) = answers.next().await {
            // A lease that a failed trial left is in the way until it expires.
            if !answer?.done {
                return Err(NodeError::Overloaded);
            }
        }
        Ok(())
    }
}

/// In the words of Redis 6, 7 and 8.
fn is_of_rights(why: &str) -> bool {
    ["NOPERM", "no permissions", "can't run this command"].iter().any(|words| why.contains(words))
}

fn is_for_now(why: &str) -> bool {
    ["BUSY", "LOADING"].iter().any(|code| why.starts_with(code))
}
