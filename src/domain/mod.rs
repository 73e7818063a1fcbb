//! Pure types that cannot hold a bad value: names, ids, tokens, durations.
//!
//! Nothing here does I/O, reads a clock or knows of HTTP or Redis. Every type
//! that comes from outside is made by a fallible constructor that says which
//! rule was broken, so that the layers above never check twice.

mod holding;
mod ids;
mod keys;
mod labels;
mod membership;
mod name;
mod named;
mod primitive;
mod scope;
mod standing;
mod terms;
mod ttl;
mod version;

pub use holding::{Entry, Holding, Sharing, Survey};
pub use ids::{LeaseHandle, LeaseId, Token};
pub use keys::Keys;
pub use labels::{Candidate, Metadata, Owner, Reason, RequestId, Value};
pub use membership::{ChosenBy, MemberEntry, Membership, Role, Stage};
pub use name::Name;
pub(crate) use named::named;
pub use primitive::{Nodes, Primitive, Resource};
pub use scope::Scope;
pub use standing::{KEEP_MS_MAX, QueueId, STANDING_LIFE_MS, Standing, Want};
pub use terms::{Ask, Mode, Renewal};
pub use ttl::{LOCK_DELAY_MS_MAX, MAX_HOLD_MS_MAX, TTL_MS_MAX, drift_ms, validity_ms};
pub use version::Version;

use sha2::{Digest as _, Sha256};

/// Why a value from outside was refused: one sentence, fit to be shown to the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(pub std::borrow::Cow<'static, str>);

impl Invalid {
    pub(crate) const fn new(why: &'static str) -> Self {
        Self(std::borrow::Cow::Borrowed(why))
    }
}

/// What is wrong with a file in TOML, and where, without what stands there: it may be a secret.
pub(crate) fn wrong_toml(text: &str, cause: &toml::de::Error) -> String {
    let before = cause.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let message = cause.message().trim().replace('\n', "; ");
    // Of what is in quotes some is a value.
    let words: Vec<&str> = message.split('"').step_by(2).collect();
    format!("line {line}: {}", words.join("…"))
}

/// Why a connection failed, in words that tell what to do where TLS has but a name for it.
pub(crate) fn of_connecting(cause: &str) -> String {
    cause.replace(
        "Other(OtherError(CaUsedAsEndEntity))",
        "it is that of an authority (CA:TRUE), which is none for a server: let it sign one, or make one with \
         basicConstraints=CA:FALSE",
    )
}

/// The password in a file's text. Editors end files with a newline; no password does.
pub(crate) fn password_of(text: &str) -> Option<&str> {
    Some(text.trim_end_matches(['\r', '\n'])).filter(|password| !password.is_empty())
}

/// A digest of these texts that depends neither on their order nor on who computes it.
pub(crate) fn digest_of_set<'a>(texts: impl IntoIterator<Item = &'a str>) -> [u8; 32] {
    let mut texts: Vec<&str> = texts.into_iter().collect();
    texts.sort_unstable();
    let mut hash = Sha256::new();
    for text in texts {
        hash.update(text);
        hash.update([0]);
    }
    hash.finalize().into()
}

/// Letters of names and request ids: no escaping in a URL, none in a Redis key.
pub(crate) fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'~' | b':' | b'@' | b'-')
}
