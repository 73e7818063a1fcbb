//! The rounds of a quorum as state machines without I/O: votes go in, what to do next comes out.
//!
//! [`Engine::drive`](super::Engine) feeds all of them. So every order in which votes may come is tested here for
//! up to five nodes, without a runtime and without a clock.

mod extend;
mod grant;
mod issue;
mod read;
mod release;

pub(super) use extend::{Copy, ExtendRound};
pub(super) use grant::{GrantRound, Lost};
pub(super) use issue::IssueRound;
pub(super) use read::ReadRound;
pub(super) use release::{BarRound, ReleaseRound};

use crate::node::ballot::Vote;

/// What a round wants next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// Another vote.
    Wait,
    /// Another vote, unless that takes longer than this.
    WaitFor(Patience),
    /// That the nodes are asked which were not yet.
    AskRest,
    /// Nothing more.
    Done,
}

/// How long a vote is waited for that may not be needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// One of the nodes that were asked may hang; others could answer in its place.
    Hedge,
    /// The nodes of a quorum disagree, and the last votes are about to be in.
    Tie,
    /// The vote of a node decides between contenders, who both lose without it.
    Stall,
}

/// One round. Its nodes have numbers below 64.
pub(super) trait StateMachine {
    /// What it wants as things stand.
    fn action(&self) -> Action;

    /// A node has answered.
    fn on_vote(&mut self, node: usize, vote: Vote) -> Action;

    /// None came in time.
    fn on_timeout(&mut self, patience: Patience) -> Action;

    /// The nodes that were left have been asked.
    fn on_rest_asked(&mut self) -> Action {
        self.action()
    }
}

#[cfg(test)]
mod tests {
    /// All ways in which so many nodes can vote, each in one of so many ways, in order of arrival.
    pub(super) fn arrivals(nodes: usize, ways: usize) -> impl Iterator<Item = Vec<usize>> {
        (0..ways.pow(nodes as u32)).map(move |mut code| {
            (0..nodes)
                .map(|_| {
                    let vote = code % ways;
                    code /= ways;
                    vote
                })
                .collect()
        })
    }
}
