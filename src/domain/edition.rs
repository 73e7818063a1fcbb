//! Which of two copies of what is stored with a lease is the later one.

use std::fmt;

/// Digits of each part of the stored form.
const DIGITS: usize = 16;
/// What fits into a part.
const PART_MAX: u64 = 10_u64.pow(DIGITS as u32) - 1;

/// An edition of the data of one lease. All servers and nodes order any two of them the same way, so
/// that all end up with the same copy, whatever each of them missed.
///
/// Whoever replaces data that a quorum stores has read it before and counts on from it. Those who
/// replace the same data at once are told apart by when they began and, within a microsecond, by 53
/// random bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Edition {
    count: u64,
    began_us: u64,
    chance: u64,
}

impl Edition {
    /// Length of the stored form, which data begins with that replaced other. `record.lua` knows it.
    pub const LEN: usize = 3 * DIGITS;

    /// The one that replaces this.
    #[must_use]
    pub fn next(self, began_us: u64, random_bits: u128) -> Self {
        Self {
            count: (self.count + 1).min(PART_MAX),
            began_us: began_us.min(PART_MAX),
            chance: (random_bits % u128::from(PART_MAX)) as u64,
        }
    }

    /// The edition of stored data, and what comes behind it. The first edition has no form.
    pub fn split(data: &str) -> (Self, &str) {
        let read = || {
            let (digits, rest) = data.split_at_checked(Self::LEN)?;
            let part = |i: usize| {
                let part = digits.get(i * DIGITS..(i + 1) * DIGITS)?;
                part.bytes().all(|byte| byte.is_ascii_digit()).then(|| part.parse().ok())?
            };
            Some((Self { count: part(0)?, began_us: part(1)?, chance: part(2)? }, rest))
        };
        // Cheap where it is the first, as mostly it is.
        if data.starts_with(|letter: char| letter.is_ascii_digit()) {
            read().unwrap_or((Self::default(), data))
        } else {
            (Self::default(), data)
        }
    }

    /// The stored form with `rest` behind it.
    pub fn join(self, rest: String) -> String {
        if self == Self::default() {
            return rest;
        }
        format!("{:0DIGITS$}{:0DIGITS$}{:0DIGITS$}{rest}", self.count, self.began_us, self.chance)
    }
}

/// Short, and different for each edition.
impl fmt::Display for Edition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.count)?;
        if *self == Self::default() { Ok(()) } else { write!(f, "-{:x}-{:x}", self.began_us, self.chance) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn editions_are_ordered_by_count_then_by_beginning_then_by_chance() {
        let first = Edition::default();
        let second = first.next(5, 5);
        for (earlier, later) in [
            (first, second),
            (first.next(5, 5), first.next(6, 0)),
            (first.next(5, 5), first.next(5, 6)),
            (first.next(u64::MAX, u128::MAX), second.next(0, 0)),
        ] {
            assert!(earlier < later, "{earlier:?} {later:?}");
            let (stored, as_stored) = (earlier.join(String::new()), later.join(String::new()));
            assert!(stored < as_stored, "nodes compare the text: {stored} {as_stored}");
            assert_ne!(earlier.to_string(), later.to_string());
        }
    }

    #[test]
    fn an_edition_is_read_back_from_the_data_it_stands_before() {
        let first = Edition::default();
        let largest = Edition { count: PART_MAX, began_us: PART_MAX, chance: PART_MAX };
        for edition in [first, first.next(1, 2), first.next(u64::MAX, u128::MAX), largest, largest.next(1, 1)]
        {
            for rest in ["", "{}", "7", "ü", "{\"v\":\"ü\"}"] {
                assert_eq!(Edition::split(&edition.join(rest.to_owned())), (edition, rest));
            }
        }
        assert_eq!(first.join("{}".to_owned()), "{}");
    }

    #[test]
    fn what_is_no_edition_is_the_first() {
        let short = "1".repeat(Edition::LEN - 1);
        for data in [short.as_str(), &format!("{short}x"), &format!("{short}ü"), "+1", "1", "", "ü"] {
            assert_eq!(Edition::split(data), (Edition::default(), data));
        }
    }
}
