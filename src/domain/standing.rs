//! Where the first waiter of a server stands in the queue of servers at the nodes (docs/protocol.md §5).

use std::fmt;

/// How long an entry lives at the nodes after it was written last, ms.
pub const STANDING_LIFE_MS: u64 = 3000;
/// The longest time that a free record is kept for an entry, ms.
pub const KEEP_MS_MAX: u64 = 50;

/// An entry of the queue of servers that wait for the same record: a hint. No promise about holders rests on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// When the oldest waiter arrived, µs by the clocks of the nodes as its server knows them. With the queue it
    /// makes one order for all records at all nodes.
    pub arrived_us: u64,
    /// Which queue of which server.
    pub queue: QueueId,
    /// When the entry lapses unless it is written again, ms from now.
    pub life_ms: u64,
    /// How long a free record is kept for it, ms.
    pub keep_ms: u64,
    /// What it wants.
    pub want: Want,
    /// Of a semaphore, it wants slots below this.
    pub limit: u32,
    /// When the next waiter of the same queue arrived, µs, and what that wants: it takes the entry over once this
    /// one is granted.
    pub next: Option<(u64, Want)>,
}

/// What a waiter wants.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Want {
    /// One record or slot.
    #[default]
    One,
    /// Several, which are kept for it one by one until it has them all.
    Several,
    /// A record, beside others who want the same.
    Shared,
}

impl Standing {
    /// Of an acquire that does not wait: it comes after all but its own queue.
    pub fn passing(queue: QueueId, limit: u32) -> Self {
        Self { arrived_us: 0, queue, life_ms: 0, keep_ms: 0, want: Want::One, limit, next: None }
    }
}

/// A queue of waiters at one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct QueueId(u64);

impl QueueId {
    /// Of those who name the same limit at the server with these random bits.
    pub fn new(server: u64, limit: u32) -> Self {
        Self((server << 16) | u64::from(limit & 0xffff))
    }

    /// Whether a message of a node names it: queues by their ids, with a space between them.
    pub fn is_named(self, message: &str) -> bool {
        let id = self.to_string();
        message.split(' ').any(|named| named == id)
    }
}

impl fmt::Display for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// As queue.lua reads it.
impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { arrived_us, queue, life_ms, keep_ms, limit, .. } = self;
        let (next_us, next_want) = self.next.unwrap_or_default();
        let [want, next_want] = [self.want, next_want].map(|want| want as u8);
        write!(f, "{arrived_us:016} {queue} {life_ms} {keep_ms} {want} {limit} {next_us:016} {next_want}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standing_reads_as_the_script_wants_it_and_is_found_in_a_message() {
        let queue = QueueId::new(0xab, 10);
        let standing = Standing {
            arrived_us: 1_790_000_000_000_000,
            queue,
            life_ms: 3000,
            keep_ms: 12,
            want: Want::Several,
            limit: 10,
            next: None,
        };
        assert_eq!(standing.to_string(), "1790000000000000 ab000a 3000 12 1 10 0000000000000000 0");
        let next =
            Standing { next: Some((1_790_000_000_000_001, Want::Shared)), want: Want::One, ..standing };
        assert_eq!(next.to_string(), "1790000000000000 ab000a 3000 12 0 10 1790000000000001 2");
        assert!(queue.is_named("1 ab000a") && !queue.is_named("1 ab000b") && !queue.is_named(""));
    }
}
