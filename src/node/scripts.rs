//! The list of scripts that run at a node. Redis and the embedded node run the very same text.

use std::sync::LazyLock;

use super::{NodeError, Value};
use crate::domain::named;

named! {
    /// One of the scripts under `scripts/`, each of which documents its keys, arguments and replies.
    /// [`Script::Acquire`], [`Script::Extend`], [`Script::Heal`] and [`Script::Release`] are functions of one
    /// text, `lease.lua`, of which a run can serve many calls. Metrics show the name in the label `op`.
    #[repr(u8)]
    #[allow(missing_docs)] // Named as their files, which document them.
    pub enum Script {
        Acquire = "acquire",
        Extend = "extend",
        Heal = "heal",
        Release = "release",
        Read = "read",
        Survey = "survey",
        Issue = "issue",
        List = "list",
        Publish = "publish",
        Status = "status",
        Mark = "mark",
        Register = "register",
    }
}

macro_rules! with_record {
    ($file:literal) => {
        concat!(
            include_str!("scripts/clock.lua"),
            include_str!("scripts/record.lua"),
            include_str!(concat!("scripts/", $file, ".lua"))
        )
    };
}

impl Script {
    /// How many scripts there are.
    pub const COUNT: usize = Self::ALL.len();

    /// The full text, shared beginning included, as a node gets it: without comments and indentation,
    /// line by line as it stands in the files.
    pub fn text(self) -> &'static str {
        static TEXTS: LazyLock<[String; Script::COUNT]> =
            LazyLock::new(|| Script::ALL.map(|script| bare(script.source())));
        &TEXTS[self as usize]
    }

    const fn source(self) -> &'static str {
        match self {
            Self::Acquire | Self::Extend | Self::Heal | Self::Release => concat!(
                include_str!("scripts/clock.lua"),
                include_str!("scripts/record.lua"),
                include_str!("scripts/queue.lua"),
                include_str!("scripts/lease.lua")
            ),
            Self::Read => with_record!("read"),
            Self::Survey => with_record!("survey"),
            Self::Issue => with_record!("issue"),
            Self::List => with_record!("list"),
            Self::Publish => with_record!("publish"),
            Self::Status => with_record!("status"),
            Self::Mark => with_record!("mark"),
            Self::Register => with_record!("register"),
        }
    }

    /// The scripts to load: one of each text.
    pub fn texts() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|script| !matches!(script, Self::Extend | Self::Heal | Self::Release))
    }

    /// Whether it is a function of `lease.lua`; if not, it runs for one call alone.
    pub const fn is_batched(self) -> bool {
        matches!(self, Self::Acquire | Self::Extend | Self::Heal | Self::Release)
    }

    /// Whether the script takes the expected marker (KEYS\[1\], ARGV\[1\]).
    pub const fn is_marked(self) -> bool {
        !self.is_look() && !matches!(self, Self::Release | Self::Publish)
    }

    /// Whether it may take the marker: what a release finds is a vote, too, but it takes place without.
    pub const fn may_be_marked(self) -> bool {
        self.is_marked() || matches!(self, Self::Release)
    }

    /// Whether it looks after the node rather than after a lease.
    pub const fn is_look(self) -> bool {
        matches!(self, Self::Status | Self::Mark | Self::Register)
    }
}

fn bare(source: &str) -> String {
    let lines = source.lines().map(str::trim).map(|line| if line.starts_with("--") { "" } else { line });
    lines.collect::<Vec<_>>().join("\n")
}

/// The reply of a batch that holds one call, in the form that other scripts reply in.
///
/// # Errors
/// [`NodeError::Nonsense`].
pub fn reply_of_one(script: Script, reply: Value) -> Result<Value, NodeError> {
    if !script.is_batched() {
        return Ok(reply);
    }
    let Value::List(list) = reply else { return Err(NodeError::Nonsense) };
    let Ok([now, part]) = <[Value; 2]>::try_from(list) else { return Err(NodeError::Nonsense) };
    let mut fields = part.into_fields().filter(|fields| !fields.is_empty()).ok_or(NodeError::Nonsense)?;
    fields.insert(1, now);
    Ok(Value::List(fields))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_gets_the_text_without_comments_line_by_line() {
        for script in Script::ALL {
            let text = script.text();
            assert_eq!(text.lines().count(), script.source().lines().count());
            assert!(!text.lines().any(|line| line.starts_with("--")));
        }
    }

    #[test]
    fn every_script_stands_at_the_place_of_its_discriminant() {
        for (place, script) in Script::ALL.into_iter().enumerate() {
            assert_eq!(place, script as usize);
        }
    }
}
