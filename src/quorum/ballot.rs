//! The votes of one round on their way back.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use smallvec::SmallVec;

use crate::node::member::{Member, Pending};
use crate::node::{Answer, Command, NodeError};

/// Calls that were sent, each with the number of its node.
#[derive(Default)]
pub struct Ballot {
    pending: SmallVec<[(usize, Pending); 5]>,
}

impl Ballot {
    /// Asks every member for a vote, at once.
    pub fn vote(members: &[Arc<Member>], command: &Arc<Command>) -> Self {
        let mut ballot = Self::default();
        for (i, member) in members.iter().enumerate() {
            ballot.add(i, member.vote(command));
        }
        ballot
    }

    /// Tells every member something that needs no marker, at once.
    pub fn tell(members: &[Arc<Member>], command: &Arc<Command>) -> Self {
        let mut ballot = Self::default();
        for (i, member) in members.iter().enumerate() {
            ballot.add(i, member.tell(command));
        }
        ballot
    }

    /// Adds a call to node `i`.
    pub fn add(&mut self, i: usize, pending: Pending) {
        self.pending.push((i, pending));
    }

    /// Whether every call is answered.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// One bit a node whose answer is still out.
    pub fn pending(&self) -> u64 {
        self.pending.iter().fold(0, |bits, (i, _)| bits | 1 << i)
    }

    /// The next answer, whichever node gives it; `None` when all are in.
    pub async fn next(&mut self) -> Option<(usize, Result<Answer, NodeError>)> {
        if self.pending.is_empty() {
            return None;
        }
        poll_fn(|context| {
            for place in 0..self.pending.len() {
                let (i, pending) = &mut self.pending[place];
                if let Poll::Ready(answer) = Pin::new(pending).poll(context) {
                    let i = *i;
                    self.pending.swap_remove(place);
                    return Poll::Ready(Some((i, answer)));
                }
            }
            Poll::Pending
        })
        .await
    }
}
