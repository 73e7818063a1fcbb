//! Reading what the nodes store, without changing it.

use std::sync::Arc;
use std::time::Duration;

use super::Engine;
use super::tally::{Count, Verdict, quorum_of};
use crate::domain::{Entry, Nodes, Survey};
use crate::node::ballot::Ballot;
use crate::node::calls;
use crate::node::{Answer, NodeError};

impl Engine {
    /// What every voting node stores under `keys`, by key, one answer a node. Waits for all
    /// nodes that vote unless `enough` says otherwise.
    ///
    /// # Errors
    /// The votes, where fewer than a quorum answered.
    pub async fn read(
        self: &Arc<Self>,
        keys: &[&str],
        enough: impl Fn(&[Vec<Option<Entry>>]) -> bool,
    ) -> Result<(Vec<Vec<Option<Entry>>>, Nodes), Nodes> {
        self.read_within(None, keys, enough).await
    }

    /// The same of a quorum of nodes, and of more for a moment unless that is `enough`.
    ///
    /// # Errors
    /// The votes, where fewer than a quorum answered.
    pub async fn read_soon(
        self: &Arc<Self>,
        keys: &[&str],
        enough: impl Fn(&[Vec<Option<Entry>>]) -> bool,
    ) -> Result<(Vec<Vec<Option<Entry>>>, Nodes), Nodes> {
        self.read_within(Some(self.tie_patience()), keys, enough).await
    }

    async fn read_within(
        &self,
        patience: Option<Duration>,
        keys: &[&str],
        enough: impl Fn(&[Vec<Option<Entry>>]) -> bool,
    ) -> Result<(Vec<Vec<Option<Entry>>>, Nodes), Nodes> {
        let ballot = self.vote(&Arc::new(calls::read(keys.iter().copied())));
        let read = |answer| calls::read_entries(answer, keys.len());
        let holds = |entries: &Vec<Option<Entry>>| entries.iter().flatten().any(|e| e.holding.is_some());
        self.collect(ballot, patience, read, enough, holds).await
    }

    /// What a quorum of nodes knows of a semaphore's slots, and more of them for a moment unless that is
    /// `enough`. A node with too few of `limit` left for what is `wanted` names `named_max` slots at most.
    ///
    /// # Errors
    /// The votes, where fewer than a quorum answered.
    pub async fn survey(
        self: &Arc<Self>,
        index: &str,
        (limit, wanted): (u32, usize),
        named_max: usize,
        enough: impl Fn(&[Survey]) -> bool,
    ) -> Result<(Vec<Survey>, Nodes), Nodes> {
        let ballot = self.vote(&Arc::new(calls::survey(index, limit, wanted, named_max)));
        let holds = |survey: &Survey| survey.taken > 0;
        self.collect(ballot, Some(self.tie_patience()), Survey::read, enough, holds).await
    }

    /// The answers of a quorum at least, and more until they are `enough` or, with a quorum, `patience`
    /// is over.
    async fn collect<T>(
        &self,
        mut ballot: Ballot,
        patience: Option<Duration>,
        read: impl Fn(Answer) -> Result<T, NodeError>,
        enough: impl Fn(&[T]) -> bool,
        holds: impl Fn(&T) -> bool,
    ) -> Result<(Vec<T>, Nodes), Nodes> {
        let mut count = Count::new(self.total());
        let mut answers = Vec::with_capacity(self.total());
        let mut until = None;
        while answers.len() < quorum_of(self.total()) || !enough(&answers) {
            if until.is_none() && answers.len() >= quorum_of(self.total()) {
                until = patience.map(|patience| self.clock.now() + patience);
            }
            let next = match until {
                Some(until) => tokio::time::timeout_at(until, ballot.next()).await.ok().flatten(),
                None => ballot.next().await,
            };
            let Some((_, answer)) = next else { break };
            match answer.and_then(&read) {
                Ok(answer) => answers.push(answer),
                Err(_) => count.failed += 1,
            }
            if count.verdict() == Verdict::NoQuorum {
                break;
            }
        }
        count.yes = answers.iter().filter(|answer| holds(answer)).count();
        count.no = answers.len() - count.yes;
        // People read `held` as: holds a lease.
        let nodes = Nodes { granted: 0, held: count.yes as u32, ..count.nodes() };
        if answers.len() < quorum_of(self.total()) { Err(nodes) } else { Ok((answers, nodes)) }
    }
}
