//! What is done once: looking at the nodes before anything is served, and marking those of a new
//! deployment (docs/protocol.md §4).

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::Engine;
use super::membership::steps;
use crate::domain::Role;
use crate::node::board::Standing;
use crate::node::member::Member;

/// A node that must not be used, found at the start.
#[derive(Debug, thiserror::Error)]
#[error("node {address} is refused: {reason}")]
pub struct StartError {
    /// Its address, without password.
    pub address: String,
    /// Why.
    pub reason: String,
}

/// Why the nodes could not be marked; the text names the node.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct InitError(String);

/// What `quorate init` did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitReport {
    /// Addresses of the nodes that were marked now.
    pub marked: Vec<String>,
    /// Addresses of nodes that are blank in a deployment that is not new: the server marks
    /// them when their quarantine is over.
    pub left_to_quarantine: Vec<String>,
    /// Configured nodes.
    pub total: usize,
}

impl Engine {
    /// Probes every node once. One that is unfit is no reason not to start beside a quorum of sound ones.
    ///
    /// # Errors
    /// Names a node that was reached and must not be used.
    pub async fn ready_at_start(&self) -> Result<(), StartError> {
        self.probe_all().await;
        let is_sound = |member: &&Arc<Member>| {
            matches!(member.standing(), Standing::Voting(_) | Standing::Quarantined { .. })
        };
        let is_enough = {
            let is_known = self.board.lock().in_force().is_some();
            is_known && self.members.iter().filter(is_sound).count() >= self.electorate.now().quorum()
        };
        for member in &self.members {
            if let Standing::Refused(why) = member.standing() {
                let address = member.node().address().to_owned();
                let is_wrong = {
                    let board = self.board.lock();
                    board.is_foreign(member.index()) || board.is_twin(member.index())
                };
                if is_wrong || !is_enough {
                    return Err(StartError { address, reason: why.to_string() });
                }
            }
        }
        Ok(())
    }

    /// Looks at every node, giving those that do not answer yet a moment to be connected.
    async fn probe_all(&self) {
        const PATIENCE: Duration = Duration::from_secs(2);
        const AGAIN: Duration = Duration::from_millis(20);
        let deadline = self.clock.now() + PATIENCE;
        let reach = self.members.iter().map(|member| async move {
            member.probe(false).await;
            while member.standing() == Standing::Down && self.clock.now() < deadline {
                tokio::time::sleep(AGAIN).await;
                member.probe(false).await;
            }
        });
        join_all(reach).await;
        // Once more: the verdict on one node depends on what the others say.
        join_all(self.members.iter().map(|member| member.probe(false))).await;
    }

    /// Founds a deployment of all listed nodes: the operator's word that nothing was forgotten.
    ///
    /// # Errors
    /// Where a node cannot be reached, is refused or belongs to another deployment.
    pub async fn initialize(&self) -> Result<InitReport, InitError> {
        /// A server that starts meanwhile writes to the nodes, and may found the deployment itself.
        const LOOKS_MAX: usize = 10;
        self.probe_all().await;
        let before: Vec<bool> = self.members.iter().map(|member| self.is_marked(member)).collect();
        let founds = !before.contains(&true) || self.board.lock().is_new();
        let mut why = "no node agreed".to_owned();
        for _ in 0..LOOKS_MAX {
            self.check_all()?;
            // Each says what it is first, and then all are one deployment.
            join_all(self.members.iter().map(|member| member.probe(true))).await;
            let is_known = self.board.lock().in_force().is_some();
            let is_done = self.members.iter().all(|member| self.is_marked(member));
            if is_known && !founds || is_known && is_done && !self.board.lock().is_new() {
                return self.report(&before);
            }
            let step = {
                let board = self.board.lock();
                let random = self.clock.random_bits();
                match board.in_force() {
                    None => steps::found(&board, random, Role::Voting),
                    Some(membership) => Some(steps::trust(&board, membership, random)),
                }
            };
            if let Some(step) = step
                && self.propose_step(&step).await
            {
                why = "a node did not take its marker".to_owned();
                join_all(self.members.iter().map(|member| member.probe(true))).await;
                continue;
            }
            tokio::time::sleep(Duration::from_millis(20 + self.clock.random_below(40))).await;
            self.probe_all().await;
        }
        Err(InitError(why))
    }

    fn is_marked(&self, member: &Arc<Member>) -> bool {
        let board = self.board.lock();
        board
            .seen(member.index())
            .is_some_and(|seen| board.in_force().is_some_and(|membership| seen.is_intact_in(membership)))
    }

    /// That every node answers, and may be a member of this deployment, and that there are as many as it has.
    fn check_all(&self) -> Result<(), InitError> {
        for member in &self.members {
            let address = member.node().address();
            match member.standing() {
                Standing::Down => {
                    let why = member.trouble().unwrap_or_else(|| "no answer".to_owned());
                    return Err(InitError(format!("{address} cannot be reached: {why}")));
                }
                Standing::Refused(why) => return Err(InitError(format!("{address}: {why}"))),
                Standing::Voting(_) | Standing::Quarantined { .. } => {}
            }
        }
        let (total, listed) = (self.total(), self.members.len());
        if total != listed {
            let first = self.members.first().map_or("", |member| member.node().address());
            return Err(InitError(format!(
                "{first} belongs to a deployment of {total} nodes, but {listed} are configured"
            )));
        }
        Ok(())
    }

    fn report(&self, before: &[bool]) -> Result<InitReport, InitError> {
        let mut report =
            InitReport { marked: Vec::new(), left_to_quarantine: Vec::new(), total: self.members.len() };
        for (member, before) in self.members.iter().zip(before) {
            let address = member.node().address().to_owned();
            let is_waited_for = matches!(member.standing(), Standing::Quarantined { .. });
            match self.is_marked(member) && !is_waited_for {
                true if !before => report.marked.push(address),
                true => {}
                false => report.left_to_quarantine.push(address),
            }
        }
        Ok(report)
    }
}
