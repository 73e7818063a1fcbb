//! Builders of commands and readers of answers, one pair a script.
//!
//! The only place that knows how the scripts' keys, arguments and replies look
//! from this side; the other side is documented at the top of each script.

use std::sync::Arc;

use super::{Answer, Command, Digits, NodeError, Script, Settle, Value};
use crate::domain::{Ask, Claim, Entry, Holding, Keys, LeaseId, Renewal, Scope, Share, Survey, Token};

/// The keys of a lease where its slots are not named.
fn lease_keys(scope: &Scope, command: Command) -> Command {
    scope.channels().iter().fold(command, |command, key| command.key(key))
}

/// KEYS of acquire.lua and heal.lua, which name the slots.
fn with_slots(scope: &Scope, mut command: Command, slots: &[u32]) -> Command {
    match scope {
        Scope::Records(_) => lease_keys(scope, command),
        Scope::Slots(index) => {
            for slot in slots {
                command = command.key(&format!("{index}/{slot}"));
            }
            command.key(index)
        }
    }
}

/// Bounds that every script of a deployment gets.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// How far a token may be ahead of a node's clock, ms (docs/protocol.md §2.4).
    pub clock_bound_ms: u64,
    /// How long a fence outlives its lease, ms (§2.3).
    pub fence_retention_ms: u64,
}

impl Bounds {
    /// How far a token may be ahead of a node's clock, µs.
    pub fn ahead_us(&self) -> u64 {
        self.clock_bound_ms * 1000
    }

    /// Whether a token that is drawn from the clock at `wall_us` is too far ahead of a node's.
    pub(super) fn is_ahead(&self, wall_us: u64, node_us: u64) -> bool {
        wall_us > node_us.saturating_add(self.ahead_us())
    }

    /// ARGV 2 and 3 of batch.lua.
    pub(super) fn batch_args(&self) -> [u64; 2] {
        [self.ahead_us(), self.fence_retention_ms]
    }
}

fn slot_args(mut command: Command, scope: &Scope, slots: &[u32]) -> Command {
    if scope.is_slots() {
        for &slot in slots {
            command = command.number(u64::from(slot));
        }
    }
    command
}

/// Command of acquire.lua.
pub fn acquire(ask: &Ask<'_>, lease: &LeaseId, proposed: u64) -> Command {
    let request = ask.request.unwrap_or("-");
    let more = match ask.scope {
        Scope::Slots(_) => 2 + ask.slots.len(),
        Scope::Records(_) if ask.request.is_some() || ask.look_only => 2,
        Scope::Records(_) => 0,
    };
    let command = with_slots(ask.scope, Command::new(Script::Acquire), ask.slots).call(
        Digits::<16>::of(proposed).as_str(),
        &[Digits::<8>::of(ask.ttl_ms).as_str(), lease.expose(), " ", request, " ", ask.data],
        more,
    );
    if more == 0 {
        return command;
    }
    slot_args(command.arg(request).number(u64::from(ask.look_only)), ask.scope, ask.slots)
}

/// Vote of acquire.lua.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GrantVote {
    /// Granted, with this token; `None` = the proposed one.
    Granted(Option<u64>),
    /// Held by this lease; `None` where only looking found nobody.
    Held(Option<Holding>),
}

impl GrantVote {
    /// Reads the answer.
    ///
    /// # Errors
    /// [`NodeError::Nonsense`].
    pub fn read(answer: Answer) -> Result<Self, NodeError> {
        match (answer.done, answer.rest.as_slice()) {
            (true, []) => Ok(Self::Granted(None)),
            (true, [token]) => Ok(Self::Granted(Some(token.as_u64().ok_or(NodeError::Nonsense)?))),
            (false, []) => Ok(Self::Held(None)),
            (false, [Value::List(fields)]) => {
                let [remaining, ttl, token, _fence, lease, same, data, slots @ ..] = fields.as_slice() else {
                    return Err(NodeError::Nonsense);
                };
                let mut holding = holding(remaining, ttl, token, lease, data)?;
                holding.same_request = same == &Value::Int(1);
                if let [slots] = slots {
                    holding.slots = read_slots(slots)?;
                }
                Ok(Self::Held(Some(holding)))
            }
            _ => Err(NodeError::Nonsense),
        }
    }
}

fn holding(
    remaining: &Value,
    ttl: &Value,
    token: &Value,
    lease: &Value,
    data: &Value,
) -> Result<Holding, NodeError> {
    let read = || {
        Some(Holding {
            lease: LeaseId::parse(lease.as_text()?).ok()?,
            token: Token::new(token.as_u64()?).ok()?,
            remaining_ms: remaining.as_u64()?,
            ttl_ms: ttl.as_u64()?,
            data: data.as_text()?.to_owned(),
            same_request: false,
            slots: Vec::new(),
        })
    };
    read().ok_or(NodeError::Nonsense)
}

fn read_slots(value: &Value) -> Result<Vec<u32>, NodeError> {
    let text = value.as_text().ok_or(NodeError::Nonsense)?;
    text.split_ascii_whitespace().map(|slot| slot.parse().map_err(|_| NodeError::Nonsense)).collect()
}

/// Command of extend.lua. `token` is carried, where it is known for certain; `data` replaces what is
/// stored with the lease unless that is of a later [`Edition`](crate::domain::Edition).
pub fn extend(
    scope: &Scope,
    lease: &LeaseId,
    token: Option<Token>,
    renewal: Renewal,
    data: Option<&str>,
    share: Option<Share>,
) -> Command {
    let digits;
    let renewal = match renewal {
        Renewal::Ttl(ttl_ms) => {
            digits = Digits::<8>::of(ttl_ms);
            digits.as_str()
        }
        Renewal::Own => "own     ",
        Renewal::Raise => "raise   ",
        Renewal::Keep => "keep    ",
    };
    let token = Digits::<16>::of(token.map_or(0, Token::get));
    let parts = [token.as_str(), lease.expose(), renewal, data.unwrap_or("")];
    let claim = share.map(|share| match share {
        Share::Joins(claim) => format!("+{claim}"),
        Share::Outlasts(claim) => claim.to_string(),
    });
    by_lease(Command::new(Script::Extend), &parts, scope, claim)
}

/// Command of extend.lua that gives `data` to a copy of the lease which has earlier, and leaves it as it
/// is otherwise.
pub fn update(scope: &Scope, lease: &LeaseId, data: &str) -> Command {
    extend(scope, lease, None, Renewal::Keep, Some(data), None)
}

/// A call of extend.lua or release.lua: its keys, its text, and more where that is of use.
fn by_lease(command: Command, parts: &[&str], scope: &Scope, claim: Option<String>) -> Command {
    let more = if scope.is_slots() { 2 } else { usize::from(claim.is_some()) };
    let command = lease_keys(scope, command).call("", parts, more);
    let command = match claim {
        Some(claim) => command.arg(&claim),
        None if scope.is_slots() => command.arg("-"),
        None => command,
    };
    if scope.is_slots() { command.arg("1") } else { command }
}

/// Vote of extend.lua: what the node stores now, or `None` where the lease is not held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extended {
    /// Until it expires here, ms.
    pub remaining_ms: u64,
    /// Life without extension, ms.
    pub ttl_ms: u64,
    /// What is stored with it.
    pub data: String,
    /// The request id it was granted to, with the claims of retries.
    pub request: Option<String>,
    /// Of a semaphore: its slots.
    pub slots: Vec<u32>,
    /// Whether it ends sooner than it did before.
    pub shortened: bool,
}

impl Extended {
    /// Reads the answer.
    ///
    /// # Errors
    /// [`NodeError::Nonsense`].
    pub fn read(answer: Answer) -> Result<Option<Self>, NodeError> {
        if !answer.done {
            return Ok(None);
        }
        let [remaining, ttl, data, request, slots, shortened @ ..] = answer.rest.as_slice() else {
            return Err(NodeError::Nonsense);
        };
        let read = || {
            Some(Self {
                remaining_ms: remaining.as_u64()?,
                ttl_ms: ttl.as_u64()?,
                data: data.as_text()?.to_owned(),
                request: Some(request.as_text()?).filter(|&r| r != "-").map(str::to_owned),
                slots: read_slots(slots).ok()?,
                shortened: !shortened.is_empty(),
            })
        };
        read().map(Some).ok_or(NodeError::Nonsense)
    }
}

/// Command of heal.lua: gives `extended` back to a node that lost it, until its clock is `ends_ms`.
pub fn heal(
    keys: &Keys,
    bounds: &Bounds,
    scope: &Scope,
    lease: &LeaseId,
    token: Token,
    extended: &Extended,
    ends_ms: u64,
) -> Command {
    let slots = &extended.slots;
    let command = Command::new(Script::Heal).key(keys.undone()).key_of(&[keys.undone(), ":", lease.expose()]);
    let records = match scope {
        Scope::Records(keys) => keys.len(),
        Scope::Slots(_) => slots.len(),
    };
    let command = with_slots(scope, command, slots)
        .arg(lease.expose())
        .token(token.get())
        .number(ends_ms)
        .number(extended.ttl_ms)
        .number(bounds.ahead_us())
        .number(bounds.fence_retention_ms)
        .arg(extended.request.as_deref().unwrap_or("-"))
        .number(records as u64)
        .arg(&extended.data);
    slot_args(command, scope, slots)
}

/// Who shall hear of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tell {
    /// Nobody.
    Nobody,
    /// Whoever listens.
    Everybody,
}

/// Command of release.lua. With `claim`, whoever else has the lease keeps it.
pub fn release(
    keys: &Keys,
    scope: &Scope,
    lease: &LeaseId,
    settle: Settle,
    tell: Tell,
    claim: Option<Claim>,
) -> Command {
    let is_usual =
        matches!((scope, tell, claim), (Scope::Records(keys), Tell::Everybody, None) if keys.len() == 1);
    let tell = if tell == Tell::Nobody { "0" } else { "1" };
    let command = Command::new(Script::Release);
    let mut command = if is_usual {
        lease_keys(scope, command).arg(lease.expose())
    } else {
        by_lease(command, &[lease.expose(), tell], scope, claim.map(|claim| claim.to_string()))
    };
    command.prefix = Some(Arc::clone(keys.prefix()));
    command.settle = Some(settle);
    command
}

/// Vote of release.lua.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Released {
    /// Whether it was held.
    pub held: bool,
    /// Whether it was extended before, so that another server may have given copies to other nodes.
    pub extended: bool,
}

impl Released {
    /// Reads the answer.
    pub fn read(answer: &Answer) -> Self {
        let Answer { done, rest, .. } = answer;
        Self { held: *done, extended: *done && !rest.is_empty() }
    }
}

/// Command of read.lua.
pub fn read<'a>(keys: impl IntoIterator<Item = &'a str>) -> Command {
    keys.into_iter().fold(Command::new(Script::Read), Command::key)
}

/// Reads the answer of read.lua: an entry a key, `None` where nothing is stored.
///
/// # Errors
/// [`NodeError::Nonsense`].
pub fn read_entries(answer: Answer, count: usize) -> Result<Vec<Option<Entry>>, NodeError> {
    if answer.rest.len() != count {
        return Err(NodeError::Nonsense);
    }
    answer.rest.iter().map(read_entry).collect()
}

fn read_entry(value: &Value) -> Result<Option<Entry>, NodeError> {
    let fields = match value {
        Value::Nil => return Ok(None),
        Value::List(fields) => fields.as_slice(),
        _ => return Err(NodeError::Nonsense),
    };
    let [remaining, ttl, token, fence, lease, data] = fields else {
        return Err(NodeError::Nonsense);
    };
    let fence = fence.as_u64().ok_or(NodeError::Nonsense)?;
    let holding = match lease.as_text() {
        Some("") => None,
        _ => Some(holding(remaining, ttl, token, lease, data)?),
    };
    Ok(Some(Entry { holding, fence }))
}

/// Command of survey.lua for so many permits of a limit; `named_max` slots are named where fewer are left.
pub fn survey(index: &str, limit: u32, wanted: usize, named_max: usize) -> Command {
    Command::new(Script::Survey)
        .key(index)
        .number(u64::from(limit))
        .number(wanted as u64)
        .number(named_max as u64)
}

impl Survey {
    /// Reads the answer.
    ///
    /// # Errors
    /// [`NodeError::Nonsense`].
    pub fn read(answer: Answer) -> Result<Self, NodeError> {
        let [taken, Value::List(slots), first] = answer.rest.as_slice() else {
            return Err(NodeError::Nonsense);
        };
        let taken = taken.as_u64().and_then(|taken| taken.try_into().ok()).ok_or(NodeError::Nonsense)?;
        let named = slots
            .iter()
            .map(|slot| slot.as_text().and_then(|text| text.parse().ok()).ok_or(NodeError::Nonsense))
            .collect::<Result<_, _>>()?;
        let first = first.as_u64().ok_or(NodeError::Nonsense)?;
        Ok(Self { taken, named, first_expiry_ms: Some(first).filter(|&ms| ms > 0) })
    }
}

/// Command of issue.lua.
pub fn issue(bounds: &Bounds, key: &str, proposed: u64) -> Command {
    Command::new(Script::Issue)
        .key(key)
        .token(proposed)
        .number(bounds.ahead_us())
        .number(bounds.fence_retention_ms)
}

/// Reads the answer of issue.lua.
///
/// # Errors
/// [`NodeError::Nonsense`].
pub fn read_issued(answer: &Answer) -> Result<u64, NodeError> {
    match answer.rest.as_slice() {
        [token] => token.as_u64().ok_or(NodeError::Nonsense),
        _ => Err(NodeError::Nonsense),
    }
}

/// Command of list.lua: one step over the keys that begin with `prefix`.
pub fn list(prefix: &str, cursor: &str, count: u64) -> Command {
    // Of a glob's special letters only the prefix of the deployment may hold any.
    let mut pattern = String::with_capacity(prefix.len() + 8);
    for letter in prefix.chars() {
        if matches!(letter, '*' | '?' | '[' | ']' | '\\' | '^') {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern.push('*');
    Command::new(Script::List).arg(cursor).arg(&pattern).number(count)
}

/// One step of a walk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListStep {
    /// Where to go on; `"0"` at the end.
    pub cursor: String,
    /// Keys with the leases held there.
    pub held: Vec<(String, Holding)>,
}

impl ListStep {
    /// Reads the answer.
    ///
    /// # Errors
    /// [`NodeError::Nonsense`].
    pub fn read(answer: Answer) -> Result<Self, NodeError> {
        let [cursor, held @ ..] = answer.rest.as_slice() else { return Err(NodeError::Nonsense) };
        let cursor = cursor.as_text().ok_or(NodeError::Nonsense)?.to_owned();
        let held = held
            .iter()
            .map(|item| {
                let Some([key, remaining, ttl, token, _fence, lease, data]) = item.as_list() else {
                    return Err(NodeError::Nonsense);
                };
                let key = key.as_text().ok_or(NodeError::Nonsense)?.to_owned();
                Ok((key, holding(remaining, ttl, token, lease, data)?))
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { cursor, held })
    }
}

/// Command of publish.lua.
pub fn publish(channels: &[Arc<str>]) -> Command {
    channels.iter().fold(Command::new(Script::Publish), |command, channel| command.key(channel))
}

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
