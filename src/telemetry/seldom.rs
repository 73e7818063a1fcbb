//! Log lines that would come with every request, or every vote, while something is down: one in a while,
//! with a count of those that were not written. The log must neither fill nor stay silent.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// Between two lines about the same thing.
const EVERY: Duration = Duration::from_secs(10);

/// Lines about one thing.
pub struct Seldom {
    since: Instant,
    /// When the next line may be written, ms since `since`.
    next_ms: AtomicU64,
    /// How many were not written since the last one.
    unsaid: AtomicU64,
}

impl Seldom {
    /// None written yet.
    pub fn new(now: Instant) -> Self {
        Self { since: now, next_ms: AtomicU64::new(0), unsaid: AtomicU64::new(0) }
    }

    /// It happened: the caller writes a line if this is the time for one, with how many were not written
    /// since the last. Else it is counted.
    pub fn line(&self, now: Instant) -> Option<u64> {
        if self.takes_turn(now) {
            return Some(self.unsaid.swap(0, Ordering::Relaxed));
        }
        self.unsaid.fetch_add(1, Ordering::Relaxed);
        None
    }

    /// How many were not written, where some were and it is time to say so.
    pub fn overdue(&self, now: Instant) -> Option<u64> {
        let due = self.unsaid.load(Ordering::Relaxed) > 0 && self.takes_turn(now);
        due.then(|| self.unsaid.swap(0, Ordering::Relaxed))
    }

    /// Whether it is time for a line, which the caller then writes.
    fn takes_turn(&self, now: Instant) -> bool {
        let now_ms = now.saturating_duration_since(self.since).as_millis() as u64;
        let due = self.next_ms.load(Ordering::Relaxed);
        let next = now_ms + EVERY.as_millis() as u64;
        now_ms >= due
            && self.next_ms.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_line_in_ten_seconds_that_counts_the_others() {
        let started = Instant::now();
        let seldom = Seldom::new(started);
        let told = |ms| seldom.line(started + Duration::from_millis(ms)).map(|unsaid| (ms, unsaid));
        let told: Vec<_> = [0, 0, 1, 9_999, 10_000, 10_001, 60_000].into_iter().filter_map(told).collect();
        assert_eq!(told, [(0, 0), (10_000, 3), (60_000, 1)]);
    }

    #[test]
    fn what_was_held_back_is_told_once_it_is_time() {
        let started = Instant::now();
        let seldom = Seldom::new(started);
        let at = |ms| started + Duration::from_millis(ms);
        assert_eq!(seldom.overdue(at(0)), None, "nothing was");
        assert_eq!((seldom.line(at(0)), seldom.line(at(1))), (Some(0), None));
        let told: Vec<_> = [9_999, 10_000, 30_000].into_iter().map(|ms| seldom.overdue(at(ms))).collect();
        assert_eq!(told, [None, Some(1), None]);
    }
}
