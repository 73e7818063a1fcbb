//! What happened, in order: a hash to compare two runs of a seed, and a log for people.

use std::hash::{DefaultHasher, Hash, Hasher};

/// The record of one run.
pub struct History {
    hasher: DefaultHasher,
    /// Entries so far.
    pub count: u64,
    /// Whether entries are printed too.
    pub printed: bool,
}

impl History {
    pub fn new(printed: bool) -> Self {
        Self { hasher: DefaultHasher::new(), count: 0, printed }
    }

    /// Adds an entry; `text` is only made for people, everything that counts is in `what`.
    pub fn note(&mut self, ms: u64, what: (&'static str, [u64; 3]), text: impl FnOnce() -> String) {
        self.count += 1;
        (ms, what).hash(&mut self.hasher);
        if self.printed {
            println!("{:>6}.{:03}  {:<12} {}", ms / 1000, ms % 1000, what.0, text());
        }
    }

    /// The same for the same run.
    pub fn hash(&self) -> u64 {
        self.hasher.finish()
    }
}
