//! What is done once: looking at the nodes before anything is served, and marking those of a new
//! deployment (docs/protocol.md §4).

use std::sync::Arc;
use std::time::Duration;

use super::Engine;
use crate::node::NodeError;
use crate::node::calls;
use crate::node::quarantine::Standing;

/// A node that must not be used, found at the start.
#[derive(Debug, thiserror::Error)]
#[error("node {address} is refused: {reason}")]
pub struct StartError {
    /// Its address, without password.
    pub address: String,
    /// Why.
    pub reason: String,
}

/// Why the nodes could not be marked.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// Something speaks against it; the text names the node.
    #[error("{0}")]
    Refused(String),
    /// A node did not take its marker.
    #[error("{address} did not take its marker: {source}")]
    Node {
        /// Its address, without password.
        address: String,
        /// Why.
        source: NodeError,
    },
}

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
    /// Probes every node once.
    ///
    /// # Errors
    /// Names a node that was reached and must not be used.
    pub async fn ready_at_start(&self) -> Result<(), StartError> {
        self.probe_all().await;
        for member in &self.members {
            if let Standing::Refused(why) = member.standing() {
                let address = member.node().address().to_owned();
                return Err(StartError { address, reason: why.to_string() });
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
        futures_util::future::join_all(reach).await;
        // Once more: the verdict on one node depends on what the others say.
        futures_util::future::join_all(self.members.iter().map(|member| member.probe(false))).await;
    }

    /// Marks the nodes of a new deployment: the operator's word that nothing was forgotten.
    ///
    /// # Errors
    /// Where a node cannot be reached, is refused or belongs to another deployment.
    pub async fn initialize(&self) -> Result<InitReport, InitError> {
        // A server that starts meanwhile leaves a note at each node, once, or marks it.
        const LOOKS_MAX: usize = 5;
        let mut report =
            InitReport { marked: Vec::new(), left_to_quarantine: Vec::new(), total: self.members.len() };
        let mut founds = None;
        for _ in 0..LOOKS_MAX {
            match self.mark_what_is_new(&mut founds, &mut report).await? {
                None => return Ok(report),
                Some(address) => tracing::debug!(address, "the marker changed since it was looked at"),
            }
        }
        Err(InitError::Refused("somebody keeps changing the markers".to_owned()))
    }

    /// Looks and marks, once; the address of a node where something else was stored by then. The first look
    /// says whether the deployment is founded now.
    async fn mark_what_is_new(
        &self,
        founds: &mut Option<bool>,
        report: &mut InitReport,
    ) -> Result<Option<String>, InitError> {
        self.probe_all().await;
        if let Some(member) = self.members.iter().find(|member| member.standing() == Standing::Down) {
            let why = member.trouble().unwrap_or_else(|| "no answer".to_owned());
            return Err(InitError::Refused(format!("{} cannot be reached: {why}", member.node().address())));
        }
        let (marks, seen, standing) = {
            let board = self.board.lock();
            let now = self.clock.now();
            let seen: Vec<_> = (0..self.total()).map(|i| board.marker(i).map(str::to_owned)).collect();
            let founds = *founds.get_or_insert_with(|| board.is_unmarked());
            (board.initialize(now, founds).map_err(InitError::Refused)?, seen, board.judge(now))
        };
        report.left_to_quarantine.clear();
        let mut changed = None;
        for (((member, mark), seen), verdict) in self.members.iter().zip(marks).zip(seen).zip(standing) {
            let address = member.node().address().to_owned();
            match mark {
                Some(mark) => {
                    let command = Arc::new(calls::mark(&self.keys, seen.as_deref(), &mark.to_string()));
                    let answer = member.ask(&command).await;
                    let answer =
                        answer.map_err(|source| InitError::Node { address: address.clone(), source })?;
                    if answer.done {
                        report.marked.push(address);
                    } else {
                        changed = Some(address);
                    }
                }
                None if matches!(verdict.standing, Standing::Quarantined { .. }) => {
                    report.left_to_quarantine.push(address);
                }
                None => {}
            }
        }
        Ok(changed)
    }
}
