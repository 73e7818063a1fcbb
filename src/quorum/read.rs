//! Reading what the nodes store, without changing it.

use std::sync::Arc;

use super::Engine;
use super::rounds::ReadRound;
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
        self.read_within(false, keys, enough).await
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
        self.read_within(true, keys, enough).await
    }

    async fn read_within(
        &self,
        is_hurried: bool,
        keys: &[&str],
        enough: impl Fn(&[Vec<Option<Entry>>]) -> bool,
    ) -> Result<(Vec<Vec<Option<Entry>>>, Nodes), Nodes> {
        let ballot = self.vote(&Arc::new(calls::read(keys.iter().copied())));
        let read = |answer| calls::read_entries(answer, keys.len());
        let holds = |entries: &Vec<Option<Entry>>| entries.iter().flatten().any(|e| e.holding.is_some());
        self.collect(ballot, is_hurried, read, enough, holds).await
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
        self.collect(ballot, true, Survey::read, enough, holds).await
    }

    async fn collect<T>(
        &self,
        mut ballot: Ballot,
        is_hurried: bool,
        read: impl Fn(Answer) -> Result<T, NodeError>,
        enough: impl Fn(&[T]) -> bool,
        holds: impl Fn(&T) -> bool,
    ) -> Result<(Vec<T>, Nodes), Nodes> {
        let mut round = ReadRound::new(self.total(), is_hurried, read, enough);
        self.drive_all(&mut round, &mut ballot).await;
        let count = round.count(holds);
        // People read `held` as: holds a lease.
        let nodes = Nodes { granted: 0, held: count.yes as u32, ..count.nodes() };
        if round.has_quorum() { Ok((round.answers, nodes)) } else { Err(nodes) }
    }
}
