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
use crate::domain::{Holding, Keys, Nodes, Resource};
use crate::node::NodeError;
use crate::node::calls::{self, ListStep};
use crate::node::member::Member;

/// Records that a node's part of a page has at most, unless they are all of one name: a semaphore has many.
const RECORDS_MAX: usize = 20_000;
/// Keys looked at per step: short enough not to hold a node up.
const STEP: u64 = 100;
/// A pause lasts so many times as long as the step before it.
const PAUSE: u32 = 2;
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// What nodes store under one name, by slot; of a lock or an election all of it stands under 0.
pub type Records = BTreeMap<u32, Vec<Holding>>;

/// One page of names with held leases, in order.
#[derive(Debug, Clone)]
pub struct Page {
    /// Name, and what the nodes that hold something of it store.
    pub held: Vec<(String, Records)>,
    /// Ask again after this name; `None` at the end.
    pub next_after: Option<String>,
    /// Nodes that answered (`granted`) and that did not.
    pub nodes: Nodes,
}

/// The first `limit` held names that begin with `prefix`, after `after`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Query {
    resource: Resource,
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

/// What one node has of a page: the first names with what it stores under them, and whether it has more.
#[derive(Default)]
struct Part {
    held: BTreeMap<String, BTreeMap<u32, Holding>>,
    records: usize,
    more: bool,
}

impl Part {
    fn add(&mut self, query: &Query, name: &str, slot: u32, holding: &Holding) {
        let is_beyond = self.held.last_key_value().is_some_and(|(last, _)| **last < *name);
        if name <= &*query.after || !name.starts_with(&query.prefix) || self.more && is_beyond {
            return;
        }
        if let Place::Vacant(place) = self.held.entry(name.to_owned()).or_default().entry(slot) {
            place.insert(holding.clone());
            self.records += 1;
        }
        while self.held.len() > query.limit || self.records > RECORDS_MAX && self.held.len() > 1 {
            self.records -= self.held.pop_last().map_or(0, |(_, records)| records.len());
            self.more = true;
        }
    }
}

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
async fn walk(member: Arc<Member>, keys: Keys, queries: Arc<[Query]>) -> Result<Vec<Part>, NodeError> {
    let prefixes: Vec<_> = queries.iter().map(|of| [keys.base(of.resource), &of.prefix].concat()).collect();
    let prefix = common_prefix(prefixes.iter().map(String::as_str));
    let mut parts: Vec<Part> = queries.iter().map(|_| Part::default()).collect();
    each_held(&member, prefix, |key, holding| {
        for (query, part) in queries.iter().zip(&mut parts) {
            let record = key.strip_prefix(keys.base(query.resource));
            if let Some((name, slot)) = record.and_then(Keys::name_and_slot) {
                part.add(query, name, slot, &holding);
            }
        }
    })
    .await?;
    Ok(parts)
}

/// Goes through what is held at a node under keys that begin with `prefix`, in steps short enough not to hold it up.
///
/// # Errors
/// The first step's that the node did not answer; what it told before that was taken.
pub(super) async fn each_held(
    member: &Arc<Member>,
    prefix: &str,
    mut take: impl FnMut(String, Holding),
) -> Result<(), NodeError> {
    let mut cursor = "0".to_owned();
    loop {
        let began = tokio::time::Instant::now();
        let command = Arc::new(calls::list(prefix, &cursor, STEP));
        let step = ListStep::read(member.ask_to_vote(&command).await?)?;
        step.held.into_iter().for_each(|(key, holding)| take(key, holding));
        if step.cursor == "0" {
            return Ok(());
        }
        cursor = step.cursor;
        tokio::time::sleep((began.elapsed() * PAUSE).min(PAUSE_MAX)).await;
    }
}

/// A page, as far as the nodes have told.
#[derive(Default)]
struct Merge {
    by_name: HashMap<String, Records>,
    /// Beyond the last name of a shortened list, that node may hold others.
    known_to: Option<String>,
}

impl Merge {
    fn add(&mut self, Part { held, more, .. }: Part) {
        if let (true, Some((last, _))) = (more, held.last_key_value()) {
            let known = self.known_to.take();
            self.known_to = Some(known.map_or(last.clone(), |known| known.min(last.clone())));
        }
        for (name, records) in held {
            let of_name = self.by_name.entry(name).or_default();
            for (slot, holding) in records {
                of_name.entry(slot).or_default().push(holding);
            }
        }
    }

    fn is_known(&self, name: &str) -> bool {
        self.known_to.as_ref().is_none_or(|known| name <= &**known)
    }

    /// Whether only another node could tell who holds something.
    fn is_open(&self, answered: usize, total: usize) -> bool {
        let is_doubtful = |holdings: &Vec<Holding>| tally::is_doubtful(holdings.iter(), answered, total);
        self.by_name.iter().any(|(name, records)| self.is_known(name) && records.values().any(is_doubtful))
    }

    fn page(self, limit: usize, nodes: Nodes) -> Page {
        let total = nodes.total as usize;
        let is_held = |holdings: &Vec<Holding>| tally::holder(holdings.iter(), total).is_some();
        let known_to = self.known_to;
        let is_known = |name: &String| known_to.as_ref().is_none_or(|known| name <= known);
        let is_shown = |(name, records): &(String, Records)| is_known(name) && records.values().any(is_held);
        let mut held: Vec<_> = self.by_name.into_iter().filter(is_shown).collect();
        held.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let mut next_after = known_to;
        if held.len() > limit {
            held.truncate(limit);
            next_after = held.last().map(|(name, _)| name.clone());
        }
        Page { held, next_after, nodes }
    }
}

impl Engine {
    /// Names of a resource that begin with `prefix`, come after `after` and have a held lease, in order, by a walk
    /// over all keys of every node that begins after this call.
    ///
    /// # Errors
    /// The votes, where fewer than a quorum answered.
    pub async fn list(
        self: &Arc<Self>,
        resource: Resource,
        prefix: &str,
        after: &str,
        limit: usize,
    ) -> Result<Page, Nodes> {
        let (asker, answer) = oneshot::channel();
        let query = Query { resource, prefix: prefix.to_owned(), after: after.to_owned(), limit };
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
        let walk = |member| walk(Arc::clone(member), self.keys().clone(), Arc::clone(&queries));
        let mut walks: FuturesUnordered<_> = self.seats().map(|(_, member)| walk(member)).collect();
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
        let key = api.scope.channels()[0].strip_prefix(api.engine.keys().base(Resource::Lock)).unwrap();
        api.nodes.iter().for_each(|node| node.hang_with(Script::List));
        let list = |prefix: &str, after: &str| {
            let (engine, prefix, after) = (Arc::clone(&api.engine), prefix.to_owned(), after.to_owned());
            tokio::spawn(async move { engine.list(Resource::Lock, &prefix, &after, 10).await.unwrap().held })
        };
        let first = list(key, "");
        tokio::task::yield_now().await;
        let others: Vec<_> = [("", ""), ("", ""), ("", key), ("other", "")]
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
