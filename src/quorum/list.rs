//! Walking the keys of all nodes, merged by quorum.
//!
//! One walk at a time serves all who ask at this server, whatever page they want, and pauses after each step
//! for longer than the step took. So the nodes' work does not grow with the number of callers.

use std::collections::btree_map::Entry as Place;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::tally::{self, Verdict, quorum_of};
use super::{Count, Engine};
use crate::domain::{Holding, Nodes};
use crate::node::NodeError;
use crate::node::calls::{self, ListStep};
use crate::node::member::Member;

/// Keys looked at per step: short enough not to hold a node up.
const STEP: u64 = 300;
/// A pause lasts so many times as long as the step before it.
const PAUSE: u32 = 2;
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// One page of held leases, by key in order.
#[derive(Debug, Clone)]
pub struct Page {
    /// Key, and what the nodes that hold it store.
    pub held: Vec<(String, Vec<Holding>)>,
    /// Ask again after this key; `None` at the end.
    pub next_after: Option<String>,
    /// Nodes that answered (`granted`) and that did not.
    pub nodes: Nodes,
}

/// The first `limit` held keys that begin with `prefix`, after `after`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Query {
    prefix: String,
    after: String,
    limit: usize,
}

type Asker = oneshot::Sender<Result<Page, Nodes>>;

/// Who waits for the next walk.
#[derive(Default)]
pub(super) struct Walks {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: BTreeMap<Query, Vec<Asker>>,
    under_way: bool,
}

/// What one node has of a page: at most as many keys as it has, and whether there are more.
type Part = (BTreeMap<String, Holding>, bool);

/// What all pages are a part of.
fn common_prefix<'a>(mut prefixes: impl Iterator<Item = &'a str>) -> &'a str {
    let first = prefixes.next().unwrap_or_default();
    prefixes.fold(first, |common, prefix| {
        let same = common.char_indices().zip(prefix.chars()).find(|((_, a), b)| a != b);
        let end = same.map_or(common.len().min(prefix.len()), |((at, _), _)| at);
        &common[..end]
    })
}

/// One node's part of each page.
async fn walk(member: Arc<Member>, queries: Arc<[Query]>) -> Result<Vec<Part>, NodeError> {
    let prefix = common_prefix(queries.iter().map(|query| &*query.prefix));
    let mut parts: Vec<Part> = queries.iter().map(|_| Part::default()).collect();
    let mut cursor = "0".to_owned();
    loop {
        let began = tokio::time::Instant::now();
        let command = Arc::new(calls::list(prefix, &cursor, STEP));
        let step = ListStep::read(member.ask_to_vote(&command).await?)?;
        for (key, holding) in step.held {
            for (query, (held, more)) in queries.iter().zip(&mut parts) {
                if key <= query.after || !key.starts_with(&query.prefix) {
                    continue;
                }
                if held.len() == query.limit && held.last_key_value().is_some_and(|(last, _)| *last < key) {
                    *more = true;
                    continue;
                }
                if let Place::Vacant(place) = held.entry(key.clone()) {
                    place.insert(holding.clone());
                }
                if held.len() > query.limit {
                    held.pop_last();
                    *more = true;
                }
            }
        }
        if step.cursor == "0" {
            return Ok(parts);
        }
        cursor = step.cursor;
        tokio::time::sleep((began.elapsed() * PAUSE).min(PAUSE_MAX)).await;
    }
}

/// A page, as far as the nodes have told.
#[derive(Default)]
struct Merge {
    by_key: HashMap<String, Vec<Holding>>,
    /// Beyond the last key of a shortened list, that node may hold keys it did not name.
    known_to: Option<String>,
}

impl Merge {
    fn add(&mut self, (held, more): Part) {
        if let (true, Some((last, _))) = (more, held.last_key_value()) {
            let known = self.known_to.take();
            self.known_to = Some(known.map_or(last.clone(), |known| known.min(last.clone())));
        }
        for (key, holding) in held {
            self.by_key.entry(key).or_default().push(holding);
        }
    }

    fn is_known(&self, key: &str) -> bool {
        self.known_to.as_ref().is_none_or(|known| key <= &**known)
    }

    /// Whether only another node could tell who holds something.
    fn is_open(&self, answered: usize, total: usize) -> bool {
        let is_doubtful = |holdings: &Vec<Holding>| tally::is_doubtful(holdings.iter(), answered, total);
        self.by_key.iter().any(|(key, holdings)| self.is_known(key) && is_doubtful(holdings))
    }

    fn page(self, limit: usize, nodes: Nodes) -> Page {
        let total = nodes.total as usize;
        let is_held = |holdings: &Vec<Holding>| tally::holder(holdings.iter(), total).is_some();
        let known_to = self.known_to;
        let is_known = |key: &String| known_to.as_ref().is_none_or(|known| key <= known);
        let mut held: Vec<_> =
            self.by_key.into_iter().filter(|(key, of)| is_known(key) && is_held(of)).collect();
        held.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let mut next_after = known_to;
        if held.len() > limit {
            held.truncate(limit);
            next_after = held.last().map(|(key, _)| key.clone());
        }
        Page { held, next_after, nodes }
    }
}

impl Engine {
    /// Held leases whose key begins with `prefix` and comes after `after`, in order, by a walk over all keys of
    /// every node that begins after this call.
    ///
    /// # Errors
    /// The votes, where fewer than a quorum answered.
    pub async fn list(self: &Arc<Self>, prefix: &str, after: &str, limit: usize) -> Result<Page, Nodes> {
        let (asker, answer) = oneshot::channel();
        let query = Query { prefix: prefix.to_owned(), after: after.to_owned(), limit };
        {
            let mut state = self.walks.state.lock();
            state.next.entry(query).or_default().push(asker);
            if !std::mem::replace(&mut state.under_way, true) {
                tokio::spawn(Arc::clone(self).walk_for_all());
            }
        }
        // Not answered where the runtime ends.
        answer.await.unwrap_or_else(|_| Err(self.tally()))
    }

    /// One walk after the other, for as long as somebody asks.
    async fn walk_for_all(self: Arc<Self>) {
        loop {
            let asked = {
                let mut state = self.walks.state.lock();
                state.under_way = !state.next.is_empty();
                std::mem::take(&mut state.next)
            };
            if asked.is_empty() {
                return;
            }
            self.walk_once(asked).await;
        }
    }

    async fn walk_once(&self, asked: BTreeMap<Query, Vec<Asker>>) {
        let (queries, mut askers): (Vec<_>, Vec<_>) = asked.into_iter().unzip();
        let queries: Arc<[Query]> = queries.into();
        let mut walks: FuturesUnordered<_> =
            self.seats().map(|(_, member)| walk(Arc::clone(member), Arc::clone(&queries))).collect();
        let mut count = Count::new(self.total());
        let mut merges: Vec<Option<Merge>> = queries.iter().map(|_| Some(Merge::default())).collect();
        let left = async |askers: &mut Vec<Vec<Asker>>| {
            for asker in askers.iter_mut().flatten() {
                asker.closed().await;
            }
        };
        loop {
            let next = tokio::select! {
                biased;
                next = walks.next() => next,
                () = left(&mut askers) => return,
            };
            match next {
                Some(Ok(parts)) => {
                    count.yes += 1;
                    for (merge, part) in merges.iter_mut().zip(parts) {
                        if let Some(merge) = merge {
                            merge.add(part);
                        }
                    }
                }
                Some(Err(_)) => count.failed += 1,
                None => {}
            }
            // No more answers come, or none that help.
            let is_over = walks.is_empty() || count.verdict() == Verdict::NoQuorum;
            let nodes = count.nodes();
            for ((merge, query), askers) in merges.iter_mut().zip(&*queries).zip(&mut askers) {
                // Where a quorum leaves nothing open, nobody waits for a node that is slow.
                let is_open = |merge: &Merge| merge.is_open(count.yes, self.total());
                let page = if count.yes >= quorum_of(self.total()) {
                    merge
                        .take_if(|merge| is_over || !is_open(merge))
                        .map(|merge| Ok(merge.page(query.limit, nodes)))
                } else {
                    merge.take_if(|_| is_over).map(|_| Err(nodes))
                };
                if let Some(page) = page {
                    for asker in askers.drain(..) {
                        // Who has left does not miss it.
                        let _ = asker.send(page.clone());
                    }
                }
            }
            if merges.iter().all(Option::is_none) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Script;
    use crate::quorum::fixture::Api;

    #[tokio::test(start_paused = true)]
    async fn one_walk_serves_all_who_ask_before_it_begins_each_with_its_page() {
        let [api, _] = Api::pair().await;
        let lease = api.acquire().await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(api.holders(&lease), [true; 3]);
        let key = api.scope.channels()[0].to_string();
        api.nodes.iter().for_each(|node| node.hang_with(Script::List));
        let list = |prefix: &str, after: &str| {
            let (engine, prefix, after) = (Arc::clone(&api.engine), prefix.to_owned(), after.to_owned());
            tokio::spawn(async move { engine.list(&prefix, &after, 10).await.unwrap().held })
        };
        let first = list(&key, "");
        tokio::task::yield_now().await;
        let others: Vec<_> = [("", ""), ("", ""), ("", &*key), ("other", "")]
            .map(|(prefix, after)| list(prefix, after))
            .into_iter()
            .collect();
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(api.nodes[0].hung(), 1);
        api.nodes.iter().for_each(|node| node.go_on());
        api.nodes.iter().for_each(|node| node.hang_with(Script::List));
        assert_eq!(first.await.unwrap().len(), 1);
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(api.nodes[0].hung(), 1, "all others share the next one");
        api.nodes.iter().for_each(|node| node.go_on());
        let mut found = Vec::new();
        for other in others {
            found.push(other.await.unwrap().len());
        }
        assert_eq!(found, [1, 1, 0, 0]);
    }

    #[test]
    fn a_walk_looks_at_no_more_than_what_all_pages_have_in_common() {
        let common = |prefixes: &[&str]| common_prefix(prefixes.iter().copied()).to_owned();
        assert_eq!(common(&["q:lock:ab", "q:lock:ac", "q:lock:a"]), "q:lock:a");
        assert_eq!(common(&["q:lock:ab"]), "q:lock:ab");
        assert_eq!(common(&["äb", "äc"]), "ä");
        assert_eq!(common(&["a", "b"]), "");
    }
}
