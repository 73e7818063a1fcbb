//! Text that callers attach to leases and requests: owner, metadata, candidate, value, reason, request id.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Invalid, is_name_byte};

/// Declares a text that is checked once, by rules each of which says what it demands.
macro_rules! text {
    ($(#[$doc:meta])* $type:ident: $($rule:expr, $why:literal);+) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $type(Box<str>);

        impl $type {
            /// Checks and takes the text.
            ///
            /// # Errors
            /// Says which rule it breaks.
            pub fn new(text: &str) -> Result<Self, Invalid> {
                $({
                    let fits: fn(&str) -> bool = $rule;
                    if !fits(text) {
                        return Err(Invalid::new($why));
                    }
                })+
                Ok(Self(text.into()))
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
    };
}

text! {
    /// Who holds a lease, as told by the holder: at most 128 characters, shown to all who may inspect.
    Owner: |text| text.chars().count() <= 128, "must be at most 128 characters long"
}
text! {
    /// Who campaigns in an election: 1 to 128 characters.
    Candidate: |text| (1..=128).contains(&text.chars().count()), "must be 1 to 128 characters long"
}
text! {
    /// What a leader proclaims: at most 1024 characters, e.g. an address.
    Value: |text| text.chars().count() <= 1024, "must be at most 1024 characters long"
}
text! {
    /// Why a lease was taken from its holder: 1 to 200 characters of one line, for the log. It has none that a terminal
    /// would obey.
    Reason: |text| (1..=200).contains(&text.chars().count()), "must be 1 to 200 characters long";
        |text| !text.chars().any(|letter| letter.is_control() || is_format(letter)),
            "must not hold line breaks, control or formatting characters"
}
text! {
    /// A caller's own id of a request, which makes its retry safe.
    RequestId: |text| (8..=128).contains(&text.len()), "must be 8 to 128 characters long";
        |text| text.bytes().all(is_name_byte), "may hold only A-Z a-z 0-9 . _ ~ : @ and -"
}

/// Line separators, and marks that turn the direction of text around or cannot be seen.
fn is_format(letter: char) -> bool {
    matches!(letter, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
}

/// A flat map of strings shown beside the owner: at most 16 entries and 1 KiB in all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Metadata(BTreeMap<String, String>);

impl Metadata {
    /// Checks and takes a map.
    ///
    /// # Errors
    /// When it has more than 16 entries or more than 1024 bytes of keys and values.
    pub fn new(map: BTreeMap<String, String>) -> Result<Self, Invalid> {
        if map.len() > 16 {
            return Err(Invalid::new("may have at most 16 entries"));
        }
        if map.iter().map(|(k, v)| k.len() + v.len()).sum::<usize>() > 1024 {
            return Err(Invalid::new("may have at most 1024 bytes in all"));
        }
        Ok(Self(map))
    }

    /// Whether nothing is attached.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_one_line_that_shows_what_it_says() {
        for good in ["its host is gone", "x", &"ü".repeat(200)] {
            assert!(Reason::new(good).is_ok(), "{good}");
        }
        for bad in ["", "a\nb", "a\u{202e}b", "\u{1b}[2J", "a\u{200b}", &"x".repeat(201)] {
            assert!(Reason::new(bad).is_err(), "{bad:?}");
        }
    }
}
