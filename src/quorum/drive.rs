//! The one loop that feeds the answers of nodes to a round.

use std::time::Duration;

use super::Engine;
use super::rounds::{Action, Patience, StateMachine};
use crate::node::ballot::Ballot;

/// How long the last votes are waited for where they tell a tie from a lease that is held.
const TIE_PATIENCE_MIN: Duration = Duration::from_millis(2);
const TIE_PATIENCE_MAX: Duration = Duration::from_millis(50);
/// Under load one node answers that much later than another.
const STALL_PATIENCE_MIN: Duration = Duration::from_millis(10);

impl Engine {
    /// Feeds the answers on `ballot` to a round until it is done or nobody is left to answer. Where the round wants
    /// them, `ask_rest` asks the nodes that were left.
    pub(super) async fn drive(
        &self,
        round: &mut impl StateMachine,
        ballot: &mut Ballot,
        ask_rest: impl FnOnce(&mut Ballot),
    ) {
        let mut rest = Some(ask_rest);
        let (mut action, mut until) = (round.action(), None);
        loop {
            let patience = match action {
                Action::Done => return,
                Action::Wait => None,
                Action::WaitFor(patience) => Some(patience),
                Action::AskRest => {
                    if let Some(ask_rest) = rest.take() {
                        ask_rest(ballot);
                    }
                    action = round.on_rest_asked();
                    continue;
                }
            };
            let next = match patience {
                None => ballot.next().await,
                Some(patience) => {
                    let end = match until {
                        Some((same, end)) if same == patience => end,
                        _ => self.clock.now() + self.patience(patience),
                    };
                    until = Some((patience, end));
                    let Ok(next) = tokio::time::timeout_at(end, ballot.next()).await else {
                        action = round.on_timeout(patience);
                        continue;
                    };
                    next
                }
            };
            action = match next {
                Some((node, vote)) => round.on_vote(node, vote),
                None if rest.is_some() => Action::AskRest,
                None => return,
            };
        }
    }

    /// The same of a round that has asked all nodes.
    pub(super) async fn drive_all(&self, round: &mut impl StateMachine, ballot: &mut Ballot) {
        self.drive(round, ballot, |_| ()).await;
    }

    fn patience(&self, patience: Patience) -> Duration {
        match patience {
            Patience::Hedge | Patience::Tie => self.tie_patience(),
            Patience::Stall => self.stall_patience(),
        }
    }

    /// How long more answers are waited for where those of a quorum disagree: they are about to be in,
    /// and nobody waits longer than that for a node that hangs.
    fn tie_patience(&self) -> Duration {
        (2 * self.round_trip()).clamp(TIE_PATIENCE_MIN, TIE_PATIENCE_MAX)
    }

    /// How long a node is waited for that decides between contenders: longer, since both lose without it.
    pub(super) fn stall_patience(&self) -> Duration {
        self.tie_patience().max(STALL_PATIENCE_MIN)
    }
}
