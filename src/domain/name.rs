//! Names of locks, semaphores, elections and fences.

use serde::Serialize;

use super::{Invalid, is_name_byte};

/// A resource name: 1–200 characters of `A–Z a–z 0–9 . _ ~ : @ -`, and neither `.` nor `..`.
///
/// The alphabet needs no escaping in a URL path, in a Redis key or in a glob,
/// so a name is the same string everywhere.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Name(Box<str>);

impl Name {
    /// The longest name, in characters (all ASCII, so bytes too).
    pub const MAX_LEN: usize = 200;

    /// Checks and takes a name.
    ///
    /// # Errors
    /// Says which rule the text breaks.
    pub fn new(text: &str) -> Result<Self, Invalid> {
        if text.is_empty() || text.len() > Self::MAX_LEN {
            return Err(Invalid::new("must be 1 to 200 characters long"));
        }
        if !text.bytes().all(is_name_byte) {
            return Err(Invalid::new("may hold only A-Z a-z 0-9 . _ ~ : @ and -"));
        }
        if text == "." || text == ".." {
            return Err(Invalid::new("must not be . or .."));
        }
        Ok(Self(text.into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether `text` may be the beginning of a name (an empty prefix is every name's).
    pub fn is_prefix(text: &str) -> bool {
        text.len() <= Self::MAX_LEN && text.bytes().all(is_name_byte)
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_to_its_alphabet_and_length() {
        for good in ["a", "orders:42:payment", "A.b_c~d@e-f", "...", &"x".repeat(200)] {
            assert!(Name::new(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "a b", "ü", "a\n", "a*", "a?b", &"x".repeat(201)] {
            assert!(Name::new(bad).is_err(), "{bad}");
        }
    }
}
