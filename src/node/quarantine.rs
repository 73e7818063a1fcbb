//! When a node may vote (docs/protocol.md §4), as a pure function of what was seen.
//!
//! A node that may have forgotten leases must abstain until every lease granted
//! before could have expired. Each node carries a marker that names its Redis
//! `run_id`, its deployment, N and the largest `max_ttl` ever used. A node whose
//! marker is missing or names another `run_id` has restarted or lost its data:
//! it is quarantined from first sight, then marked anew. [`Board`] holds what one
//! API server has seen of all nodes; [`Board::judge`] says where each stands.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Identity;
use crate::domain::{TTL_MS_MAX, digest_of_set, drift_ms};

/// The content of a marker key: `1 RUN_ID DEPLOYMENT N MAX_TTL_MS`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MarkerText {
    /// The Redis process that was marked.
    pub run_id: String,
    /// The deployment, [`deployment_id`] when it was founded.
    pub deployment: String,
    /// Configured nodes of the deployment.
    pub total: usize,
    /// The largest `max_ttl` ever used, ms.
    pub max_ttl_ms: u64,
}

impl fmt::Display for MarkerText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1 {} {} {} {}", self.run_id, self.deployment, self.total, self.max_ttl_ms)
    }
}

impl FromStr for MarkerText {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let fields: Vec<&str> = text.split(' ').collect();
        let ["1", run_id, deployment, total, max_ttl_ms] = fields.as_slice() else { return Err(()) };
        Ok(Self {
            run_id: (*run_id).to_owned(),
            deployment: (*deployment).to_owned(),
            total: total.parse().map_err(|_| ())?,
            // No server writes more, and whatever else does must not shut a node for ever.
            max_ttl_ms: max_ttl_ms.parse().ok().filter(|&ms| ms <= TTL_MS_MAX).ok_or(())?,
        })
    }
}

/// The id of a deployment that is founded on these processes: the same whoever
/// computes it, in whatever order and by whatever addresses it knows them.
pub fn deployment_id<'a>(run_ids: impl IntoIterator<Item = &'a str>) -> String {
    hex::encode(&digest_of_set(run_ids)[..8])
}

/// What is left at a blank node in the place of its marker, each time another text: a node that
/// is marked and loses its data again between two looks is not what it was at the first.
pub fn note(random: u128) -> String {
    format!("blank {random:032x}")
}

fn is_note(text: &str) -> bool {
    text.starts_with("blank ")
}

/// Where a node stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It votes, with this marker.
    Voting(Arc<str>),
    /// It abstains: what it may have forgotten could still be held.
    Quarantined {
        /// When it may vote; `None` while that depends on other nodes.
        until: Option<Instant>,
        /// Why.
        reason: &'static str,
        /// What was last seen in the place of its marker. As long as that is there the node remembers what
        /// it was told since, and may be given copies.
        marker: Option<Arc<str>>,
    },
    /// It does not answer.
    Down,
    /// It must never vote as it is; the text says why and names other nodes by address.
    Refused(Arc<str>),
}

impl Standing {
    /// Whether it is quarantined, and that for this reason.
    pub fn is_quarantined_for(&self, why: &str) -> bool {
        matches!(self, Self::Quarantined { reason, .. } if *reason == why)
    }
}

/// What to do about a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Where it stands.
    pub standing: Standing,
    /// The marker to write, if the one seen (`None` = absent) is still there.
    pub mark: Option<(Option<String>, MarkerText)>,
}

/// What was last seen of a node.
#[derive(Debug, Clone)]
struct Seen {
    identity: Identity,
    marker: Option<String>,
    /// When it was first seen to be this process with this marker.
    since: Instant,
}

impl Seen {
    /// The marker, where it is one.
    fn text(&self) -> Option<MarkerText> {
        self.marker.as_deref()?.parse().ok()
    }

    /// The same, where it is of this process.
    fn matching(&self) -> Option<MarkerText> {
        self.text().filter(|text| text.run_id == self.identity.run_id)
    }
}

#[derive(Debug, Default)]
struct View {
    seen: Option<Seen>,
    /// When the last look that succeeded began.
    looked_at: Option<Instant>,
    reachable: bool,
    /// When and why it was last in doubt what it remembers, although its marker says nothing of it.
    doubted: Option<(Instant, &'static str)>,
}

/// What one API server has seen of all nodes.
#[derive(Debug)]
pub struct Board {
    addresses: Vec<String>,
    /// Our own.
    max_ttl_ms: u64,
    /// The largest that a marker ever named here, or our own. All nodes may forget it at once.
    max_ttl_ms_seen: u64,
    views: Vec<View>,
}

const RESTARTED: &str = "restarted or lost its data: waiting until leases it may have forgotten have expired";
const BLANK: &str =
    "all nodes are blank: waiting as if all had lost their data (quorate init skips this wait)";
const WAITS_FOR_NODES: &str = "restarted, blank or lost its data: waiting for a look at the other nodes";
const STEPPED: &str = "its clock stepped: waiting until leases judged by it have expired";
const UNFIT: &str =
    "was a replica, or might evict: waiting until leases it may have lost by that have expired";
pub(super) const MARKING: &str = "being marked";

impl Board {
    /// A board of nodes with these addresses; nothing seen yet.
    pub fn new(addresses: Vec<String>, max_ttl_ms: u64) -> Self {
        let views = addresses.iter().map(|_| View::default()).collect();
        Self { addresses, max_ttl_ms, max_ttl_ms_seen: max_ttl_ms, views }
    }

    /// Configured nodes.
    pub fn total(&self) -> usize {
        self.views.len()
    }

    /// Node `i` answered a look that began at `began`: who it is and what marker it carries.
    pub fn saw(
        &mut self,
        i: usize,
        identity: Identity,
        marker: Option<String>,
        began: Instant,
        now: Instant,
    ) {
        let text = marker.as_deref().and_then(|text| text.parse::<MarkerText>().ok());
        if let Some(text) = text.filter(|text| text.total == self.total()) {
            self.max_ttl_ms_seen = self.max_ttl_ms_seen.max(text.max_ttl_ms);
        }
        let view = &mut self.views[i];
        view.reachable = true;
        view.looked_at = Some(began);
        // Where another text is there, another server may have marked it since the last look, and it has lost
        // its data again.
        let is_same = |seen: &&Seen| seen.identity.run_id == identity.run_id && seen.marker == marker;
        let since = view.seen.as_ref().filter(is_same).map_or(now, |seen| seen.since);
        if let Some(seen) = view.seen.as_ref().filter(|seen| seen.identity.run_id != identity.run_id) {
            // The one in between had the marker of this one: it was its replica, perhaps one that lagged, and
            // what is here now may come from there.
            let is_back = seen.text().is_some_and(|text| text.run_id == identity.run_id);
            // What was held against another process is over. That its clock is not as it was is told by this look.
            let stepped = view.doubted.filter(|(at, _)| *at >= began);
            view.doubted = if is_back { Some((now, UNFIT)) } else { stepped };
        }
        // A replica that lags has the marker of its master, who may become its replica and then master
        // again; and an eviction leaves the marker.
        if !identity.is_master() || identity.evicts() {
            view.doubted = Some((now, UNFIT));
        }
        view.seen = Some(Seen { identity, marker, since });
    }

    /// Node `i` did not answer.
    pub fn lost(&mut self, i: usize) {
        self.views[i].reachable = false;
    }

    /// The clock of node `i` stepped; says whether that is news.
    pub fn stepped(&mut self, i: usize, now: Instant) -> bool {
        let quarantine = self.quarantine();
        let before = self.views[i].doubted.replace((now, STEPPED));
        before.is_none_or(|(at, why)| why != STEPPED || at + quarantine <= now)
    }

    /// What was last seen in the place of the marker of node `i`.
    pub fn marker(&self, i: usize) -> Option<&str> {
        self.views[i].seen.as_ref()?.marker.as_deref()
    }

    /// Redis version of node `i`, once seen.
    pub fn version(&self, i: usize) -> Option<&str> {
        self.views[i].seen.as_ref().map(|seen| seen.identity.version.as_str())
    }

    /// How long a node that may have forgotten abstains: the largest `max_ttl` in use, plus drift.
    pub fn quarantine(&self) -> Duration {
        Duration::from_millis(self.max_ttl_ms_seen + drift_ms(self.max_ttl_ms_seen))
    }

    fn markers(&self) -> impl Iterator<Item = (usize, MarkerText)> {
        self.views.iter().enumerate().filter_map(|(i, view)| {
            let text = view.seen.as_ref()?.marker.as_deref()?.parse().ok()?;
            Some((i, text))
        })
    }

    /// The deployment that most markers name; `Err` where as many name another. Where none has a quorum, it is
    /// the one that was founded on the nodes as they are: what else is marked was marked by a server that had
    /// not seen yet that others had lost their memory, too.
    fn deployment(&self) -> Result<Option<String>, ()> {
        let mut counts = self.deployments();
        if self.is_divided()
            && let Some((founded, _)) = counts.remove_entry(&self.founded())
        {
            return Ok(Some(founded));
        }
        let most = counts.values().copied().max().unwrap_or(0);
        let mut leaders = counts.into_iter().filter(|(_, count)| *count == most).map(|(id, _)| id);
        let first = leaders.next();
        if leaders.next().is_some() { Err(()) } else { Ok(first) }
    }

    /// How many markers name each deployment.
    fn deployments(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for (_, text) in self.markers().filter(|(_, text)| text.total == self.total()) {
            *counts.entry(text.deployment).or_default() += 1;
        }
        counts
    }

    /// Whether the markers name several deployments, and none has a quorum.
    fn is_divided(&self) -> bool {
        let counts = self.deployments();
        counts.len() > 1 && counts.values().all(|count| *count <= self.total() / 2)
    }

    /// Whether all nodes were looked at since anything changed at any of them. Before that, what was founded by
    /// another server may look like less than what it was founded in place of.
    fn is_up_to_date(&self) -> bool {
        let newest = self.views.iter().filter_map(|view| Some(view.seen.as_ref()?.since)).max();
        self.views.iter().all(|view| view.reachable && view.looked_at >= newest)
    }

    /// Where each node stands at `now`.
    pub fn judge(&self, now: Instant) -> Vec<Verdict> {
        let deployment = self.deployment();
        let quarantine = self.quarantine();
        (0..self.total()).map(|i| self.judge_one(i, &deployment, quarantine, now)).collect()
    }

    fn judge_one(
        &self,
        i: usize,
        deployment: &Result<Option<String>, ()>,
        quarantine: Duration,
        now: Instant,
    ) -> Verdict {
        let stands = |standing| Verdict { standing, mark: None };
        let view = &self.views[i];
        let Some(seen) = &view.seen else { return stands(Standing::Down) };
        let quarantined = |until, reason| {
            let marker = seen.marker.as_deref().map(Arc::from);
            Standing::Quarantined { until, reason, marker }
        };
        // What spoke against it may be over when it is back.
        if !view.reachable {
            return stands(Standing::Down);
        }
        if let Some(why) = self.refusal(i, seen, deployment) {
            return stands(Standing::Refused(why.into()));
        }
        if let Some((at, reason)) = view.doubted.filter(|(at, _)| *at + quarantine > now) {
            return stands(quarantined(Some(at + quarantine), reason));
        }
        if let Some(marker) = seen.matching() {
            // Founded on this very process, among others: it was marked for the other one since then.
            if let Ok(Some(known)) = deployment
                && *known != marker.deployment
            {
                if !self.is_up_to_date() {
                    return stands(quarantined(None, WAITS_FOR_NODES));
                }
                let max_ttl_ms = marker.max_ttl_ms.max(self.max_ttl_ms);
                let mark = MarkerText { deployment: known.clone(), max_ttl_ms, ..marker.clone() };
                return Verdict {
                    standing: quarantined(None, MARKING),
                    mark: Some((seen.marker.clone(), mark)),
                };
            }
            if marker.max_ttl_ms >= self.max_ttl_ms {
                let expected = seen.marker.as_deref().unwrap_or_default();
                return stands(Standing::Voting(expected.into()));
            }
            // Others must know how long our leases may live before we grant one. A node that might yet
            // turn out to be of another deployment is left as it is.
            let ours = self.markers().filter(|(_, text)| text.deployment == marker.deployment).count();
            let raised = MarkerText { max_ttl_ms: self.max_ttl_ms, ..marker.clone() };
            return Verdict {
                standing: quarantined(None, MARKING),
                mark: (ours > self.total() / 2).then(|| (seen.marker.clone(), raised)),
            };
        }

        let since = seen.since;
        let deployment = deployment.as_ref().ok().and_then(Option::as_deref);
        let reason = if deployment.is_some() { RESTARTED } else { BLANK };
        // Another server may have raised max_ttl before this node lost its memory. It granted its
        // leases by q nodes, this one perhaps among them; so many others must have been looked at
        // since that one of the q − 1 is among those.
        let fresh = |view: &View| view.reachable && view.looked_at.is_some_and(|at| at >= since);
        let others = self.views.iter().enumerate().filter(|(j, view)| *j != i && fresh(view)).count();
        let needed = (self.total() / 2 + self.total() % 2).min(self.total() - 1);
        let (deployment, since, is_next) = match deployment {
            Some(known) if others >= needed && (!self.is_divided() || self.is_up_to_date()) => {
                (known.to_owned(), since, true)
            }
            // Beside the marker of another deployment, this node may be of that one, too.
            None if others + 1 == self.total() && self.is_unmarked() => {
                let first = self.first();
                let first_since = self.views[first].seen.as_ref().map_or(now, |seen| seen.since);
                (self.founded(), since.max(first_since), first == i)
            }
            _ => return stands(quarantined(None, WAITS_FOR_NODES)),
        };
        let until = since + quarantine;
        if until > now {
            return stands(quarantined(Some(until), reason));
        }
        let mark = MarkerText {
            run_id: seen.identity.run_id.clone(),
            deployment,
            total: self.total(),
            max_ttl_ms: self.max_ttl_ms_seen,
        };
        let mark = is_next.then(|| (seen.marker.clone(), mark));
        Verdict { standing: quarantined(None, MARKING), mark }
    }

    /// The node that is marked first where a deployment is founded; the others follow its marker. So two
    /// servers do not found two deployments where only one of them has seen that a node restarted. Either
    /// they begin with the same node, and the second finds it changed; or one begins with the node that
    /// restarted, which is not as it knew it any more, and which the other leaves alone for the length of a
    /// quarantine.
    fn first(&self) -> usize {
        let run_id = |i: &usize| self.views[*i].seen.as_ref().map(|seen| &seen.identity.run_id);
        (0..self.total()).min_by_key(run_id).unwrap_or(0)
    }

    fn founded(&self) -> String {
        deployment_id(self.views.iter().filter_map(|view| Some(view.seen.as_ref()?.identity.run_id.as_str())))
    }

    fn refusal(&self, i: usize, seen: &Seen, deployment: &Result<Option<String>, ()>) -> Option<String> {
        let twin = self.views.iter().enumerate().find(|(j, other)| {
            *j != i && other.seen.as_ref().is_some_and(|other| other.identity.run_id == seen.identity.run_id)
        });
        if let Some((j, _)) = twin {
            return Some(format!(
                "{} and {} lead to the same Redis server, which would vote twice",
                self.addresses[i], self.addresses[j]
            ));
        }
        if !seen.identity.is_master() {
            return Some("is a replica: nodes must be independent".to_owned());
        }
        if seen.identity.evicts() {
            return Some(format!(
                "its maxmemory-policy is {}: it must be noeviction, or locks vanish under memory pressure",
                seen.identity.eviction
            ));
        }
        let marker: MarkerText = seen.marker.as_deref()?.parse().ok()?;
        if marker.total != self.total() {
            return Some(format!(
                "belongs to a deployment of {} nodes, but {} are configured",
                marker.total,
                self.total()
            ));
        }
        match deployment {
            Err(()) => Some("the nodes belong to different deployments, none of them the larger".to_owned()),
            Ok(Some(known)) if *known != marker.deployment && *known != self.founded() => {
                Some(format!("belongs to another deployment ({}, not {known})", marker.deployment))
            }
            Ok(_) => None,
        }
    }

    /// Whether no node is marked.
    pub fn is_unmarked(&self) -> bool {
        self.markers().next().is_none()
    }

    /// What `quorate init` has to write, which `founds` where no node was marked when it began: `Err` says
    /// what speaks against it.
    ///
    /// # Errors
    /// Names the node that cannot be reached, or must not be used.
    pub fn initialize(&self, now: Instant, founds: bool) -> Result<Vec<Option<MarkerText>>, String> {
        for (i, verdict) in self.judge(now).iter().enumerate() {
            match &verdict.standing {
                Standing::Down => return Err(format!("{} cannot be reached", self.addresses[i])),
                Standing::Refused(why) => return Err(format!("{}: {why}", self.addresses[i])),
                Standing::Voting(_) | Standing::Quarantined { .. } => {}
            }
        }
        let founded = self.founded();
        let known = self.deployment().ok().flatten();
        // Markers of another founding: nodes that restarted since. Only time can tell
        // what they have forgotten, so they are left to the quarantine.
        let missing = known.is_none_or(|known| known == founded);
        // A run that broke off leaves nodes with nothing at all. One that a server has found blank beside
        // marked ones may have been flushed, and have forgotten who holds what.
        let is_new = |marker: &str| founds && is_note(marker);
        Ok(self
            .views
            .iter()
            .map(|view| {
                let seen = view.seen.as_ref()?;
                (missing && seen.marker.as_deref().is_none_or(is_new)).then(|| MarkerText {
                    run_id: seen.identity.run_id.clone(),
                    deployment: founded.clone(),
                    total: self.total(),
                    max_ttl_ms: self.max_ttl_ms_seen,
                })
            })
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_TTL_MS: u64 = 1000;

    fn identity(run_id: &str) -> Identity {
        Identity {
            run_id: run_id.into(),
            role: "master".into(),
            eviction: "noeviction".into(),
            version: "7.0.15".into(),
        }
    }

    fn marker(run_id: &str, deployment: &str, total: usize) -> Option<String> {
        let text = MarkerText {
            run_id: run_id.into(),
            deployment: deployment.into(),
            total,
            max_ttl_ms: MAX_TTL_MS,
        };
        Some(text.to_string())
    }

    fn board() -> Board {
        Board::new(vec!["a:1".into(), "b:2".into(), "c:3".into()], MAX_TTL_MS)
    }

    fn marked() -> (Board, Instant) {
        let now = Instant::now();
        let mut board = board();
        for (i, run_id) in ["r1", "r2", "r3"].into_iter().enumerate() {
            board.saw(i, identity(run_id), marker(run_id, "d", 3), now, now);
        }
        (board, now)
    }

    fn after(now: Instant, ms: u64) -> Instant {
        now + Duration::from_millis(ms)
    }

    fn quarantined(verdict: &Verdict) -> bool {
        matches!(verdict.standing, Standing::Quarantined { .. })
    }

    #[test]
    fn marked_nodes_vote_at_once() {
        let (board, now) = marked();
        assert!(board.judge(now).iter().all(|v| matches!(v.standing, Standing::Voting(_))));
    }

    #[test]
    fn a_node_never_reached_is_down() {
        assert!(board().judge(Instant::now()).iter().all(|v| v.standing == Standing::Down));
    }

    impl Board {
        /// Node `i` as it was.
        fn saw_again(&mut self, i: usize, now: Instant) {
            let Seen { identity, marker, .. } = self.views[i].seen.clone().unwrap();
            self.saw(i, identity, marker, now, now);
        }
    }

    /// Which nodes are to be marked.
    fn marks(board: &Board, now: Instant) -> Vec<usize> {
        let verdicts = board.judge(now);
        (0..verdicts.len()).filter(|i| verdicts[*i].mark.is_some()).collect()
    }

    #[test]
    fn blank_nodes_wait_out_the_quarantine_and_then_found_one_deployment() {
        let now = Instant::now();
        let mut board = board();
        for (i, run_id) in ["r2", "r1", "r3"].into_iter().enumerate() {
            board.saw(i, identity(run_id), None, now, now);
        }
        assert!(board.judge(after(now, 1000)).iter().all(|v| quarantined(v) && v.mark.is_none()));
        let now = after(now, 1012);
        assert_eq!(marks(&board, now), [1]);
        let (_, first) = board.judge(now)[1].mark.clone().unwrap();
        assert_eq!(first.deployment, deployment_id(["r3", "r1", "r2"]));
        // The others follow.
        board.saw(1, identity("r1"), Some(first.to_string()), now, now);
        assert_eq!(marks(&board, now), [0, 2]);
        assert_eq!(board.judge(now)[2].mark.clone().unwrap().1.deployment, first.deployment);
    }

    #[test]
    fn servers_found_one_deployment_where_only_one_has_seen_that_a_node_restarted() {
        for (restarted, founds) in [("r9", vec![0]), ("r0", vec![])] {
            let now = Instant::now();
            let mut boards = [board(), board()];
            for board in &mut boards {
                for (i, run_id) in ["r1", "r2", "r3"].into_iter().enumerate() {
                    board.saw(i, identity(run_id), None, now, now);
                }
            }
            boards[1].saw(2, identity(restarted), None, after(now, 900), after(now, 900));
            // Of two who mark the same node, the second finds it changed.
            let now = after(now, 1012);
            assert_eq!(boards.map(|board| marks(&board, now)), [vec![0], founds], "{restarted}");
        }
    }

    #[test]
    fn blank_nodes_found_nothing_while_one_is_unreachable() {
        let now = Instant::now();
        let mut board = board();
        board.saw(0, identity("r1"), None, now, now);
        board.saw(1, identity("r2"), None, now, now);
        assert!(board.judge(after(now, 5000)).iter().all(|v| v.mark.is_none()));
    }

    /// A server that had not seen that the others lost their memory marked the first node once more for the
    /// old deployment, while another one founded a new one.
    #[test]
    fn nodes_follow_the_deployment_that_was_founded_on_them_where_no_other_has_a_quorum() {
        let now = Instant::now();
        let mut board = board();
        let founded = deployment_id(["r1", "r2", "r3"]);
        board.saw(0, identity("r1"), marker("r1", "old", 3), now, now);
        board.saw(1, identity("r2"), marker("r2", &founded, 3), now, now);
        board.saw(2, identity("r3"), None, now, now);
        let now = after(now, 1012);
        let marked =
            board.judge(now).into_iter().map(|verdict| verdict.mark.map(|(_, mark)| mark.deployment));
        assert_eq!(marked.collect::<Vec<_>>(), [Some(founded.clone()), None, Some(founded.clone())]);

        // Had the old one a quorum, leases may have been granted under it.
        board.saw(2, identity("r3"), marker("r3", "old", 3), now, now);
        let verdicts = board.judge(now);
        assert!(matches!(verdicts[1].standing, Standing::Refused(_)));
        assert!(matches!(verdicts[2].standing, Standing::Voting(_)));

        // Nor is a node taken for a deployment that was founded on others.
        board.saw(2, identity("r4"), None, now, now);
        let now = after(now, 5000);
        assert!(board.judge(now).iter().all(|verdict| verdict.mark.is_none()));
    }

    /// Two servers had seen different processes, and each marked a node of the other's founding anew: what
    /// was left were two deployments, of which none could be told to be valid when the last node restarted.
    #[test]
    fn what_was_founded_by_another_server_is_left_alone_until_all_nodes_were_looked_at_since() {
        let now = Instant::now();
        let mut board = board();
        let old = deployment_id(["r1", "r2", "r3"]);
        board.saw(0, identity("r1"), None, now, now);
        board.saw(1, identity("r2"), None, now, now);
        board.saw(2, identity("r3"), marker("r3", &old, 3), now, now);
        let now = after(now, 5000);
        let founded = deployment_id(["r1", "r2", "r4"]);
        board.saw(0, identity("r1"), marker("r1", &founded, 3), now, now);
        assert!(marks(&board, now).is_empty());
        let looked = after(now, 1);
        board.saw(1, identity("r2"), None, looked, looked);
        assert!(marks(&board, looked).is_empty());
        // It is what was seen of this one that was old.
        board.saw(2, identity("r4"), None, looked, looked);
        let now = after(looked, 1012);
        (0..3).for_each(|i| board.saw_again(i, now));
        assert_eq!(marks(&board, now), [1, 2]);
        assert_eq!(board.judge(now)[1].mark.clone().unwrap().1.deployment, founded);
    }

    #[test]
    fn no_deployment_is_founded_beside_markers_of_others() {
        for others in [[("r1", "d", 5), ("r2", "d", 5)], [("r1", "d", 3), ("r2", "e", 3)]] {
            let now = Instant::now();
            let mut board = board();
            for (i, (run_id, deployment, total)) in others.into_iter().enumerate() {
                board.saw(i, identity(run_id), marker(run_id, deployment, total), now, now);
            }
            board.saw(2, identity("r3"), None, now, now);
            assert!(board.judge(after(now, 5000)).iter().all(|v| v.mark.is_none()), "{others:?}");
        }
    }

    #[test]
    fn a_node_that_lost_its_data_abstains_for_max_ttl_and_drift_from_first_sight() {
        let (mut board, now) = marked();
        board.saw(2, identity("r3"), None, now, now);
        board.saw(2, identity("r3"), None, after(now, 900), after(now, 900));
        assert!(quarantined(&board.judge(after(now, 1011))[2]));
        assert!(board.judge(after(now, 1011))[2].mark.is_none());
        let mark = board.judge(after(now, 1012))[2].mark.clone().unwrap();
        assert_eq!(mark, (None, marker("r3", "d", 3).unwrap().parse().unwrap()));
    }

    #[test]
    fn a_loss_after_another_server_has_marked_the_node_begins_the_wait_anew() {
        let (mut board, now) = marked();
        board.saw(2, identity("r3"), Some(note(1)), now, now);
        for (i, run_id) in [(0, "r1"), (1, "r2")] {
            let later = after(now, 900);
            board.saw(i, identity(run_id), marker(run_id, "d", 3), later, later);
        }
        // Marked and flushed in between: only the note is another one.
        board.saw(2, identity("r3"), Some(note(2)), after(now, 900), after(now, 900));
        assert!(board.judge(after(now, 1911))[2].mark.is_none());
        let mark = board.judge(after(now, 1912))[2].mark.clone().unwrap();
        assert_eq!(mark, (Some(note(2)), marker("r3", "d", 3).unwrap().parse().unwrap()));
    }

    #[test]
    fn a_restart_with_old_data_is_a_loss_and_a_second_restart_begins_the_wait_anew() {
        let (mut board, now) = marked();
        board.saw(2, identity("r4"), marker("r3", "d", 3), now, now);
        assert!(quarantined(&board.judge(now)[2]));
        board.saw(2, identity("r5"), marker("r3", "d", 3), after(now, 800), after(now, 800));
        assert!(board.judge(after(now, 1500))[2].mark.is_none());
        // The others were last looked at before: they may know of longer leases since.
        assert!(board.judge(after(now, 1812))[2].mark.is_none());
        for (i, run_id) in [(0, "r1"), (1, "r2")] {
            let later = after(now, 900);
            board.saw(i, identity(run_id), marker(run_id, "d", 3), later, later);
        }
        assert!(board.judge(after(now, 1811))[2].mark.is_none());
        assert!(board.judge(after(now, 1812))[2].mark.is_some());
    }

    /// Its replica took over before it had all leases, and it was a replica of that one in turn.
    #[test]
    fn a_process_that_is_back_after_another_one_had_its_marker_abstains() {
        let (mut board, now) = marked();
        board.saw(2, identity("r4"), marker("r3", "d", 3), now, now);
        let back = after(now, 100);
        board.saw(2, identity("r3"), marker("r3", "d", 3), back, back);
        board.saw_again(2, after(back, 1000));
        assert!(quarantined(&board.judge(after(back, 1011))[2]));
        assert!(matches!(board.judge(after(back, 1012))[2].standing, Standing::Voting(_)));
    }

    #[test]
    fn another_servers_longer_max_ttl_prolongs_the_quarantine() {
        let (mut board, now) = marked();
        let long = MarkerText { max_ttl_ms: 9000, ..marker("r1", "d", 3).unwrap().parse().unwrap() };
        board.saw(0, identity("r1"), Some(long.to_string()), now, now);
        board.saw(2, identity("r3"), None, now, now);
        assert!(board.judge(after(now, 9000))[2].mark.is_none());
        assert_eq!(board.judge(after(now, 9092))[2].mark.as_ref().unwrap().1.max_ttl_ms, 9000);
    }

    #[test]
    fn a_marker_with_a_longer_max_ttl_than_any_server_may_have_is_none() {
        let (mut board, now) = marked();
        for absurd in [TTL_MS_MAX + 1, u64::MAX] {
            let text = MarkerText { max_ttl_ms: absurd, ..marker("r3", "d", 3).unwrap().parse().unwrap() };
            board.saw(2, identity("r3"), Some(text.to_string()), now, now);
            assert!(quarantined(&board.judge(after(now, 1011))[2]));
            let (seen, mark) = board.judge(after(now, 1012))[2].mark.clone().unwrap();
            assert_eq!((seen, mark.max_ttl_ms), (Some(text.to_string()), MAX_TTL_MS));
        }
    }

    #[test]
    fn a_longer_max_ttl_is_remembered_when_all_nodes_forget_it_at_once() {
        let (mut board, now) = marked();
        let long = MarkerText { max_ttl_ms: 9000, ..marker("r1", "d", 3).unwrap().parse().unwrap() };
        board.saw(0, identity("r1"), Some(long.to_string()), now, now);
        for (i, run_id) in [(0, "r1"), (1, "r2"), (2, "r3")] {
            board.saw(i, identity(run_id), None, now, now);
        }
        assert!(board.judge(after(now, 9000))[0].mark.is_none());
        assert_eq!(board.judge(after(now, 9092))[0].mark.as_ref().unwrap().1.max_ttl_ms, 9000);
    }

    #[test]
    fn a_longer_max_ttl_of_our_own_is_written_before_the_node_votes() {
        let now = Instant::now();
        let mut board = Board::new(vec!["a:1".into()], 5000);
        board.saw(0, identity("r1"), marker("r1", "d", 1), now, now);
        let verdict = &board.judge(now)[0];
        assert!(quarantined(verdict));
        assert_eq!(verdict.mark.as_ref().unwrap().1.max_ttl_ms, 5000);
    }

    #[test]
    fn a_node_that_may_be_of_another_deployment_is_not_written_to() {
        let now = Instant::now();
        let addresses = ["a:1", "b:2", "c:3"].map(str::to_owned).to_vec();
        let mut board = Board::new(addresses, 5000);
        board.saw(0, identity("r1"), marker("r1", "theirs", 3), now, now);
        assert!(board.judge(now)[0].mark.is_none());
        board.saw(1, identity("r2"), marker("r2", "ours", 3), now, now);
        board.saw(2, identity("r3"), marker("r3", "ours", 3), now, now);
        let marks: Vec<_> = board.judge(now).iter().map(|verdict| verdict.mark.is_some()).collect();
        assert_eq!(marks, [false, true, true]);
    }

    #[test]
    fn a_clock_step_quarantines_even_a_marked_node() {
        let (mut board, now) = marked();
        board.stepped(1, now);
        assert!(quarantined(&board.judge(after(now, 1000))[1]));
        assert!(matches!(board.judge(after(now, 1012))[1].standing, Standing::Voting(_)));
    }

    #[test]
    fn refused_are_twins_replicas_evicting_nodes_and_foreign_ones() {
        let refused = |board: &Board, i: usize, now| match &board.judge(now)[i].standing {
            Standing::Refused(why) => why.to_string(),
            other => panic!("{other:?}"),
        };
        let (mut board, now) = marked();
        board.saw(1, identity("r1"), marker("r1", "d", 3), now, now);
        assert!(refused(&board, 0, now).contains("b:2"));
        assert!(refused(&board, 1, now).contains("a:1"));

        let (mut board, now) = marked();
        board.saw(1, Identity { role: "slave".into(), ..identity("r2") }, marker("r2", "d", 3), now, now);
        assert!(refused(&board, 1, now).contains("replica"));

        let (mut board, now) = marked();
        let evicting = Identity { eviction: "allkeys-lru".into(), ..identity("r2") };
        board.saw(1, evicting, marker("r2", "d", 3), now, now);
        assert!(refused(&board, 1, now).contains("allkeys-lru"));

        let (mut board, now) = marked();
        board.saw(1, identity("r2"), marker("r2", "d", 5), now, now);
        assert!(refused(&board, 1, now).contains("5 nodes"));

        let (mut board, now) = marked();
        board.saw(1, identity("r2"), marker("r2", "e", 3), now, now);
        assert!(refused(&board, 1, now).contains("another deployment"));
        assert!(matches!(board.judge(now)[0].standing, Standing::Voting(_)));
    }

    #[test]
    fn init_marks_blank_nodes_completes_a_broken_run_and_leaves_restarted_ones_alone() {
        let now = Instant::now();
        let mut blank = board();
        for (i, run_id) in ["r1", "r2", "r3"].into_iter().enumerate() {
            blank.saw(i, identity(run_id), None, now, now);
        }
        blank.saw(1, identity("r2"), Some(note(1)), now, now);
        assert!(blank.is_unmarked());
        let marks = blank.initialize(now, true).unwrap();
        assert!(marks.iter().all(Option::is_some));
        // It goes on after the first node, and what a server leaves meanwhile is no hindrance.
        blank.saw(0, identity("r1"), marks[0].as_ref().map(ToString::to_string), now, now);
        assert!(!blank.is_unmarked());
        let rest = blank.initialize(now, true).unwrap();
        assert_eq!(rest, vec![None, marks[1].clone(), marks[2].clone()]);
        // It broke off there: another run cannot know what a server found blank since.
        let rest = blank.initialize(now, false).unwrap();
        assert_eq!(rest, vec![None, None, marks[2].clone()]);

        let (mut board, now) = marked();
        board.saw(2, identity("r9"), None, now, now);
        assert_eq!(board.initialize(now, false), Ok(vec![None, None, None]));
        board.lost(2);
        assert!(board.initialize(now, false).unwrap_err().contains("c:3"));
    }
}
