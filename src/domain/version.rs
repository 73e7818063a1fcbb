//! Which of two copies of what is stored with a lease is the later one.

use std::fmt;

/// The version of the data of one lease: of two copies the one of the greater version is the later one. All servers
/// and nodes order any two of them the same way, so that all end up with the same copy, whatever each of them missed.
///
/// Whoever replaces data that a quorum stores has read its version before and draws a greater one, from the source
/// of the fencing tokens. Its last 16 bits are random, and tell those apart who replace the same data at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(u64);

impl Version {
    /// The greatest number that JSON and Redis' Lua hold exactly.
    const MAX: u64 = (1 << 53) - 1;
    const RANDOM: u64 = 0xffff;

    /// The version of this number as a node stores it; the first one's is 0.
    pub fn new(number: u64) -> Self {
        Self(number.min(Self::MAX))
    }

    /// As a node stores it.
    pub fn get(self) -> u64 {
        self.0
    }

    /// One that replaces this: about the token `proposed`, and greater than this one.
    #[must_use]
    pub fn next(self, proposed: u64, random_bits: u128) -> Self {
        let least = self.0 + Self::RANDOM + 1;
        Self::new((proposed.max(least) & !Self::RANDOM) + (random_bits as u64 & Self::RANDOM))
    }
}

/// Short, and different for each version.
impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_version_is_greater_whatever_the_clock_and_chance_say() {
        let first = Version::default();
        for before in [first, Version::new(1), Version::new(0xffff), Version::new(1_790_000_000_123_456)] {
            for proposed in [0, 1, before.get(), before.get() + 70_000] {
                for bits in [0, 1, 0xffff, u128::MAX] {
                    let next = before.next(proposed, bits);
                    assert!(next > before && next.get() + 0xffff >= proposed, "{before} {proposed} {bits}");
                    assert_ne!(next.to_string(), before.to_string());
                }
            }
        }
    }

    #[test]
    fn two_that_replace_the_same_at_once_differ_by_chance() {
        let before = Version::new(7 << 16);
        assert_ne!(before.next(1 << 40, 1), before.next(1 << 40, 2));
    }
}
