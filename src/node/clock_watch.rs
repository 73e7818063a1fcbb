//! The nodes' clocks against this server's (docs/protocol.md §4.5): whether one of them stepped, or this server stood
//! still.
//!
//! A virtual machine that is paused, or moved to another host, finds the clocks of all nodes ahead by the same time.
//! Clocks that have nothing to do with each other do not step together by the same milliseconds. So a step ahead is
//! held against a node only once the others were looked at, too; until then none of its votes counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::domain::drift_ms;

/// A clock step up to this much, ms, is inside the drift that a lease of the default ttl allows for.
const STEP_BUDGET_TTL_MS: u64 = 30_000;
/// How long the others are waited for before a step is held against those that show it.
const PATIENCE: Duration = Duration::from_secs(1);
/// By how much steps may differ that are taken for one, ms: what drifts meanwhile, and rounding.
const SAME_MS: i64 = 20;
/// A sight less sharp than this, ms, does not show that a clock has not stepped.
const SHARP_MS: i64 = 60;
/// Time that the machine slept, µs, is heeded from here on. Less is noise of two clocks that are read in turn.
const SLEPT_US_MIN: u64 = 20_000;

/// What an answer says about the clock of its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sight {
    /// It runs like ours.
    Steady,
    /// It went back.
    Behind,
    /// It went ahead, or ours stood still.
    Ahead,
}

/// What came of a step.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// This server stood still.
    StoodStill(Duration),
    /// The clocks of these nodes stepped.
    Stepped(Vec<usize>),
}

/// The clocks of all listed nodes.
pub struct ClockWatch {
    state: Mutex<State>,
    /// As in the state.
    slept_us: AtomicU64,
    wakes: Vec<Arc<Notify>>,
}

struct State {
    start: Instant,
    nodes: Vec<Option<Baseline>>,
    suspicion: Option<Suspicion>,
    /// How long the machine slept, µs; how much of it before the last time, and when that was noticed.
    slept_us: u64,
    slept_before_us: u64,
    woke_at: Instant,
    /// How long this server stood still in all.
    stood_still: Duration,
}

/// Some clock went ahead, and it is open whose.
struct Suspicion {
    since: Instant,
    /// By how much at least and at most, ms; of those looked at since then.
    steps: Vec<Option<(i64, i64)>>,
    /// Nodes that showed a step, and nodes that do not answer, one bit each.
    stepped: u64,
    silent: u64,
}

impl ClockWatch {
    /// Of so many nodes.
    pub fn new(nodes: usize, now: Instant) -> Self {
        let state = State {
            start: now,
            nodes: vec![None; nodes],
            suspicion: None,
            slept_us: 0,
            slept_before_us: 0,
            woke_at: now,
            stood_still: Duration::ZERO,
        };
        Self {
            state: Mutex::new(state),
            slept_us: 0.into(),
            wakes: (0..nodes).map(|_| Arc::default()).collect(),
        }
    }

    /// How many are listed.
    pub(super) fn nodes(&self) -> usize {
        self.wakes.len()
    }

    /// Wakes whoever looks after node `i`.
    pub(super) fn wake(&self, i: usize) -> &Arc<Notify> {
        &self.wakes[i]
    }

    /// How long this server stood still since it began: what was believed before is over that much sooner.
    pub fn stood_still(&self) -> Duration {
        self.state.lock().stood_still
    }

    /// Asks how long the machine has slept in all, µs, which our clock does not count. True where that is news.
    pub(super) fn has_slept(&self, slept_us: impl Fn() -> u64, now: Instant) -> bool {
        let heeded_us = self.slept_us.load(Ordering::Relaxed) + SLEPT_US_MIN;
        // Whoever has to wait between the two clocks that this is read from reads too much.
        if slept_us() < heeded_us || slept_us() < heeded_us {
            return false;
        }
        let (mut state, slept_us) = (self.state.lock(), slept_us());
        let before_us = self.slept_us.swap(slept_us, Ordering::Relaxed);
        state.stood_still += Duration::from_micros(slept_us.saturating_sub(before_us));
        (state.slept_before_us, state.slept_us, state.woke_at) = (before_us, slept_us, now);
        true
    }

    /// Node `i` said that its clock shows `node_ms`, in an answer to what was sent at `sent_at` and took so long.
    pub(super) fn saw(&self, i: usize, sent_at: Instant, took: Duration, node_ms: u64) -> Sight {
        let mut state = self.state.lock();
        let us = |at: Instant, slept_us: u64| {
            at.saturating_duration_since(state.start).as_micros() as i64 + slept_us as i64
        };
        let slept_us = if sent_at < state.woke_at { state.slept_before_us } else { state.slept_us };
        let (from_us, to_us) = (us(sent_at, slept_us), us(sent_at + took, state.slept_us));
        let seen = Baseline { from_us, to_us, node_ms };
        let Some(baseline) = &mut state.nodes[i] else {
            state.nodes[i] = Some(seen);
            return Sight::Steady;
        };
        let ahead_ms = baseline.ahead_ms(&seen);
        let stepped = baseline.observe(seen);
        let is_ahead = stepped && ahead_ms.0 > 0;
        if is_ahead {
            let nodes = state.nodes.len();
            let suspicion = state.suspicion.get_or_insert_with(|| Suspicion {
                since: sent_at + took,
                steps: vec![None; nodes],
                stepped: 0,
                silent: 0,
            });
            suspicion.stepped |= 1 << i;
        }
        if let Some(suspicion) = &mut state.suspicion {
            let is_sharp = ahead_ms.1 - ahead_ms.0 <= SHARP_MS;
            suspicion.silent &= !(1 << i);
            // However blunt the sight of a step: those that follow compare with it, and show none.
            if suspicion.steps[i].is_none() && (is_ahead || is_sharp && sent_at >= suspicion.since) {
                suspicion.steps[i] = Some(ahead_ms);
            }
        }
        match stepped {
            false => Sight::Steady,
            true if is_ahead => Sight::Ahead,
            true => Sight::Behind,
        }
    }

    /// Node `i` does not answer.
    pub(super) fn silent(&self, i: usize) {
        if let Some(suspicion) = &mut self.state.lock().suspicion {
            suspicion.silent |= 1 << i;
        }
    }

    /// Whether it is open if the clock of node `i` stepped.
    pub(super) fn is_suspected(&self, i: usize) -> bool {
        self.state.lock().suspicion.as_ref().is_some_and(|suspicion| suspicion.stepped & (1 << i) != 0)
    }

    /// What came of a step, once that is known: this server stood still if `quorum` nodes, more than one, and all
    /// others that answer went ahead by the same time.
    pub(super) fn decide(&self, quorum: usize, now: Instant) -> Option<Outcome> {
        let mut state = self.state.lock();
        let suspicion = state.suspicion.as_ref()?;
        let nodes = state.nodes.len();
        let answers = |i: usize| suspicion.silent & (1 << i) == 0;
        let is_known = (0..nodes).filter(|&i| answers(i)).all(|i| suspicion.steps[i].is_some());
        if !is_known && now < suspicion.since + PATIENCE {
            return None;
        }
        let steps: Vec<(i64, i64)> = suspicion.steps.iter().flatten().copied().collect();
        let least = steps.iter().map(|step| step.0).max().unwrap_or(0);
        let most = steps.iter().map(|step| step.1).min().unwrap_or(0);
        let is_common = is_known && steps.len() >= quorum.max(2) && least <= most + SAME_MS;
        let outcome = if is_common {
            // Rather too much than too little.
            let longest = steps.iter().map(|step| step.1).max().unwrap_or(0);
            Outcome::StoodStill(Duration::from_millis(longest.max(0) as u64))
        } else {
            Outcome::Stepped((0..nodes).filter(|i| suspicion.stepped & (1 << i) != 0).collect())
        };
        state.suspicion = None;
        if let Outcome::StoodStill(by) = outcome {
            state.stood_still += by;
            state.nodes.fill(None);
        }
        drop(state);
        self.wakes.iter().for_each(|wake| wake.notify_one());
        Some(outcome)
    }
}

/// What a node's clock was against ours: when its clock said `node_ms`, ours was in between.
#[derive(Debug, Clone, Copy)]
struct Baseline {
    /// µs since the watch began, like the next.
    from_us: i64,
    to_us: i64,
    node_ms: u64,
}

impl Baseline {
    /// By how much the node's clock went ahead of ours from here to a later sight, ms: at least, and at most. An
    /// answer may have been made at any moment between its request and its arrival.
    fn ahead_ms(&self, seen: &Self) -> (i64, i64) {
        let node_elapsed = (seen.node_ms as i64).saturating_sub(self.node_ms as i64);
        let longest = (seen.to_us - self.from_us).max(0) / 1000 + 1;
        let shortest = (seen.from_us - self.to_us).max(0) / 1000 - 1;
        (node_elapsed.saturating_sub(longest), node_elapsed.saturating_sub(shortest))
    }

    /// Takes a later sight in; true where the clock stepped between the two. Rates may differ by the drift allowance.
    fn observe(&mut self, seen: Self) -> bool {
        let (least, most) = self.ahead_ms(&seen);
        let budget = drift_ms(STEP_BUDGET_TTL_MS) as i64 + (seen.to_us - self.from_us).max(0) / 100_000;
        let stepped = least > budget || most < -budget;
        // The tightest recent sight is the best base; an old one lets slow drift add up.
        let width = |sight: &Self| sight.to_us - sight.from_us;
        if stepped || width(&seen) <= width(self) || seen.from_us - self.to_us > 5_000_000 {
            *self = seen;
        }
        stepped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sight(sent_ms: i64, took_ms: i64, node_ms: u64) -> Baseline {
        Baseline { from_us: sent_ms * 1000, to_us: (sent_ms + took_ms) * 1000, node_ms }
    }

    #[test]
    fn a_clock_that_runs_alike_has_not_stepped() {
        let mut baseline = sight(0, 1, 1_000_000);
        for second in 1..100 {
            let node_ms = (1_000_000 + second * 1000 + second / 2) as u64;
            assert!(!baseline.observe(sight(second * 1000, 2, node_ms)));
        }
    }

    #[test]
    fn a_slow_answer_is_no_clock_step() {
        let mut baseline = sight(0, 1, 1_000_000);
        assert!(!baseline.observe(sight(10, 60_000, 1_030_000)));
    }

    #[test]
    fn a_step_in_either_direction_is_seen() {
        for step in [-60_000_i64, -500, 500, 60_000] {
            let mut baseline = sight(0, 1, 1_000_000);
            let node_ms = (1_001_000 + step) as u64;
            assert!(baseline.observe(sight(1000, 1, node_ms)), "{step}");
        }
    }

    const MS: Duration = Duration::from_millis(1);

    /// Three nodes that are a second old, whose clocks then are ahead by this much, where they answer.
    fn after(steps: [Option<u64>; 3]) -> Option<Outcome> {
        let start = Instant::now();
        let (watch, later) = (ClockWatch::new(3, start), start + 1000 * MS);
        (0..3).for_each(|i| assert_eq!(watch.saw(i, start, MS, 50_000), Sight::Steady));
        for (i, step) in steps.into_iter().enumerate() {
            match step {
                Some(step) => {
                    let sight = watch.saw(i, later + (3 * i as u32) * MS, MS, 51_000 + 3 * i as u64 + step);
                    assert_eq!(sight == Sight::Steady, step < 300, "{i}");
                }
                None => watch.silent(i),
            }
        }
        watch.decide(2, later + 10 * MS).inspect(|_| assert_eq!(watch.decide(2, later), None))
    }

    #[test]
    fn nodes_that_went_ahead_by_the_same_time_have_not_stepped() {
        let stood_still = |steps| match after(steps) {
            Some(Outcome::StoodStill(by)) => by.as_millis() as u64,
            other => panic!("{other:?}"),
        };
        assert!((800..810).contains(&stood_still([Some(800), Some(801), Some(799)])));
        assert!((60_000..60_010).contains(&stood_still([Some(60_000), Some(60_000), None])));
    }

    #[test]
    fn a_step_is_held_against_those_that_show_it_unless_all_do_by_the_same_time() {
        assert_eq!(after([Some(800), Some(0), Some(0)]), Some(Outcome::Stepped(vec![0])));
        assert_eq!(after([Some(800), Some(800), Some(0)]), Some(Outcome::Stepped(vec![0, 1])));
        assert_eq!(after([Some(800), Some(900), Some(800)]), Some(Outcome::Stepped(vec![0, 1, 2])));
        assert_eq!(after([Some(0), Some(0), Some(0)]), None);
    }

    /// Two leases of a name were valid at once: the second granted by a quorum with a node that stepped while it hung.
    #[test]
    fn a_step_that_a_late_answer_tells_of_is_held_against_its_node() {
        let start = Instant::now();
        let (watch, later) = (ClockWatch::new(3, start), start + 1000 * MS);
        (0..3).for_each(|i| assert_eq!(watch.saw(i, start, MS, 50_000), Sight::Steady));
        assert_eq!(watch.saw(0, later, 150 * MS, 51_150 + 3500), Sight::Ahead);
        for after_ms in [160, 170] {
            let node_ms = 51_000 + u64::from(after_ms);
            assert_eq!(watch.saw(0, later + after_ms * MS, MS, node_ms + 3500), Sight::Steady);
            (1..3).for_each(|i| assert_eq!(watch.saw(i, later + after_ms * MS, MS, node_ms), Sight::Steady));
        }
        assert_eq!(watch.decide(2, later + 180 * MS), Some(Outcome::Stepped(vec![0])));
    }

    #[test]
    fn a_node_that_is_not_heard_of_is_waited_for_and_then_the_step_is_one() {
        let start = Instant::now();
        let (watch, later) = (ClockWatch::new(2, start), start + 1000 * MS);
        (0..2).for_each(|i| assert_eq!(watch.saw(i, start, MS, 50_000), Sight::Steady));
        assert_eq!(watch.saw(0, later, MS, 52_000), Sight::Ahead);
        assert_eq!(watch.decide(2, later + 900 * MS), None);
        assert!(watch.is_suspected(0) && !watch.is_suspected(1));
        assert_eq!(watch.decide(2, later + 1100 * MS), Some(Outcome::Stepped(vec![0])));
        assert!(!watch.is_suspected(0));
    }

    #[test]
    fn while_the_machine_sleeps_the_clocks_of_nodes_do_not_step() {
        let start = Instant::now();
        let watch = ClockWatch::new(1, start);
        assert_eq!(watch.saw(0, start, MS, 50_000), Sight::Steady);
        assert!(watch.has_slept(|| 60_000_000, start + 1000 * MS));
        assert!(!watch.has_slept(|| 60_001_000, start + 1000 * MS));
        // Answered before it slept, and afterwards.
        assert_eq!(watch.saw(0, start + 999 * MS, 2 * MS, 50_999), Sight::Steady);
        assert_eq!(watch.saw(0, start + 1002 * MS, MS, 111_002), Sight::Steady);
        assert_eq!(watch.stood_still(), Duration::from_secs(60));
    }
}
