//! The list of scripts that run at a node. Redis and the embedded node run the very same text.

/// One of the scripts under `scripts/`, each of which documents its keys, arguments and replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)] // Named as their files, which document them.
pub enum Script {
    Acquire,
    Extend,
    Heal,
    Release,
    Read,
    Survey,
    Issue,
    List,
    Publish,
    Status,
    Mark,
}

macro_rules! with_record {
    ($file:literal) => {
        concat!(include_str!("scripts/record.lua"), include_str!(concat!("scripts/", $file, ".lua")))
    };
}

impl Script {
    /// How many scripts there are.
    pub const COUNT: usize = Self::ALL.len();

    /// All scripts, in the order of their discriminants.
    pub const ALL: [Self; 11] = [
        Self::Acquire,
        Self::Extend,
        Self::Heal,
        Self::Release,
        Self::Read,
        Self::Survey,
        Self::Issue,
        Self::List,
        Self::Publish,
        Self::Status,
        Self::Mark,
    ];

    /// The full text, shared beginning included.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Acquire => with_record!("acquire"),
            Self::Extend => with_record!("extend"),
            Self::Heal => with_record!("heal"),
            Self::Release => with_record!("release"),
            Self::Read => with_record!("read"),
            Self::Survey => with_record!("survey"),
            Self::Issue => with_record!("issue"),
            Self::List => with_record!("list"),
            Self::Publish => with_record!("publish"),
            Self::Status => with_record!("status"),
            Self::Mark => with_record!("mark"),
        }
    }

    /// The name, as metrics show it in the label `op`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Extend => "extend",
            Self::Heal => "heal",
            Self::Release => "release",
            Self::Read => "read",
            Self::Survey => "survey",
            Self::Issue => "issue",
            Self::List => "list",
            Self::Publish => "publish",
            Self::Status => "status",
            Self::Mark => "mark",
        }
    }

    /// Whether the script votes, and so takes the expected marker (KEYS\[1\], ARGV\[1\]).
    pub const fn votes(self) -> bool {
        !matches!(self, Self::Release | Self::Publish | Self::Status | Self::Mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_stands_at_the_place_of_its_discriminant() {
        for (place, script) in Script::ALL.into_iter().enumerate() {
            assert_eq!(place, script as usize);
        }
    }
}
