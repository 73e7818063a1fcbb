//! API keys: who may do what to which names.
//!
//! The server stores SHA-256 of each secret, never the secret. Secrets are 256 random bits, so
//! that a plain hash is enough: there is nothing to guess, and looking a key up costs a microsecond.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::domain::{Name, named, wrong_toml};

named! {
    /// What a key may do. Its name is what the key file and the command line write.
    pub enum Scope {
        /// Every GET.
        Read = "read",
        /// Acquire, extend, release, campaign, issue, check: every POST.
        Lock = "lock",
        /// Force release: every DELETE.
        Admin = "admin",
    }
}

/// A key as the server knows it.
#[derive(Debug)]
pub struct Key {
    name: String,
    sha256: [u8; 32],
    scopes: Vec<Scope>,
    /// `None`: all names.
    prefixes: Option<Vec<String>>,
}

impl Key {
    /// Its name in the key file, for logs.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it may do.
    pub fn scopes(&self) -> impl Iterator<Item = Scope> {
        Scope::ALL.into_iter().filter(|&scope| self.has(scope))
    }

    /// What the names begin with that it may touch; `None`: all names.
    pub fn prefixes(&self) -> Option<&[String]> {
        self.prefixes.as_deref()
    }

    /// Whether it has `scope`.
    pub fn has(&self, scope: Scope) -> bool {
        self.scopes.contains(&scope)
    }

    /// Whether it may touch the name `text`, or all names that begin with it.
    pub fn covers(&self, text: &str) -> bool {
        let Some(prefixes) = &self.prefixes else { return true };
        prefixes.iter().any(|prefix| text.starts_with(prefix.as_str()))
    }
}

/// Why a key file was refused.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// It is no TOML, or not of this shape.
    #[error("key file: {0}")]
    Shape(String),
    /// One of its keys is wrong.
    #[error("key file: key {key:?}: {why}")]
    Key { key: String, why: &'static str },
    /// It has no key, so that nobody could come in.
    #[error("key file: it has no [[key]]")]
    Empty,
    /// The operating system gave no random bytes for a new secret.
    #[error("no random bytes for a new key")]
    NoRandomness,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    key: Vec<Entry>,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    sha256: String,
    scopes: Vec<String>,
    prefixes: Option<Vec<String>>,
}

impl Entry {
    fn check(self) -> Result<Key, KeyFileError> {
        let Self { name, sha256, scopes, prefixes } = self;
        let bad = |why| KeyFileError::Key { key: name.clone(), why };
        let mut hash = [0; 32];
        hex::decode_to_slice(&sha256, &mut hash).map_err(|_| bad("sha256 is not 64 hex digits"))?;
        let scopes = check_scopes(&scopes).map_err(bad)?;
        check_prefixes(prefixes.as_deref()).map_err(bad)?;
        check_name(&name).map_err(bad)?;
        Ok(Key { name, sha256: hash, scopes, prefixes })
    }
}

fn check_name(name: &str) -> Result<(), &'static str> {
    let fine = (1..=128).contains(&name.chars().count()) && !name.chars().any(char::is_control);
    if fine { Ok(()) } else { Err("name must be 1 to 128 characters long, none of them a control character") }
}

fn check_scopes(scopes: &[String]) -> Result<Vec<Scope>, &'static str> {
    if scopes.is_empty() {
        return Err("scopes is empty: the key could do nothing");
    }
    let all: Option<Vec<Scope>> = scopes.iter().map(|scope| Scope::from_name(scope)).collect();
    all.ok_or("scopes may be read, lock and admin")
}

fn check_prefixes(prefixes: Option<&[String]>) -> Result<(), &'static str> {
    match prefixes {
        Some([]) => Err("prefixes is empty: leave it out to allow all names"),
        // All names begin so. Whoever writes --prefix "$TEAM" did not mean all when TEAM is not set.
        Some(prefixes) if prefixes.iter().any(|prefix| prefix.is_empty()) => {
            Err("a prefix is empty: leave prefixes out to allow all names")
        }
        Some(prefixes) if !prefixes.iter().all(|prefix| Name::is_prefix(prefix)) => {
            Err("prefixes may hold only A-Z a-z 0-9 . _ ~ : @ and -")
        }
        _ => Ok(()),
    }
}

/// The keys that are valid now. They can be replaced while requests are served.
pub struct KeyRing(ArcSwap<Vec<Arc<Key>>>);

impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.load().iter().map(|key| key.name())).finish()
    }
}

impl KeyRing {
    /// Reads a key file.
    pub fn parse(toml: &str) -> Result<Self, KeyFileError> {
        let file: File =
            toml::from_str(toml).map_err(|cause| KeyFileError::Shape(wrong_toml(toml, &cause)))?;
        if file.key.is_empty() {
            return Err(KeyFileError::Empty);
        }
        let mut keys: Vec<Arc<Key>> = Vec::with_capacity(file.key.len());
        for entry in file.key {
            let key = entry.check()?;
            let bad = |why| Err(KeyFileError::Key { key: key.name.clone(), why });
            if keys.iter().any(|known| known.name == key.name) {
                return bad("its name is given twice");
            }
            if keys.iter().any(|known| known.sha256 == key.sha256) {
                return bad("another key has the same secret");
            }
            keys.push(Arc::new(key));
        }
        Ok(Self(ArcSwap::from_pointee(keys)))
    }

    /// From now on the keys of `other`, and only those, are valid.
    pub fn replace(&self, other: Self) {
        self.0.store(other.0.into_inner());
    }

    /// The key of a secret. Compares with all of them in constant time.
    pub fn find(&self, secret: &str) -> Option<Arc<Key>> {
        let hash = Sha256::digest(secret.as_bytes());
        let keys = self.0.load();
        keys.iter().fold(None, |found, key| {
            if bool::from(key.sha256.ct_eq(hash.as_slice())) { Some(Arc::clone(key)) } else { found }
        })
    }
}

/// A new secret, and the entry for the key file that makes it valid: `(secret, toml)`.
///
/// # Errors
/// When the name, a scope or a prefix could not stand in a key file.
pub fn new_key(name: &str, scopes: &[String], prefixes: &[String]) -> Result<(String, String), KeyFileError> {
    let mut bits = [0; 32];
    getrandom::fill(&mut bits).map_err(|_| KeyFileError::NoRandomness)?;
    // A recognisable beginning lets secret scanners find keys that were committed by accident.
    let secret = format!("quorate_{}", hex::encode(bits));
    let entry = Entry {
        name: name.to_owned(),
        sha256: hex::encode(Sha256::digest(secret.as_bytes())),
        scopes: scopes.to_vec(),
        prefixes: Some(prefixes.to_vec()).filter(|prefixes| !prefixes.is_empty()),
    };
    entry.clone().check()?;
    let entry = toml::to_string(&File { key: vec![entry] });
    let entry = entry.map_err(|cause| KeyFileError::Shape(cause.to_string()))?;
    Ok((secret, entry))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|&word| word.to_owned()).collect()
    }

    #[test]
    fn a_new_key_opens_what_its_entry_says_and_nothing_else() {
        let (secret, entry) =
            new_key("a \"quoted\" name", &words(&["read", "lock"]), &words(&["orders:", "jobs"])).unwrap();
        let ring = KeyRing::parse(&entry).unwrap();
        assert!(!entry.contains(&secret));
        let key = ring.find(&secret).unwrap();
        assert_eq!(key.name(), "a \"quoted\" name");
        assert!(key.has(Scope::Read) && key.has(Scope::Lock) && !key.has(Scope::Admin));
        for (name, may) in
            [("orders:1", true), ("jobs", true), ("jobs2", true), ("orders", false), ("x", false)]
        {
            assert_eq!(key.covers(name), may, "{name}");
        }
        for (prefix, may) in [("orders:", true), ("orders:4", true), ("order", false), ("", false)] {
            assert_eq!(key.covers(prefix), may, "{prefix}");
        }
        assert!(ring.find("x").is_none());
        assert!(ring.find("").is_none());
    }

    #[test]
    fn a_key_without_prefixes_touches_every_name() {
        let (secret, entry) = new_key("all", &words(&["read"]), &[]).unwrap();
        let key = KeyRing::parse(&entry).unwrap().find(&secret).unwrap();
        assert!(key.covers("anything") && key.covers(""));
    }

    #[test]
    fn replaced_keys_are_valid_at_once_and_the_old_ones_no_more() {
        let (old, entry) = new_key("k", &words(&["read"]), &[]).unwrap();
        let ring = KeyRing::parse(&entry).unwrap();
        let (new, entry) = new_key("k", &words(&["read"]), &[]).unwrap();
        ring.replace(KeyRing::parse(&entry).unwrap());
        assert!(ring.find(&old).is_none());
        assert!(ring.find(&new).is_some());
    }

    #[test]
    fn a_key_file_that_says_something_impossible_is_refused_with_the_reason() {
        let hash = "a".repeat(64);
        let key = |more: &str| format!("[[key]]\nname = \"k\"\n{more}\n");
        for (file, why) in [
            (String::new(), "no [[key]]"),
            ("[[key]".to_owned(), "key file"),
            (key(&format!("sha256 = \"{hash}\"\nscopes = []")), "scopes is empty"),
            (key(&format!("sha256 = \"{hash}\"\nscopes = [\"write\"]")), "read, lock and admin"),
            (key("sha256 = \"aa\"\nscopes = [\"read\"]"), "64 hex digits"),
            (key(&format!("sha256 = \"{hash}\"\nscopes = [\"read\"]\nprefixes = []")), "leave it out"),
            (key(&format!("sha256 = \"{hash}\"\nscopes = [\"read\"]\nprefixes = [\"a b\"]")), "A-Z"),
            (key(&format!("sha256 = \"{hash}\"\nscopes = [\"read\"]\nprefix = [\"a\"]")), "unknown field"),
            (key(&format!("sha256 = \"{hash}\"\nscopes = [\"read\"]")).repeat(2), "twice"),
        ] {
            let error = KeyRing::parse(&file).expect_err(&file).to_string();
            assert!(error.contains(why), "{error}");
        }
        for line in
            ["secret = \"quorate_s3cret\"", "sha256 = \"quorate_s3cret", "scopes = \"quorate_s3cret\""]
        {
            let error = KeyRing::parse(&key(line)).expect_err(line).to_string();
            assert!(error.contains("line ") && !error.contains("s3cret"), "{error}");
        }
        assert!(new_key("k", &words(&["write"]), &[]).is_err());
        assert!(new_key("", &words(&["read"]), &[]).is_err());
        assert!(new_key("k", &words(&["read"]), &words(&["a b"])).is_err());
    }

    #[test]
    fn no_hash_is_shown_by_debug() {
        let (_, entry) = new_key("k", &words(&["read"]), &[]).unwrap();
        assert_eq!(format!("{:?}", KeyRing::parse(&entry).unwrap()), r#"["k"]"#);
    }
}
