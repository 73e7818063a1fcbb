//! Counting votes: pure functions, so that every case of N = 1…5 is tested without a runtime.

use crate::domain::{Holding, LeaseId, Nodes, Token, Version};

/// ⌊N/2⌋ + 1 of the **configured** N, never of the nodes that happen to answer.
pub const fn quorum_of(total: usize) -> usize {
    total / 2 + 1
}

/// So many nodes leave no quorum to anybody else: ⌈N/2⌉, which is less than a quorum where N is even.
pub const fn bar_of(total: usize) -> usize {
    total + 1 - quorum_of(total)
}

/// Votes of one round, where a node says yes, no, or abstains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    /// Configured nodes.
    pub total: usize,
    /// Yes.
    pub yes: usize,
    /// No.
    pub no: usize,
    /// Abstained.
    pub failed: usize,
}

/// What a count says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Wait for more votes.
    Open,
    /// A quorum said yes.
    Carried,
    /// A quorum answered, and no quorum can say yes any more.
    Rejected,
    /// No quorum can answer any more.
    NoQuorum,
}

impl Count {
    /// Nothing counted yet.
    pub const fn new(total: usize) -> Self {
        Self { total, yes: 0, no: 0, failed: 0 }
    }

    /// The verdict, as early as it is certain.
    pub fn verdict(&self) -> Verdict {
        let quorum = quorum_of(self.total);
        let answered = self.yes + self.no;
        let pending = self.pending();
        if self.yes >= quorum {
            Verdict::Carried
        } else if answered + pending < quorum {
            Verdict::NoQuorum
        } else if self.yes + pending < quorum && answered >= quorum {
            Verdict::Rejected
        } else {
            Verdict::Open
        }
    }

    /// The verdict on a lease that was granted before. It is lost only when another one could be granted
    /// meanwhile: nodes that did not answer may hold it, and what may still be valid is neither
    /// called lost nor undone (docs/protocol.md §1.6).
    pub fn extension_verdict(&self) -> Verdict {
        let (quorum, bar) = (quorum_of(self.total), bar_of(self.total));
        let pending = self.pending();
        if self.yes >= quorum {
            Verdict::Carried
        } else if self.yes + self.failed + pending < bar {
            Verdict::Rejected
        } else if self.yes + pending < quorum && (pending == 0 || self.yes + self.failed >= bar) {
            Verdict::NoQuorum
        } else {
            Verdict::Open
        }
    }

    /// Votes still out.
    pub fn pending(&self) -> usize {
        self.total - self.yes - self.no - self.failed
    }

    /// As shown to people.
    pub fn nodes(&self) -> Nodes {
        Nodes {
            total: self.total as u32,
            quorum: quorum_of(self.total) as u32,
            granted: self.yes as u32,
            held: self.no as u32,
            failed: self.failed as u32,
        }
    }
}

/// The token of a grant, and whether a quorum stored exactly that, so that no second round is needed
/// (docs/protocol.md §2.2): the maximum over the granting quorum, and where all of a quorum stored the same,
/// that.
pub fn token_of(granted: &[u64], total: usize) -> (u64, bool) {
    let same = |token: u64| granted.iter().filter(|&&fence| fence == token).count();
    let exact = granted.iter().copied().find(|&token| same(token) >= quorum_of(total));
    (exact.or(granted.iter().copied().max()).unwrap_or(0), exact.is_some())
}

/// A lease as a quorum of nodes names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named<'a> {
    /// Which one.
    pub lease: LeaseId,
    /// Its token. A node that granted late may store a higher one than was reported, until the
    /// first extension; so it is the one that a quorum stores or, where too few answered to tell,
    /// the smallest.
    pub token: Token,
    /// What is left of it: the smallest over the quorum that keeps it longest, since the lease
    /// ends when the quorum does.
    pub remaining_ms: u64,
    /// What is stored with it: the latest version, also where only one node has it. What a quorum
    /// once stored is then never taken back by a node that missed it.
    pub data: &'a str,
    /// The version of that.
    pub version: Version,
    /// Whether an earlier version was seen, too.
    pub is_behind: bool,
}

/// The lease that a quorum of nodes names.
pub fn holder<'a>(holdings: impl Iterator<Item = &'a Holding> + Clone, total: usize) -> Option<Named<'a>> {
    let quorum = quorum_of(total);
    let count = |fits: &dyn Fn(&Holding) -> bool| holdings.clone().filter(|h| fits(h)).count();
    let lease: LeaseId = holdings.clone().find(|one| count(&|h| h.lease == one.lease) >= quorum)?.lease;
    let of_lease = || holdings.clone().filter(|h| h.lease == lease);
    let holding = of_lease()
        .find(|one| count(&|h| h.lease == lease && h.token == one.token) >= quorum)
        .or_else(|| of_lease().min_by_key(|h| h.token))?;
    let token = holding.token;
    let newest = of_lease().max_by_key(|h| h.version)?;
    let (data, version) = (&*newest.data, newest.version);
    let is_behind = of_lease().any(|h| h.version < version);
    let mut remaining: Vec<u64> = of_lease().map(|h| h.remaining_ms).collect();
    remaining.sort_unstable_by(|a, b| b.cmp(a));
    Some(Named { lease, token, remaining_ms: remaining[quorum - 1], data, version, is_behind })
}

/// The shared leases that a quorum of nodes may hold, those first that last longest, and how many there are; `None`
/// where nobody knows of any. What nodes that `answered` hold, those that did not answer may hold too.
pub fn sharers<'a>(
    holdings: impl Iterator<Item = &'a Holding> + Clone,
    answered: usize,
    total: usize,
) -> Option<(Vec<Named<'a>>, u32)> {
    let sharings = holdings.filter_map(|holding| holding.sharing.as_ref());
    let mut totals: Vec<u32> = sharings.clone().map(|sharing| sharing.total).collect();
    totals.sort_unstable_by(|a, b| b.cmp(a));
    let enough = (quorum_of(total) + answered).saturating_sub(total).max(1);
    let count = *totals.get(enough - 1)?;
    let mut all: Vec<&Holding> = sharings.flat_map(|sharing| &sharing.longest).collect();
    all.sort_by_key(|holding| (holding.lease, std::cmp::Reverse(holding.remaining_ms)));
    let of_lease = all.chunk_by(|one, other| one.lease == other.lease);
    let mut named: Vec<_> = of_lease
        .filter_map(|of| {
            let Holding { lease, remaining_ms, data, version, .. } = of.get(enough - 1)?;
            let token = of.iter().map(|holding| holding.token).min()?;
            let (lease, remaining_ms, version) = (*lease, *remaining_ms, *version);
            Some(Named { lease, token, remaining_ms, data, version, is_behind: false })
        })
        .collect();
    named.sort_by_key(|named| std::cmp::Reverse(named.remaining_ms));
    let count = count.max(named.len() as u32);
    Some((named, count))
}

/// How many of these are the same, at most.
fn most_of<'a>(
    holdings: impl Iterator<Item = &'a Holding> + Clone,
    same: impl Fn(&Holding, &Holding) -> bool,
) -> usize {
    holdings.clone().map(|one| holdings.clone().filter(|h| same(one, h)).count()).max().unwrap_or(0)
}

/// How many nodes name the same lease, at most.
pub fn most<'a>(holdings: impl Iterator<Item = &'a Holding> + Clone) -> usize {
    most_of(holdings, |one, h| one.lease == h.lease)
}

/// Whether what `answered` nodes hold settles who holds it: a quorum names one lease with one token, or
/// none can.
pub fn is_settled<'a>(
    holdings: impl Iterator<Item = &'a Holding> + Clone,
    answered: usize,
    total: usize,
) -> bool {
    let quorum = quorum_of(total);
    most_of(holdings.clone(), |one, h| one.lease == h.lease && one.token == h.token) >= quorum
        || most(holdings) + (total - answered) < quorum
}

/// Whether some lease may have a quorum, as far as `answered` nodes tell.
pub fn may_be_held<'a>(
    holdings: impl Iterator<Item = &'a Holding> + Clone,
    answered: usize,
    total: usize,
) -> bool {
    let most = most(holdings);
    most > 0 && most + (total - answered) >= quorum_of(total)
}

/// Whether some lease may have a quorum and none is known to, since nodes did not answer.
pub fn is_doubtful<'a>(
    holdings: impl Iterator<Item = &'a Holding> + Clone,
    answered: usize,
    total: usize,
) -> bool {
    most(holdings.clone()) < quorum_of(total) && may_be_held(holdings, answered, total)
}

/// When enough nodes will be free again for somebody: the q-th smallest remaining time over
/// all nodes, where a free one counts 0 and one that did not answer counts as never.
pub fn free_in(remaining_ms: impl Iterator<Item = u64>, total: usize) -> Option<u64> {
    let mut remaining: Vec<u64> = remaining_ms.collect();
    remaining.sort_unstable();
    remaining.get(quorum_of(total) - 1).copied()
}

/// The highest fence that was reported to somebody, at least and at most: stored on a quorum, where each node
/// that did not answer may have stored none, or all.
pub fn highest_fence_within(fences: &[u64], total: usize) -> [Option<u64>; 2] {
    [0, u64::MAX].map(|others| {
        let others = std::iter::repeat_n(others, total - fences.len());
        highest_fence(&fences.iter().copied().chain(others).collect::<Vec<_>>(), total)
    })
}

/// The highest fence that may have been reported to somebody: stored on a quorum, where
/// each node that did not answer may have stored it too.
pub fn highest_fence(fences: &[u64], total: usize) -> Option<u64> {
    let missing = total - fences.len();
    let mut sorted = fences.to_vec();
    sorted.sort_unstable_by(|a, b| b.cmp(a));
    let rank = quorum_of(total).saturating_sub(missing).max(1);
    sorted.get(rank - 1).copied().filter(|&fence| fence > 0)
}

/// Whether that one is the same whatever the nodes store that did not answer.
pub fn is_fence_settled(fences: &[u64], total: usize) -> bool {
    let [least, most] = highest_fence_within(fences, total);
    least == most
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Sharing;

    /// All ways in which n votes can fall, in order of arrival.
    fn arrivals(n: usize) -> Vec<Vec<u8>> {
        (0..3_usize.pow(n as u32))
            .map(|mut code| {
                (0..n)
                    .map(|_| {
                        let vote = (code % 3) as u8;
                        code /= 3;
                        vote
                    })
                    .collect()
            })
            .collect()
    }

    fn count(total: usize, votes: &[u8]) -> Count {
        let mut count = Count::new(total);
        for vote in votes {
            match vote {
                0 => count.yes += 1,
                1 => count.no += 1,
                _ => count.failed += 1,
            }
        }
        count
    }

    fn shared_by(leases: &[u128]) -> Holding {
        let one = |bits: u128| Holding {
            lease: LeaseId::from_bits(bits),
            token: Token::new(7).unwrap(),
            remaining_ms: 1000,
            ttl_ms: 1000,
            version: Version::default(),
            data: String::new(),
            sharing: None,
            same_request: false,
            params: String::new(),
            slots: Vec::new(),
        };
        let longest: Vec<_> = leases.iter().map(|bits| one(*bits)).collect();
        Holding { sharing: Some(Sharing { total: longest.len() as u32, longest }), ..one(leases[0]) }
    }

    #[test]
    fn a_shared_lease_is_shown_where_a_quorum_may_hold_it() {
        let names = |holdings: &[Holding], answered: usize| {
            sharers(holdings.iter(), answered, 3).map(|(named, count)| (named.len(), count))
        };
        let two_nodes = [shared_by(&[1, 2]), shared_by(&[1])];
        assert_eq!(names(&two_nodes, 3), Some((1, 1)));
        assert_eq!(names(&two_nodes, 2), Some((2, 2)), "the third may hold the second lease too");
        assert_eq!(names(&two_nodes[1..], 3), None, "a copy that was left behind at one node");
        assert_eq!(names(&two_nodes[1..], 2), Some((1, 1)));
    }

    #[test]
    fn quorum_is_a_majority_of_the_configured_nodes() {
        assert_eq!([1, 2, 3, 4, 5].map(quorum_of), [1, 2, 2, 3, 3]);
    }

    #[test]
    fn a_full_count_of_one_to_five_nodes_is_decided_as_the_rules_say() {
        for total in 1..=5 {
            let quorum = quorum_of(total);
            for votes in arrivals(total) {
                let full = count(total, &votes);
                let expected = if full.yes >= quorum {
                    Verdict::Carried
                } else if full.yes + full.no >= quorum {
                    Verdict::Rejected
                } else {
                    Verdict::NoQuorum
                };
                assert_eq!(full.verdict(), expected, "{votes:?}");
            }
        }
    }

    #[test]
    fn an_early_verdict_is_never_changed_by_later_votes() {
        for total in 1..=5 {
            for votes in arrivals(total) {
                let last = count(total, &votes).verdict();
                for seen in 0..total {
                    let early = count(total, &votes[..seen]).verdict();
                    assert!(early == Verdict::Open || early == last, "{votes:?} after {seen}");
                }
            }
        }
    }

    #[test]
    fn a_verdict_comes_as_soon_as_it_is_certain() {
        for total in 1..=5 {
            for votes in arrivals(total) {
                for seen in 0..=total {
                    let partial = &votes[..seen];
                    // All ways to go on from here.
                    let ends: std::collections::HashSet<_> = arrivals(total - seen)
                        .into_iter()
                        .map(|rest| {
                            let all: Vec<u8> = partial.iter().copied().chain(rest).collect();
                            format!("{:?}", count(total, &all).verdict())
                        })
                        .collect();
                    let open = count(total, partial).verdict() == Verdict::Open;
                    assert_eq!(open, ends.len() > 1, "{partial:?} of {total}: {ends:?}");
                }
            }
        }
    }

    #[test]
    fn a_lease_is_lost_only_when_another_one_could_be_granted() {
        for total in 1..=5 {
            let quorum = quorum_of(total);
            for votes in arrivals(total) {
                let full = count(total, &votes);
                let expected = if full.yes >= quorum {
                    Verdict::Carried
                } else if full.no >= quorum {
                    Verdict::Rejected
                } else {
                    Verdict::NoQuorum
                };
                assert_eq!(full.extension_verdict(), expected, "{votes:?}");
                for seen in 0..total {
                    let early = count(total, &votes[..seen]).extension_verdict();
                    assert!(early == Verdict::Open || early == expected, "{votes:?} after {seen}");
                }
            }
        }
    }

    #[test]
    fn a_token_is_exact_only_when_a_quorum_stored_it() {
        assert_eq!(token_of(&[7, 7], 3), (7, true));
        assert_eq!(token_of(&[7, 9], 3), (9, false));
        assert_eq!(token_of(&[7, 9, 9], 5), (9, false));
        assert_eq!(token_of(&[9, 9, 9], 5), (9, true));
        assert_eq!(token_of(&[7, 9, 7], 3), (7, true), "the greater one is a minority's");
        assert_eq!(token_of(&[7, 7, 9], 5), (9, false));
        assert_eq!(token_of(&[5], 1), (5, true));
    }

    fn holding(lease: u128, remaining_ms: u64) -> Holding {
        Holding {
            lease: LeaseId::from_bits(lease),
            token: Token::new(1).unwrap(),
            remaining_ms,
            ttl_ms: 100,
            version: Version::default(),
            data: String::new(),
            same_request: false,
            sharing: None,
            params: String::new(),
            slots: Vec::new(),
        }
    }

    #[test]
    fn a_holder_needs_a_quorum_of_one_lease_and_lasts_as_long_as_that_quorum() {
        let split = [holding(1, 50), holding(2, 60), holding(3, 70)];
        assert!(holder(split.iter(), 3).is_none());
        let held = [holding(1, 50), holding(2, 60), holding(1, 70)];
        assert_eq!(holder(held.iter(), 3).unwrap().remaining_ms, 50);
        let all = [holding(1, 50), holding(1, 60), holding(1, 70)];
        assert_eq!(holder(all.iter(), 3).unwrap().remaining_ms, 60);
    }

    #[test]
    fn a_late_grants_higher_token_is_not_the_leases() {
        let with =
            |remaining_ms, token| Holding { token: Token::new(token).unwrap(), ..holding(1, remaining_ms) };
        let all = [with(50, 9), with(50, 5), with(50, 5)];
        assert_eq!(holder(all.iter(), 3).unwrap().token.get(), 5);
        assert_eq!(holder(all[..2].iter(), 3).unwrap().token.get(), 5);
        let raised = [with(50, 9), with(50, 9), with(50, 5)];
        assert_eq!(holder(raised.iter(), 3).unwrap().token.get(), 9);
    }

    #[test]
    fn the_latest_data_of_a_lease_wins_whoever_answers_first_and_how_few_have_it() {
        let [first, second, third] = [0, 1 << 16, 1 << 17].map(Version::new);
        let with = |lease, version| Holding { version, data: version.to_string(), ..holding(lease, 50) };
        let data = |versions: [Version; 2]| {
            let copies = versions.map(|version| with(1, version));
            let named = holder(copies.iter(), 3).unwrap();
            assert_eq!(named.data, named.version.to_string());
            (named.version, named.is_behind)
        };
        assert_eq!(data([first, first]), (first, false));
        assert_eq!(data([first, second]), (second, true));
        assert_eq!(data([third, second]), (third, true));
        assert_eq!(data([third, third]), (third, false));
        let other = [with(1, first), with(2, third), with(1, first)];
        let named = holder(other.iter(), 3).unwrap();
        assert_eq!((named.version, named.is_behind), (first, false));
    }

    #[test]
    fn a_name_is_free_when_the_quorum_of_nodes_is() {
        assert_eq!(free_in([500, 300, 400].into_iter(), 3), Some(400));
        assert_eq!(free_in([500, 0, 0].into_iter(), 3), Some(0));
        assert_eq!(free_in([500].into_iter(), 3), None);
    }

    #[test]
    fn a_minoritys_fence_is_not_the_highest_unless_a_missing_node_may_share_it() {
        assert_eq!(highest_fence(&[5, 5, 9], 3), Some(5));
        assert_eq!(highest_fence(&[5, 9], 3), Some(9));
        assert_eq!(highest_fence(&[0, 0, 0], 3), None);
        assert_eq!(highest_fence(&[5, 7, 9, 9], 5), Some(9));
        assert_eq!(highest_fence(&[5, 7, 8, 9, 9], 5), Some(8));
    }

    #[test]
    fn a_fence_is_settled_once_no_node_that_is_out_can_change_it() {
        assert!(is_fence_settled(&[5, 5], 3));
        assert!(!is_fence_settled(&[5, 9], 3));
        assert!(!is_fence_settled(&[5], 3));
        assert!(is_fence_settled(&[5, 7, 9], 3));
        assert!(is_fence_settled(&[0, 0], 3));
        assert!(!is_fence_settled(&[5, 9, 9], 5));
        assert!(is_fence_settled(&[5, 9, 9, 9], 5));
        assert!(is_fence_settled(&[5], 1));
    }
}
