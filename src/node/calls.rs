//! Builders of commands and readers of answers, one pair a script.
//!
//! The only place that knows how the scripts' keys, arguments and replies look
//! from this side; the other side is documented at the top of each script.

mod looks;

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::Arc;

pub use self::looks::{Status, mark, register, status};
use super::line::Line;
use super::{Answer, Command, NodeError, Script, Settle, Value};
use crate::domain::{
    Ask, Entry, Holding, LeaseHandle, LeaseId, Mode, Renewal, Scope, Sharing, Survey, Token, Version,
};

/// The keys of a lease where its slots are not named.
fn lease_keys(scope: &Scope, command: Command) -> Command {
    scope.channels().iter().fold(command, |command, key| command.key(key))
}

/// KEYS of acquire and heal: what it covers, with the slots named.
fn with_slots(scope: &Scope, command: Command, slots: &[u32]) -> Command {
    match scope {
        Scope::Records(_) => lease_keys(scope, command),
        Scope::Slots(index) => {
            let command = slots.iter().fold(command, |command, slot| command.key(&format!("{index}/{slot}")));
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

    /// ARGV 2 and 3 of lease.lua.
    pub(super) fn batch_args(&self) -> [u64; 2] {
        [self.ahead_us(), self.fence_retention_ms]
    }
}

/// Slots as one word; empty where the scope has none.
fn slot_list(scope: &Scope, slots: &[u32]) -> String {
    let slots = if scope.is_slots() { slots } else { &[] };
    slots.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// An acquire of lease.lua.
pub fn acquire(ask: &Ask<'_>, lease: &LeaseId, proposed: u64) -> Command {
    let line = Line {
        lease,
        mark: "a",
        mode: ask.mode,
        token: proposed,
        ttl_ms: ask.ttl_ms,
        hold_until_ms: 0,
        lock_delay_ms: ask.lock_delay_ms,
        version: Version::default(),
        request: ask.request.unwrap_or("-"),
        params: ask.params,
        data: ask.data,
    };
    let ttl_ms = if ask.look_only { 0 } else { ask.ttl_ms };
    let Ask { max_hold_ms, lock_delay_ms, limit, .. } = ask;
    let mut how = format!("{ttl_ms} {max_hold_ms} {lock_delay_ms}");
    if ask.scope.is_slots() {
        let _ = write!(how, " {} {limit}", slot_list(ask.scope, ask.slots));
    } else if ask.standing.is_some() {
        how.push_str(" - 0");
    }
    if let Some(standing) = ask.standing {
        let _ = write!(how, " {standing}");
    }
    with_slots(ask.scope, Command::new(Script::Acquire), ask.slots).call(&how, &line.text())
}

/// The vote of an acquire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GrantVote {
    /// Granted, with this token.
    Granted(u64),
    /// Held by this lease; `None` where only looking found nobody, or a semaphore has too few permits left.
    Held(Option<Holding>),
    /// Free, but kept for another server that waits longer, for so many ms.
    Kept(u64),
}

impl GrantVote {
    /// Reads the answer.
    ///
    /// # Errors
    /// [`NodeError::Nonsense`].
    pub fn read(answer: Answer) -> Result<Self, NodeError> {
        match (answer.done, answer.rest.as_slice()) {
            (true, [token]) => Ok(Self::Granted(token.as_u64().ok_or(NodeError::Nonsense)?)),
            (false, []) => Ok(Self::Held(None)),
            (false, [Value::Int(kept_ms)]) => {
                u64::try_from(*kept_ms).map(Self::Kept).map_err(|_| NodeError::Nonsense)
            }
            (false, [Value::List(fields)]) => {
                let Some((shown, [same, params, slots @ ..])) = fields.split_at_checked(SHOWN) else {
                    return Err(NodeError::Nonsense);
                };
                let mut holding = holding(shown)?;
                holding.same_request = same == &Value::Int(1);
                params.as_text().ok_or(NodeError::Nonsense)?.clone_into(&mut holding.params);
                if let [slots] = slots {
                    holding.slots = read_slots(slots)?;
                }
                Ok(Self::Held(Some(holding)))
            }
            _ => Err(NodeError::Nonsense),
        }
    }
}

/// How many fields a lease is shown with.
const SHOWN: usize = 7;

/// A lease as record.lua shows it.
fn holding(shown: &[Value]) -> Result<Holding, NodeError> {
    let read = || {
        let [remaining, ttl, token, lease, version, data, sharing @ ..] = shown else { return None };
        Some(Holding {
            lease: LeaseId::parse(lease.as_text()?).ok()?,
            token: Token::new(token.as_u64()?).ok()?,
            remaining_ms: remaining.as_u64()?,
            ttl_ms: ttl.as_u64()?,
            version: Version::new(version.as_u64()?),
            data: data.as_text()?.to_owned(),
            sharing: match sharing {
                [Value::List(list)] => Some(read_sharing(list)?),
                _ => None,
            },
            same_request: false,
            params: String::new(),
            slots: Vec::new(),
        })
    };
    read().ok_or(NodeError::Nonsense)
}

fn read_sharing(list: &[Value]) -> Option<Sharing> {
    let (total, longest) = list.split_first()?;
    let longest = longest.iter().map(|shown| holding(shown.as_list()?).ok()).collect::<Option<_>>()?;
    Some(Sharing { total: total.as_u64()?.try_into().ok()?, longest })
}

fn read_slots(value: &Value) -> Result<Vec<u32>, NodeError> {
    let text = value.as_text().ok_or(NodeError::Nonsense)?;
    text.split(',')
        .filter(|slot| !slot.is_empty())
        .map(|slot| slot.parse().map_err(|_| NodeError::Nonsense))
        .collect()
}

/// An extension of lease.lua. `token` is carried, where it is known for certain; `data` replaces what is stored of an
/// earlier version. With `joins`, a retry of the lease's request has it, too, from now on.
pub fn extend(
    scope: &Scope,
    lease: &LeaseId,
    token: Option<Token>,
    renewal: Renewal,
    data: Option<(Version, &str)>,
    joins: bool,
) -> Command {
    let life = match renewal {
        Renewal::Ttl(ttl_ms) => Cow::from(ttl_ms.to_string()),
        Renewal::Own => "own".into(),
        Renewal::Raise => "raise".into(),
        Renewal::Keep => "keep".into(),
    };
    let (version, data) = data.unwrap_or_default();
    let how = format!("{life} {}{}", u8::from(joins), by(scope));
    let (lease, token, version) = (lease.expose(), token.map_or(0, Token::get), version.get());
    lease_keys(scope, Command::new(Script::Extend))
        .call(&how, &format!("{lease} {token:016} {version} {data}"))
}

/// The end of how a call runs that has the index where others have records.
fn by(scope: &Scope) -> &'static str {
    if scope.is_slots() { " slots" } else { "" }
}

/// An extension that gives a copy of the lease what it has missed, and leaves it as it is otherwise. Where a retry
/// `joins`, it is with this token.
pub fn update(scope: &Scope, lease: &LeaseId, joins: Option<Token>, version: Version, data: &str) -> Command {
    extend(scope, lease, joins, Renewal::Keep, Some((version, data)), joins.is_some())
}

/// How many fields of an extended lease are what is stored of it.
const STORED: usize = 8;

/// The vote of an extension: what the node stores now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extended {
    /// Until it expires here, ms.
    pub remaining_ms: u64,
    /// Life without extension, ms.
    pub ttl_ms: u64,
    /// Whether a retry of its request has it, too.
    pub joined: bool,
    /// The version of its data.
    pub version: Version,
    /// The request id it was granted to, or `-`.
    pub request: String,
    /// What that asked for, or `-`.
    pub params: String,
    /// What is stored with it.
    pub data: String,
    /// Of a semaphore: its slots.
    pub slots: Vec<u32>,
    /// Whether it ends sooner than it did before.
    pub shortened: bool,
    /// Until no extension reaches any further, ms; 0 = there is no such limit.
    pub hold_left_ms: u64,
    /// How long its name stays taken after it has expired, ms.
    pub lock_delay_ms: u64,
    /// Whether it was to be extended beyond that limit, to which it reached already: nothing has changed.
    pub at_limit: bool,
    /// What it excludes.
    pub mode: Mode,
}

/// Whether the lease is not held any more since it was held for as long as it may be.
pub fn ended_at_limit(answer: &Answer) -> bool {
    !answer.done && answer.rest == [Value::Int(1)]
}

impl Extended {
    /// Reads the answer; `None` where the lease is not held.
    ///
    /// # Errors
    /// [`NodeError::Nonsense`].
    pub fn read(answer: Answer) -> Result<Option<Self>, NodeError> {
        if !answer.done {
            return Ok(None);
        }
        let read = || {
            let (stored, limits) = answer.rest.split_at_checked(STORED)?;
            let [remaining, ttl, mark, version, request, params, data, slots] = stored else { return None };
            let [shortened, hold_left, lock_delay, at_limit, mode] = limits else { return None };
            Some(Self {
                remaining_ms: remaining.as_u64()?,
                ttl_ms: ttl.as_u64()?,
                joined: mark.as_text()? == "j",
                version: Version::new(version.as_u64()?),
                request: request.as_text()?.to_owned(),
                params: params.as_text()?.to_owned(),
                data: data.as_text()?.to_owned(),
                slots: read_slots(slots).ok()?,
                shortened: shortened == &Value::Int(1),
                hold_left_ms: hold_left.as_u64()?,
                lock_delay_ms: lock_delay.as_u64()?,
                at_limit: at_limit == &Value::Int(1),
                mode: if mode.as_text()? == Mode::Shared.letter() { Mode::Shared } else { Mode::Exclusive },
            })
        };
        read().map(Some).ok_or(NodeError::Nonsense)
    }
}

/// Gives `extended` back to a node that lost it, until its clock is `ends_ms`.
pub fn heal(scope: &Scope, handle: &LeaseHandle, extended: &Extended, ends_ms: u64) -> Command {
    let line = Line {
        lease: &handle.id,
        mark: if extended.joined { "j" } else { "h" },
        mode: extended.mode,
        token: handle.token.get(),
        ttl_ms: extended.ttl_ms,
        hold_until_ms: match extended.hold_left_ms {
            0 => 0,
            left_ms => ends_ms.saturating_add(left_ms.saturating_sub(extended.remaining_ms)),
        },
        lock_delay_ms: extended.lock_delay_ms,
        version: extended.version,
        request: &extended.request,
        params: &extended.params,
        data: &extended.data,
    };
    let slots = &extended.slots;
    let what = format!("{ends_ms:013} {}", line.text());
    with_slots(scope, Command::new(Script::Heal), slots).call(&slot_list(scope, slots), &what)
}

/// Why a lease is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Somebody asked for it.
    Release,
    /// Nobody was told that it was granted, or who was has left. It stays where a retry of its request has joined it.
    Undo,
    /// The same of a round that was lost. Nobody hears of it, or it would wake the contender that lost.
    Lost,
    /// No quorum holds it any more.
    Over,
    /// It shall not be granted where it is not held; where it is held, it stays.
    Bar,
}

/// A release of lease.lua.
pub fn release(scope: &Scope, lease: &LeaseId, cause: Cause, settle: Settle) -> Command {
    let cause = match cause {
        Cause::Release => "release",
        Cause::Undo => "undo",
        Cause::Over => "over",
        Cause::Lost => "lost",
        Cause::Bar => "bar",
    };
    let how = format!("{cause}{}", by(scope));
    let mut command = lease_keys(scope, Command::new(Script::Release)).call(&how, lease.expose());
    command.settle = Some(settle);
    command
}

/// What follows `0` where a node that does not hold the lease is not known to vote.
const MAY_HAVE_FORGOTTEN: i64 = 2;

/// The answer to a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Released {
    /// Whether it was held, and is not any more.
    pub held: bool,
    /// Whether it was extended before, so that another server may have given copies to other nodes.
    pub extended: bool,
    /// Whether it is held, and stays.
    pub stays: bool,
    /// Whether it is not held, and the node is not known to vote: it may have forgotten it.
    pub forgotten: bool,
}

impl Released {
    /// Reads the answer.
    pub fn read(answer: &Answer) -> Self {
        let held = answer.done;
        let says = |flag| answer.rest == [Value::Int(flag)];
        Self {
            held,
            extended: held && says(1),
            stays: !held && says(1),
            forgotten: !held && says(MAY_HAVE_FORGOTTEN),
        }
    }

    /// The answer of a node that may have taken the lease for expired.
    pub fn doubt(answer: &mut Answer) {
        if !answer.done && answer.rest == [Value::Int(0)] {
            answer.rest = vec![Value::Int(MAY_HAVE_FORGOTTEN)];
        }
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
    let (fence, holding) = match fields {
        [fence] => (fence, None),
        [fence, Value::List(shown)] => (fence, Some(holding(shown)?)),
        _ => return Err(NodeError::Nonsense),
    };
    Ok(Some(Entry { holding, fence: fence.as_u64().ok_or(NodeError::Nonsense)? }))
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
                let Some([key, shown @ ..]) = item.as_list() else { return Err(NodeError::Nonsense) };
                let key = key.as_text().ok_or(NodeError::Nonsense)?.to_owned();
                Ok((key, holding(shown)?))
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { cursor, held })
    }
}

/// Command of publish.lua.
pub fn publish(channels: &[Arc<str>]) -> Command {
    channels.iter().fold(Command::new(Script::Publish), |command, channel| command.key(channel))
}
