//! The right to grant leases of a class (docs/protocol.md §4.6): recorded at a quorum before the first such lease, so
//! that whoever waits for leases that a node may have forgotten knows for how long.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::super::Engine;
use crate::domain::drift_ms;

/// The classes, ms. A server's own limit is one, too.
const CLASSES_MS: [u64; 7] = [30_000, 60_000, 300_000, 900_000, 3_600_000, 21_600_000, 86_400_000];

/// The rights that this server has.
#[derive(Default)]
pub struct Rights {
    /// By class: in which membership, and until when.
    held: Mutex<BTreeMap<u64, (u64, Instant)>>,
    one_at_a_time: tokio::sync::Mutex<()>,
}

impl Engine {
    /// The class of a lease that lives for so long, ms.
    fn class_of(&self, ttl_ms: u64) -> u64 {
        let class = CLASSES_MS.into_iter().find(|class| *class >= ttl_ms).unwrap_or(ttl_ms);
        class.min(self.options.max_ttl_ms.max(ttl_ms))
    }

    /// Whether leases of `ttl_ms` may be granted now, and the right to it is not about to be renewed.
    pub(in crate::quorum) fn has_right(&self, ttl_ms: u64) -> bool {
        // In the second half of its time it is renewed by whoever comes first.
        self.has(self.class_of(ttl_ms), true)
    }

    /// Whether that class, or a longer one, has been recorded; and lasts for half of its own time at least.
    fn has(&self, class_ms: u64, for_long: bool) -> bool {
        let (generation, now) = (self.electorate.generation(), self.clock.now());
        self.rights.held.lock().range(class_ms..).any(|(class_ms, (of, until))| {
            let least = Duration::from_millis(if for_long { class_ms / 2 } else { 0 });
            *of == generation && *until >= now + least
        })
    }

    /// Records the right to grant leases of `ttl_ms`. Whether there is one then.
    pub(in crate::quorum) async fn gain_right(&self, ttl_ms: u64) -> bool {
        let class = self.class_of(ttl_ms);
        let _guard = match self.rights.one_at_a_time.try_lock() {
            Ok(guard) => guard,
            // While somebody else renews it the others go on.
            Err(_) if self.has(class, false) => return true,
            Err(_) => self.rights.one_at_a_time.lock().await,
        };
        if self.has(class, true) {
            return true;
        }
        let (electorate, now) = (self.electorate.now(), self.clock.now());
        // A lease of the last moment outlives the right by its ttl.
        let for_ms = 2 * class + drift_ms(2 * class) + 1000;
        let mut answers: FuturesUnordered<_> =
            self.seats().map(|(_, member)| member.record_class(class, for_ms)).collect();
        let mut recorded = 0;
        while recorded < electorate.quorum() {
            match answers.next().await {
                Some(answer) => recorded += usize::from(matches!(answer, Ok(true))),
                None => break,
            }
        }
        if recorded >= electorate.quorum() && self.electorate.is_still(&electorate) {
            let until = now + Duration::from_millis(class);
            self.rights.held.lock().insert(class, (electorate.generation, until));
            self.board.lock().gained(class);
        }
        self.has(class, false)
    }
}
