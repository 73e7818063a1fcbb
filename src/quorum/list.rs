//! Walking the keys of all nodes, merged by quorum.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;

use super::tally::{self, Verdict, quorum_of};
use super::{Count, Engine};
use crate::domain::Nodes;
use crate::node::NodeError;
use crate::node::calls::{self, Holding, ListStep};
use crate::node::member::Member;

/// Keys looked at per step: short enough not to hold a node up.
const STEP: u64 = 500;

/// One page of held leases, by key in order.
#[derive(Debug)]
pub struct Page {
    /// Key, and what the nodes that hold it store.
    pub held: Vec<(String, Vec<Holding>)>,
    /// Ask again after this key; `None` at the end.
    pub next_after: Option<String>,
    /// Nodes that answered (`granted`) and that did not.
    pub nodes: Nodes,
}

/// The first `limit` held keys of one node after `after`, and whether there are more.
async fn walk(
    member: Arc<Member>,
    prefix: String,
    after: String,
    limit: usize,
) -> Result<(BTreeMap<String, Holding>, bool), NodeError> {
    let mut held = BTreeMap::new();
    let mut more = false;
    let mut cursor = "0".to_owned();
    loop {
        let command = Arc::new(calls::list(&prefix, &cursor, STEP));
        let step = ListStep::read(member.ask_to_vote(&command).await?)?;
        for (key, holding) in step.held {
            if key > after {
                held.insert(key, holding);
            }
        }
        while held.len() > limit {
            held.pop_last();
            more = true;
        }
        if step.cursor == "0" {
            return Ok((held, more));
        }
        cursor = step.cursor;
    }
}

impl Engine {
    /// Held leases whose key begins with `prefix` and comes after `after`, in order. Each page
    /// walks all keys of every node: an operator's question, not a worker's.
    ///
    /// # Errors
    /// The votes, where fewer than a quorum answered.
    pub async fn list(self: &Arc<Self>, prefix: &str, after: &str, limit: usize) -> Result<Page, Nodes> {
        let mut walks: FuturesUnordered<_> = self
            .members
            .iter()
            .map(|member| walk(Arc::clone(member), prefix.to_owned(), after.to_owned(), limit))
            .collect();
        let mut count = Count::new(self.total());
        let mut by_key: HashMap<String, Vec<Holding>> = HashMap::new();
        // Beyond the last key of a shortened list, that node may hold keys it did not name.
        let mut known_to: Option<String> = None;
        while let Some(outcome) = walks.next().await {
            let Ok((held, more)) = outcome else {
                count.failed += 1;
                if count.verdict() == Verdict::NoQuorum {
                    break;
                }
                continue;
            };
            count.yes += 1;
            if let (true, Some((last, _))) = (more, held.last_key_value()) {
                known_to = Some(known_to.map_or(last.clone(), |known| known.min(last.clone())));
            }
            for (key, holding) in held {
                by_key.entry(key).or_default().push(holding);
            }
            // Where a quorum leaves nothing open, nobody waits for a node that is slow.
            let is_open = |(key, holdings): (&String, &Vec<Holding>)| {
                known_to.as_ref().is_none_or(|known| key <= known)
                    && tally::is_doubtful(holdings.iter(), count.yes, self.total())
            };
            if count.yes >= quorum_of(self.total()) && !by_key.iter().any(is_open) {
                break;
            }
        }
        let nodes = count.nodes();
        if count.yes < quorum_of(self.total()) {
            return Err(nodes);
        }
        let mut held: Vec<_> = by_key
            .into_iter()
            .filter(|(key, _)| known_to.as_ref().is_none_or(|known| key <= known))
            .filter(|(_, holdings)| tally::holder(holdings.iter(), self.total()).is_some())
            .collect();
        held.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let mut next_after = known_to;
        if held.len() > limit {
            held.truncate(limit);
            next_after = held.last().map(|(key, _)| key.clone());
        }
        Ok(Page { held, next_after, nodes })
    }
}
