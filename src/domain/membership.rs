//! Who belongs to a deployment: one epoch of its history, and how it is written (docs/protocol.md §4).

use std::fmt;
use std::str::FromStr;

use super::named;

named! {
    /// What a member may do.
    pub enum Role {
        /// It votes.
        Voting = "v",
        /// It takes part, and may have forgotten leases: it votes once those have expired.
        Joining = "j",
        /// It stopped voting on purpose, and may vote again as soon as it shows that it remembers that.
        Closed = "c",
    }
}

/// One member: a process, and since when it remembers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberEntry {
    /// The Redis process.
    pub run_id: String,
    /// What stood in the place of its marker when it was taken in. A process that lost its memory has
    /// another one afterwards, so it is another incarnation.
    pub nonce: String,
    /// The epoch that took it in.
    pub joined: u64,
    /// What it may do.
    pub role: Role,
    /// By which address it was reached when it was taken in: a hint, in which no blank and no comma is.
    pub address: String,
}

named! {
    /// By whom an epoch is chosen.
    pub enum ChosenBy {
        /// By a majority of the members of the epoch before.
        Majority = "most",
        /// By all that it names: a new deployment, or one of which a majority lost its memory.
        All = "all",
    }
}

named! {
    /// What else is said of an epoch.
    pub enum Stage {
        /// The next step may begin.
        Settled = "settled",
        /// The number of members changed: the next change waits for the leases of the epoch before.
        Resized = "resized",
        /// The deployment has moved. Its nodes never vote again.
        Retired = "retired",
    }
}

/// One epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    /// Counts up, by one unless a majority lost its memory.
    pub epoch: u64,
    /// Drawn by the proposer, so that two proposals of one epoch differ.
    pub id: String,
    /// The same in all epochs of a deployment.
    pub deployment: String,
    /// Who had to agree.
    pub by: ChosenBy,
    /// The longest lease that may be held from before, ms, where no node remembers.
    pub wait_ms: u64,
    /// Tokens are greater than this, µs: a member that was waited for may have forgotten those granted before. 0 = any.
    pub token_floor: u64,
    /// What else is said.
    pub stage: Stage,
    /// The members. Their number is N.
    pub members: Vec<MemberEntry>,
}

impl Membership {
    /// N.
    pub fn total(&self) -> usize {
        self.members.len()
    }

    /// A majority of N.
    pub fn quorum(&self) -> usize {
        self.total() / 2 + 1
    }

    /// The member with this process.
    pub fn of_process(&self, run_id: &str) -> Option<&MemberEntry> {
        self.members.iter().find(|member| member.run_id == run_id)
    }

    /// The member that is this incarnation.
    pub fn find(&self, run_id: &str, nonce: &str) -> Option<&MemberEntry> {
        self.of_process(run_id).filter(|member| member.nonce == nonce)
    }

    /// Whether a step is under way: the next one has to wait.
    pub fn is_changing(&self) -> bool {
        self.stage == Stage::Resized || self.members.iter().any(|member| member.role == Role::Joining)
    }
}

impl fmt::Display for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (by, stage) = (self.by.name(), self.stage.name());
        let Self { epoch, id, deployment, wait_ms, token_floor, .. } = self;
        write!(f, "{epoch} {id} {deployment} {by} {wait_ms} {token_floor} {stage}")?;
        for MemberEntry { run_id, nonce, joined, role, address } in &self.members {
            let role = role.name();
            let address = address.replace([' ', ',', '|'], "_");
            write!(f, " {run_id},{nonce},{joined},{role},{address}")?;
        }
        Ok(())
    }
}

impl FromStr for Membership {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let fields: Vec<&str> = text.split(' ').collect();
        let [epoch, id, deployment, by, wait_ms, token_floor, stage, members @ ..] = fields.as_slice() else {
            return Err(());
        };
        let members: Vec<MemberEntry> = members.iter().map(|text| entry(text)).collect::<Result<_, ()>>()?;
        if members.is_empty() || members.len() > 63 {
            return Err(());
        }
        Ok(Self {
            epoch: epoch.parse().map_err(|_| ())?,
            id: (*id).to_owned(),
            deployment: (*deployment).to_owned(),
            by: ChosenBy::from_name(by).ok_or(())?,
            // Nothing that a node stores may make the others wait for ever.
            wait_ms: wait_ms.parse().ok().filter(|&ms| ms <= super::TTL_MS_MAX).ok_or(())?,
            token_floor: token_floor.parse().ok().filter(|&us| us <= super::Token::MAX).ok_or(())?,
            stage: Stage::from_name(stage).ok_or(())?,
            members,
        })
    }
}

fn entry(text: &str) -> Result<MemberEntry, ()> {
    let fields: Vec<&str> = text.split(',').collect();
    let [run_id, nonce, joined, role, address] = fields.as_slice() else { return Err(()) };
    Ok(MemberEntry {
        run_id: (*run_id).to_owned(),
        nonce: (*nonce).to_owned(),
        joined: joined.parse().map_err(|_| ())?,
        role: Role::from_name(role).ok_or(())?,
        address: (*address).to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_is_read_as_it_was_written_and_nothing_else_is() {
        let text = "7 a1 d0 most 300 42 resized run-1,x,1,v,a:1 run-2,y,7,j,b:1 run-3,z,2,c,c:1";
        let value: Membership = text.parse().unwrap();
        assert_eq!((value.to_string().as_str(), value.total(), value.quorum()), (text, 3, 2));
        assert_eq!(value.find("run-2", "y").map(|member| member.role), Some(Role::Joining));
        assert!(value.find("run-2", "x").is_none() && value.is_changing());
        for text in [
            "",
            "7 a1 d0 most 300 0 settled",
            "7 a1 d0 some 300 0 settled r,x,1,v,a",
            "7 a1 d0 all 9999999999999 0 settled r,x,1,v,a",
            "7 a1 d0 all 1 0 settled r,x,v",
        ] {
            assert!(text.parse::<Membership>().is_err(), "{text}");
        }
    }
}
