//! Commands that look after a node, and what they answer.

use crate::domain::Keys;
use crate::node::{Answer, Command, NodeError, Script, Value};

/// Command of status.lua: records that leases of a class, ms, may be granted for so long, ms, and tells which
/// address leads to which process.
pub fn status(keys: &Keys, class_ms: u64, for_ms: u64, addresses: &str) -> Command {
    let command =
        keys.register().iter().fold(Command::new(Script::Status).key(keys.marker()), |c, key| c.key(key));
    command.number(class_ms).number(for_ms).arg(addresses)
}

/// Command of mark.lua: from the marker `seen` ('' = absent) to `new`, at this process; with the epoch that was
/// chosen, if any.
pub fn mark(keys: &Keys, seen: &str, new: &str, run_id: &str, chosen: &str) -> Command {
    let command =
        Command::new(Script::Mark).key(keys.marker()).key(&keys.register()[0]).key(&keys.register()[1]);
    command.arg(seen).arg(new).arg(run_id).arg(chosen)
}

/// Command of register.lua: a promise, or the acceptance of `value`.
pub fn register(keys: &Keys, seen: &str, ballot: &str, value: &str) -> Command {
    let command =
        Command::new(Script::Register).key(keys.marker()).key(&keys.register()[0]).key(&keys.register()[1]);
    command.arg(seen).arg(ballot).arg(value)
}

/// What status.lua saw.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// What its clock said, ms.
    pub node_ms: u64,
    /// In the place of the marker; empty where there is none.
    pub marker: String,
    /// The epoch that the node knows to be chosen.
    pub chosen: String,
    /// The next one, where it accepted one.
    pub accepted: String,
    /// Why it takes no writes, where it takes none.
    pub error: Option<String>,
    /// How often it was looked at.
    pub looks: u64,
    /// The largest class of leases that may be held, ms.
    pub class_ms: u64,
    /// `address=process` of members.
    pub addresses: String,
}

impl Status {
    /// Reads the answer.
    ///
    /// # Errors
    /// [`NodeError::Nonsense`].
    pub fn read(answer: &Answer) -> Result<Self, NodeError> {
        let read = || {
            let [Value::List(texts), error, looks, class, addresses] = answer.rest.as_slice() else {
                return None;
            };
            let [marker, chosen, accepted] = texts.as_slice() else { return None };
            let error = error.as_text()?;
            Some(Self {
                node_ms: answer.node_ms,
                marker: marker.as_text()?.to_owned(),
                chosen: chosen.as_text()?.to_owned(),
                accepted: accepted.as_text()?.to_owned(),
                error: (!error.is_empty()).then(|| error.to_owned()),
                looks: looks.as_u64()?,
                class_ms: class.as_u64()?,
                addresses: addresses.as_text()?.to_owned(),
            })
        };
        read().ok_or(NodeError::Nonsense)
    }
}
