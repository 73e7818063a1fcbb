//! What one embedded node stores: the part of Redis that the scripts use.
//!
//! Fifteen commands, with the replies, the errors and the expiry of Redis 7, so
//! that a script cannot tell the difference; the parity suite (`tests/all/parity.rs`)
//! holds this file against a real server. Time stands still while a script runs.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use super::super::HintSink;

/// Reply of a command.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Reply {
    Nil,
    Int(i64),
    Status(&'static str),
    Bulk(Vec<u8>),
    List(Vec<Self>),
    Error(Cow<'static, str>),
}

type Outcome = Result<Reply, Cow<'static, str>>;

const WRONG_TYPE: Cow<'static, str> =
    Cow::Borrowed("WRONGTYPE Operation against a key holding the wrong kind of value");
const OUT_OF_MEMORY: Cow<'static, str> =
    Cow::Borrowed("OOM command not allowed when used memory > 'maxmemory'.");
const NO_INTEGER: Cow<'static, str> = Cow::Borrowed("ERR value is not an integer or out of range");
const NO_FLOAT: Cow<'static, str> = Cow::Borrowed("ERR value is not a valid float");
const NO_RANGE: Cow<'static, str> = Cow::Borrowed("ERR min or max is not a float");
const SYNTAX: Cow<'static, str> = Cow::Borrowed("ERR syntax error");
const UNKNOWN: Cow<'static, str> = Cow::Borrowed("ERR Unknown Redis command called from script");
const ARGUMENT_COUNT: Cow<'static, str> =
    Cow::Borrowed("ERR Wrong number of args calling Redis command from script");

/// How many buckets each script looks through for what has expired. Lazy expiry alone
/// would keep every name that nobody asks for again.
const SWEPT_PER_SCRIPT: usize = 4;

/// A hint on its way: to be delivered when no lock is held any more.
pub(super) type Hint = (Arc<dyn HintSink>, Arc<str>, Box<str>);

/// One subscriber.
pub(super) struct Listener {
    id: u64,
    pub(super) sink: Option<Arc<dyn HintSink>>,
    channels: HashSet<Arc<str>>,
}

#[derive(Clone)]
enum Data {
    Text(Vec<u8>),
    Sorted(SortedSet),
}

#[derive(Clone)]
pub(super) struct Entry {
    pub(super) key: Vec<u8>,
    data: Data,
    expires_ms: Option<i64>,
}

impl Entry {
    pub(super) fn expired(&self, now_ms: i64) -> bool {
        // As Redis: at its very millisecond a key still lives.
        self.expires_ms.is_some_and(|expires_ms| now_ms > expires_ms)
    }
}

/// Keys, subscribers and the state of the script that runs.
pub(super) struct Keyspace {
    /// Entries by the hash of their key: SCAN walks in this order, so that its cursor
    /// stays valid whatever is added or removed on the way.
    pub(super) buckets: BTreeMap<u64, Vec<Entry>>,
    swept_to: u64,
    now_us: i64,
    /// Whether the script that runs has written: from then on memory is no obstacle.
    written: bool,
    pub(super) memory_full: bool,
    pub(super) listeners: Vec<Listener>,
    hints: Vec<Hint>,
}

impl Keyspace {
    pub(super) fn new() -> Self {
        Self {
            buckets: BTreeMap::new(),
            swept_to: 0,
            now_us: 0,
            written: false,
            memory_full: false,
            listeners: Vec::new(),
            hints: Vec::new(),
        }
    }

    /// A script begins; for it, it is `now_us` until it ends.
    pub(super) fn begin(&mut self, now_us: u64) {
        self.now_us = i64::try_from(now_us).unwrap_or(i64::MAX);
        self.written = false;
        self.sweep();
    }

    /// What the script published.
    pub(super) fn take_hints(&mut self) -> Vec<Hint> {
        std::mem::take(&mut self.hints)
    }

    /// Runs one command.
    pub(super) fn execute(&mut self, words: &[Vec<u8>]) -> Reply {
        self.dispatch(words).unwrap_or_else(Reply::Error)
    }

    fn dispatch(&mut self, words: &[Vec<u8>]) -> Outcome {
        let [name, args @ ..] = words else { return Err(UNKNOWN) };
        let verb =
            (VERBS.iter()).find(|verb| verb.name.as_bytes().eq_ignore_ascii_case(name)).ok_or(UNKNOWN)?;
        if args.len() < verb.args_min || args.len() > verb.args_max {
            return Err(ARGUMENT_COUNT);
        }
        // Redis stops a script for want of memory before its first write, never after.
        if verb.grows && self.memory_full && !self.written {
            return Err(OUT_OF_MEMORY);
        }
        self.written |= verb.writes;
        (verb.run)(self, args)
    }

    pub(super) fn now_ms(&self) -> i64 {
        self.now_us / 1000
    }

    /// The entry at `key`, dropping it where it has expired.
    fn find(&mut self, key: &[u8]) -> Option<&mut Entry> {
        let now_ms = self.now_ms();
        let bucket = self.buckets.get_mut(&hash(key))?;
        let place = bucket.iter().position(|entry| entry.key == key)?;
        if bucket[place].expired(now_ms) {
            bucket.swap_remove(place);
            return None;
        }
        bucket.get_mut(place)
    }

    fn text(&mut self, key: &[u8]) -> Result<Option<&[u8]>, Cow<'static, str>> {
        match self.find(key) {
            None => Ok(None),
            Some(Entry { data: Data::Text(text), .. }) => Ok(Some(text)),
            Some(_) => Err(WRONG_TYPE),
        }
    }

    fn sorted(&mut self, key: &[u8]) -> Result<Option<&mut SortedSet>, Cow<'static, str>> {
        match self.find(key) {
            None => Ok(None),
            Some(Entry { data: Data::Sorted(set), .. }) => Ok(Some(set)),
            Some(_) => Err(WRONG_TYPE),
        }
    }

    fn put(&mut self, key: &[u8], data: Data, expires_ms: Option<i64>) {
        if let Some(entry) = self.find(key) {
            entry.data = data;
            entry.expires_ms = expires_ms;
        } else {
            self.buckets.entry(hash(key)).or_default().push(Entry { key: key.to_vec(), data, expires_ms });
        }
    }

    fn remove(&mut self, key: &[u8]) -> bool {
        let lived = self.find(key).is_some();
        let hash = hash(key);
        if let Some(bucket) = self.buckets.get_mut(&hash) {
            bucket.retain(|entry| entry.key != key);
            if bucket.is_empty() {
                self.buckets.remove(&hash);
            }
        }
        lived
    }

    fn sweep(&mut self) {
        let now_ms = self.now_ms();
        for _ in 0..SWEPT_PER_SCRIPT {
            let Some((&hash, bucket)) = self.buckets.range_mut(self.swept_to..).next() else {
                self.swept_to = 0;
                return;
            };
            bucket.retain(|entry| !entry.expired(now_ms));
            if bucket.is_empty() {
                self.buckets.remove(&hash);
            }
            self.swept_to = hash.wrapping_add(1);
        }
    }

    /// When something that lives `life` ms ends, for an argument of `command`.
    fn ends_ms(&self, life: &[u8], command: &str, least: i64) -> Result<i64, Cow<'static, str>> {
        let life = integer(life).ok_or(NO_INTEGER)?;
        (life.checked_add(self.now_ms()).filter(|_| life >= least))
            .ok_or_else(|| format!("ERR invalid expire time in '{command}' command").into())
    }

    // Commands, in the order of `VERBS`.

    fn get(&mut self, args: &[Vec<u8>]) -> Outcome {
        Ok(self.text(&args[0])?.map_or(Reply::Nil, |text| Reply::Bulk(text.to_vec())))
    }

    fn set(&mut self, args: &[Vec<u8>]) -> Outcome {
        let expires_ms = match &args[2..] {
            [] => None,
            [keep] if keep.eq_ignore_ascii_case(b"KEEPTTL") => {
                self.find(&args[0]).and_then(|entry| entry.expires_ms)
            }
            [px, life] if px.eq_ignore_ascii_case(b"PX") => Some(self.ends_ms(life, "set", 1)?),
            [at, end, condition @ ..] if at.eq_ignore_ascii_case(b"PXAT") => {
                match condition {
                    [] => {}
                    [nx] if nx.eq_ignore_ascii_case(b"NX") => {
                        if self.find(&args[0]).is_some() {
                            return Ok(Reply::Nil);
                        }
                    }
                    _ => return Err(SYNTAX),
                }
                let end = integer(end).ok_or(NO_INTEGER)?;
                if end < 1 {
                    return Err("ERR invalid expire time in 'set' command".into());
                }
                Some(end)
            }
            _ => return Err(SYNTAX),
        };
        self.put(&args[0], Data::Text(args[1].clone()), expires_ms);
        Ok(Reply::Status("OK"))
    }

    fn setrange(&mut self, args: &[Vec<u8>]) -> Outcome {
        let from = integer(&args[1]).ok_or(NO_INTEGER)?;
        let from = usize::try_from(from).map_err(|_| Cow::Borrowed("ERR offset is out of range"))?;
        let mut text = self.text(&args[0])?.unwrap_or_default().to_vec();
        if args[2].is_empty() {
            return Ok(Reply::Int(text.len() as i64));
        }
        let end = from.saturating_add(args[2].len());
        if end > 512 << 20 {
            return Err("ERR string exceeds maximum allowed size (proto-max-bulk-len)".into());
        }
        text.resize(end.max(text.len()), 0);
        text[from..end].copy_from_slice(&args[2]);
        let length = text.len();
        let expires_ms = self.find(&args[0]).and_then(|entry| entry.expires_ms);
        self.put(&args[0], Data::Text(text), expires_ms);
        Ok(Reply::Int(length as i64))
    }

    fn time(&mut self, _: &[Vec<u8>]) -> Outcome {
        let part = |number: i64| Reply::Bulk(number.to_string().into_bytes());
        Ok(Reply::List(vec![part(self.now_us / 1_000_000), part(self.now_us % 1_000_000)]))
    }

    fn mget(&mut self, args: &[Vec<u8>]) -> Outcome {
        // Unlike GET, MGET takes a wrong type for nothing at all.
        Ok(Reply::List(
            args.iter().map(|key| self.get(std::slice::from_ref(key)).unwrap_or(Reply::Nil)).collect(),
        ))
    }

    fn publish(&mut self, args: &[Vec<u8>]) -> Outcome {
        // Subscriptions are text, so that bytes which are none reach nobody.
        let Ok(channel) = std::str::from_utf8(&args[0]) else { return Ok(Reply::Int(0)) };
        let message = String::from_utf8_lossy(&args[1]);
        let mut receivers = 0;
        for listener in &self.listeners {
            if let Some(channel) = listener.channels.get(channel) {
                receivers += 1;
                self.hints
                    .extend(listener.sink.clone().map(|sink| (sink, channel.clone(), (*message).into())));
            }
        }
        Ok(Reply::Int(receivers))
    }

    fn del(&mut self, args: &[Vec<u8>]) -> Outcome {
        Ok(count(args.iter().filter(|key| self.remove(key)).count()))
    }

    fn pttl(&mut self, args: &[Vec<u8>]) -> Outcome {
        let now_ms = self.now_ms();
        Ok(Reply::Int(match self.find(&args[0]) {
            None => -2,
            Some(Entry { expires_ms: None, .. }) => -1,
            Some(Entry { expires_ms: Some(expires_ms), .. }) => *expires_ms - now_ms,
        }))
    }

    fn pexpire(&mut self, args: &[Vec<u8>]) -> Outcome {
        let ends_ms = self.ends_ms(&args[1], "pexpire", i64::MIN)?;
        let now_ms = self.now_ms();
        let Some(entry) = self.find(&args[0]) else { return Ok(Reply::Int(0)) };
        entry.expires_ms = Some(ends_ms);
        if ends_ms <= now_ms {
            self.remove(&args[0]);
        }
        Ok(Reply::Int(1))
    }

    fn zadd(&mut self, args: &[Vec<u8>]) -> Outcome {
        let (key, pairs) = (&args[0], &args[1..]);
        if pairs.len() % 2 != 0 {
            return Err(SYNTAX);
        }
        let scores =
            pairs.chunks(2).map(|pair| float(&pair[0]).ok_or(NO_FLOAT)).collect::<Result<Vec<_>, _>>()?;
        if self.sorted(key)?.is_none() {
            self.put(key, Data::Sorted(SortedSet::default()), None);
        }
        let mut added = 0;
        if let Some(set) = self.sorted(key)? {
            for (pair, score) in pairs.chunks(2).zip(scores) {
                added += usize::from(set.insert(&pair[1], score));
            }
        }
        Ok(count(added))
    }

    fn zrem(&mut self, args: &[Vec<u8>]) -> Outcome {
        let (key, members) = (&args[0], &args[1..]);
        let Some(set) = self.sorted(key)? else { return Ok(Reply::Int(0)) };
        let removed = members.iter().filter(|member| set.remove(member)).count();
        if set.is_empty() {
            self.remove(key);
        }
        Ok(count(removed))
    }

    fn zrangebyscore(&mut self, args: &[Vec<u8>]) -> Outcome {
        let (mut with_scores, mut skip, mut take) = (false, 0, -1);
        let mut options = args[3..].iter();
        while let Some(option) = options.next() {
            if option.eq_ignore_ascii_case(b"WITHSCORES") {
                with_scores = true;
            } else if option.eq_ignore_ascii_case(b"LIMIT") && options.len() >= 2 {
                let mut next = || options.next().and_then(|word| integer(word)).ok_or(NO_INTEGER);
                (skip, take) = (next()?, next()?);
            } else {
                return Err(SYNTAX);
            }
        }
        let range = Range::read(&args[1], &args[2])?;
        let Some(set) = self.sorted(&args[0])? else { return Ok(Reply::List(Vec::new())) };
        let Ok(skip) = usize::try_from(skip) else { return Ok(Reply::List(Vec::new())) };
        let mut list = Vec::new();
        for (score, member) in set.within(&range).skip(skip).take(usize::try_from(take).unwrap_or(usize::MAX))
        {
            list.push(Reply::Bulk(member.to_vec()));
            if with_scores {
                list.push(Reply::Bulk(number_text(score).into_bytes()));
            }
        }
        Ok(Reply::List(list))
    }

    fn zcount(&mut self, args: &[Vec<u8>]) -> Outcome {
        let range = Range::read(&args[1], &args[2])?;
        let set = self.sorted(&args[0])?;
        Ok(count(set.map_or(0, |set| set.within(&range).count())))
    }

    fn zremrangebyscore(&mut self, args: &[Vec<u8>]) -> Outcome {
        let range = Range::read(&args[1], &args[2])?;
        let Some(set) = self.sorted(&args[0])? else { return Ok(Reply::Int(0)) };
        let members: Vec<_> = set.within(&range).map(|(_, member)| member.to_vec()).collect();
        for member in &members {
            set.remove(member);
        }
        if set.is_empty() {
            self.remove(&args[0]);
        }
        Ok(count(members.len()))
    }

    fn scan(&mut self, args: &[Vec<u8>]) -> Outcome {
        let cursor: u64 = (std::str::from_utf8(&args[0]).ok())
            .and_then(|text| text.parse().ok())
            .ok_or(Cow::Borrowed("ERR invalid cursor"))?;
        let (mut pattern, mut look_at) = (&b"*"[..], 10);
        for option in args[1..].chunks(2) {
            let [name, value] = option else { return Err(SYNTAX) };
            if name.eq_ignore_ascii_case(b"MATCH") {
                pattern = value;
            } else if name.eq_ignore_ascii_case(b"COUNT") {
                look_at = integer(value).ok_or(NO_INTEGER)?;
                if look_at < 1 {
                    return Err(SYNTAX);
                }
            } else {
                return Err(SYNTAX);
            }
        }
        let look_at = usize::try_from(look_at).unwrap_or(usize::MAX);
        let now_ms = self.now_ms();
        let mut walk = self.buckets.range(cursor..);
        let found = (walk.by_ref().take(look_at))
            .flat_map(|(_, bucket)| bucket)
            .filter(|entry| !entry.expired(now_ms) && fits(pattern, &entry.key))
            .map(|entry| Reply::Bulk(entry.key.clone()))
            .collect();
        let next = walk.next().map_or(0, |(&hash, _)| hash);
        Ok(Reply::List(vec![Reply::Bulk(next.to_string().into_bytes()), Reply::List(found)]))
    }
}

/// Subscribers.
impl Keyspace {
    fn listener(&mut self, id: u64) -> &mut Listener {
        let place = self.listeners.iter().position(|listener| listener.id == id).unwrap_or_else(|| {
            self.listeners.push(Listener { id, sink: None, channels: HashSet::new() });
            self.listeners.len() - 1
        });
        &mut self.listeners[place]
    }

    /// Returns the sink before, to be dropped when no lock is held any more: it may own
    /// a connection to this very node.
    pub(super) fn listen(&mut self, id: u64, sink: Arc<dyn HintSink>) -> Option<Arc<dyn HintSink>> {
        self.listener(id).sink.replace(sink)
    }

    pub(super) fn subscribe(&mut self, id: u64, channel: Arc<str>) {
        self.listener(id).channels.insert(channel);
    }

    pub(super) fn unsubscribe(&mut self, id: u64, channel: &str) {
        self.listener(id).channels.remove(channel);
    }

    /// Returns the sink, as [`Keyspace::listen`] does.
    pub(super) fn leave(&mut self, id: u64) -> Option<Arc<dyn HintSink>> {
        let place = self.listeners.iter().position(|listener| listener.id == id)?;
        self.listeners.remove(place).sink
    }

    pub(super) fn is_subscribed(&self, id: u64) -> bool {
        self.listeners.iter().any(|listener| listener.id == id && !listener.channels.is_empty())
    }
}

struct Verb {
    name: &'static str,
    args_min: usize,
    args_max: usize,
    /// Whether Redis counts it as a write, even where it changes nothing.
    writes: bool,
    /// Whether Redis refuses it out of memory (`denyoom`).
    grows: bool,
    run: fn(&mut Keyspace, &[Vec<u8>]) -> Outcome,
}

#[rustfmt::skip]
const VERBS: [Verb; 15] = {
    const ANY: usize = usize::MAX;
    [
        Verb { name: "GET", args_min: 1, args_max: 1, writes: false, grows: false, run: Keyspace::get },
        Verb { name: "SET", args_min: 2, args_max: ANY, writes: true, grows: true, run: Keyspace::set },
        Verb { name: "SETRANGE", args_min: 3, args_max: 3, writes: true, grows: true, run: Keyspace::setrange },
        Verb { name: "TIME", args_min: 0, args_max: 0, writes: false, grows: false, run: Keyspace::time },
        Verb { name: "MGET", args_min: 1, args_max: ANY, writes: false, grows: false, run: Keyspace::mget },
        Verb { name: "PUBLISH", args_min: 2, args_max: 2, writes: false, grows: false, run: Keyspace::publish },
        Verb { name: "DEL", args_min: 1, args_max: ANY, writes: true, grows: false, run: Keyspace::del },
        Verb { name: "PTTL", args_min: 1, args_max: 1, writes: false, grows: false, run: Keyspace::pttl },
        Verb { name: "PEXPIRE", args_min: 2, args_max: 2, writes: true, grows: false, run: Keyspace::pexpire },
        Verb { name: "ZADD", args_min: 3, args_max: ANY, writes: true, grows: true, run: Keyspace::zadd },
        Verb { name: "ZREM", args_min: 2, args_max: ANY, writes: true, grows: false, run: Keyspace::zrem },
        Verb { name: "ZCOUNT", args_min: 3, args_max: 3, writes: false, grows: false, run: Keyspace::zcount },
        Verb { name: "ZRANGEBYSCORE", args_min: 3, args_max: ANY, writes: false, grows: false, run: Keyspace::zrangebyscore },
        Verb { name: "ZREMRANGEBYSCORE", args_min: 3, args_max: 3, writes: true, grows: false, run: Keyspace::zremrangebyscore },
        Verb { name: "SCAN", args_min: 1, args_max: ANY, writes: false, grows: false, run: Keyspace::scan },
    ]
};

/// A score, in the order of scores.
#[derive(Clone, Copy)]
struct Score(f64);

impl Ord for Score {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Score {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Score {}

#[derive(Clone, Default)]
struct SortedSet {
    scores: BTreeMap<Vec<u8>, f64>,
    order: BTreeSet<(Score, Vec<u8>)>,
}

impl SortedSet {
    /// Whether the member is new.
    fn insert(&mut self, member: &[u8], score: f64) -> bool {
        let score = score + 0.0; // There is no negative zero among scores.
        let old = self.scores.insert(member.to_vec(), score);
        if let Some(old) = old {
            self.order.remove(&(Score(old), member.to_vec()));
        }
        self.order.insert((Score(score), member.to_vec()));
        old.is_none()
    }

    fn remove(&mut self, member: &[u8]) -> bool {
        let Some(score) = self.scores.remove(member) else { return false };
        self.order.remove(&(Score(score), member.to_vec()))
    }

    fn is_empty(&self) -> bool {
        self.scores.is_empty()
    }

    fn within<'a>(&'a self, range: &'a Range) -> impl Iterator<Item = (f64, &'a [u8])> {
        (self.order.range((Score(range.min), Vec::new())..))
            .skip_while(|(score, _)| range.above_min && score.0 <= range.min)
            .take_while(|(score, _)| score.0 < range.max || (score.0 == range.max && !range.below_max))
            .map(|(score, member)| (score.0, member.as_slice()))
    }
}

/// A range of scores as ZRANGEBYSCORE writes it: `(` in front of a bound leaves it out.
struct Range {
    min: f64,
    above_min: bool,
    max: f64,
    below_max: bool,
}

impl Range {
    fn read(min: &[u8], max: &[u8]) -> Result<Self, Cow<'static, str>> {
        let bound = |text: &[u8]| {
            let (open, number) = text.strip_prefix(b"(").map_or((false, text), |number| (true, number));
            float(number).map(|number| (number + 0.0, open)).ok_or(NO_RANGE)
        };
        let ((min, above_min), (max, below_max)) = (bound(min)?, bound(max)?);
        Ok(Self { min, above_min, max, below_max })
    }
}

fn count(number: usize) -> Reply {
    Reply::Int(i64::try_from(number).unwrap_or(i64::MAX))
}

/// FNV-1a: the same in every run, so that a seed replays the order of SCAN too.
fn hash(key: &[u8]) -> u64 {
    key.iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// An integer as Redis reads it: only the one way of writing a number counts.
fn integer(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    let number: i64 = text.parse().ok()?;
    let digits = text.strip_prefix('-').unwrap_or(text);
    let plain = digits == "0" && number == 0 && digits.len() == text.len();
    (plain || !digits.starts_with(['0', '+'])).then_some(number)
}

/// A floating-point number as Redis reads it.
fn float(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?;
    let number: f64 = text.parse().ok()?;
    let overflow = number.is_infinite() && !text.contains(['n', 'N']);
    (!number.is_nan() && !overflow).then_some(number)
}

/// C's `%.17g`, in which Redis writes a number that Lua passes to a command.
pub(super) fn number_text(number: f64) -> String {
    if number.is_nan() {
        return if number.is_sign_negative() { "-nan" } else { "nan" }.to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    if number == 0.0 {
        return if number.is_sign_negative() { "-0" } else { "0" }.to_owned();
    }
    let scientific = format!("{number:.16e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..17).contains(&exponent) {
        let decimals = usize::try_from(16 - exponent).unwrap_or(0);
        let fixed = format!("{number:.decimals$}");
        if fixed.contains('.') { fixed.trim_end_matches('0').trim_end_matches('.').to_owned() } else { fixed }
    } else {
        let digits = digits.trim_end_matches('0').trim_end_matches('.');
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
    }
}

/// Whether a text fits what list.lua looks for: a beginning, in which `\` stands before a letter that means itself, and
/// then `*`.
fn fits(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern, text) {
        ([b'*'], _) => true,
        ([b'\\', letter, pattern @ ..] | [letter, pattern @ ..], [first, text @ ..]) => {
            letter == first && fits(pattern, text)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(keyspace: &mut Keyspace, line: &str) -> Reply {
        let words: Vec<_> = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        keyspace.execute(&words)
    }

    fn bulk(text: &str) -> Reply {
        Reply::Bulk(text.into())
    }

    fn bulks(texts: &[&str]) -> Reply {
        Reply::List(texts.iter().map(|text| bulk(text)).collect())
    }

    #[test]
    fn numbers_are_written_as_c_writes_them() {
        for (number, text) in [
            (9_007_199_254_740_991.0, "9007199254740991"),
            (1_790_000_000_123_456.0, "1790000000123456"),
            (1e16, "10000000000000000"),
            (1e17, "1e+17"),
            (-30.0, "-30"),
            (0.0, "0"),
            (-0.0, "-0"),
            (0.5, "0.5"),
            (0.1, "0.10000000000000001"),
            (1.5e-7, "1.4999999999999999e-07"),
            (1e300, "1.0000000000000001e+300"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(number_text(number), text);
        }
    }

    #[test]
    fn only_the_plain_way_of_writing_an_integer_is_one() {
        for (text, number) in [("0", Some(0)), ("-7", Some(-7)), ("9223372036854775807", Some(i64::MAX))] {
            assert_eq!(integer(text.as_bytes()), number);
        }
        for text in ["", "-", "+1", "01", "-0", " 1", "1 ", "1e3", "1.0", "9223372036854775808"] {
            assert_eq!(integer(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn a_walk_looks_for_a_beginning() {
        for (pattern, text, fit) in [
            ("*", "", true),
            ("q:lock:*", "q:lock:a", true),
            ("q:lock:*", "q:locks:a", false),
            (r"a\*c*", "a*cd", true),
            (r"a\*c*", "abcd", false),
        ] {
            assert_eq!(fits(pattern.as_bytes(), text.as_bytes()), fit, "{pattern} {text}");
        }
    }

    #[test]
    fn a_key_lives_through_its_last_millisecond() {
        let mut keyspace = Keyspace::new();
        keyspace.begin(1_000_000);
        run(&mut keyspace, "SET k v PX 10");
        keyspace.begin(1_010_999);
        assert_eq!(run(&mut keyspace, "PTTL k"), Reply::Int(0));
        assert_eq!(run(&mut keyspace, "GET k"), bulk("v"));
        keyspace.begin(1_011_000);
        assert_eq!(run(&mut keyspace, "GET k"), Reply::Nil);
        assert_eq!(run(&mut keyspace, "PTTL k"), Reply::Int(-2));
    }

    #[test]
    fn what_nobody_asks_for_again_is_swept_away() {
        let mut keyspace = Keyspace::new();
        keyspace.begin(1);
        for i in 0..100 {
            run(&mut keyspace, &format!("SET k{i} v PX 5"));
        }
        for _ in 0..30 {
            keyspace.begin(1_000_000);
        }
        assert!(keyspace.buckets.is_empty());
    }

    #[test]
    fn a_walk_sees_every_key_that_stays_whatever_else_comes_and_goes() {
        let mut keyspace = Keyspace::new();
        for i in 0..50 {
            run(&mut keyspace, &format!("SET stay{i} v"));
            run(&mut keyspace, &format!("SET go{i} v"));
        }
        let (mut cursor, mut seen, mut step) = ("0".to_owned(), BTreeSet::new(), 0);
        loop {
            let Reply::List(reply) = run(&mut keyspace, &format!("SCAN {cursor} MATCH stay* COUNT 7")) else {
                panic!("a list")
            };
            let [Reply::Bulk(next), Reply::List(found)] = &reply[..] else { panic!("a cursor and keys") };
            for key in found {
                let Reply::Bulk(key) = key else { panic!("a key") };
                assert!(seen.insert(key.clone()), "seen twice");
            }
            cursor = String::from_utf8(next.clone()).unwrap();
            if cursor == "0" {
                break;
            }
            run(&mut keyspace, &format!("DEL go{step}"));
            run(&mut keyspace, &format!("SET come{step} v"));
            step += 1;
        }
        assert_eq!(seen.len(), 50);
    }

    #[test]
    fn sorted_sets_are_in_the_order_of_scores() {
        let mut keyspace = Keyspace::new();
        assert_eq!(run(&mut keyspace, "ZADD z 3 c 1 a 2 b 2 a2"), Reply::Int(4));
        assert_eq!(run(&mut keyspace, "ZADD z 9 c"), Reply::Int(0));
        assert_eq!(run(&mut keyspace, "ZRANGEBYSCORE z -inf +inf"), bulks(&["a", "a2", "b", "c"]));
        assert_eq!(run(&mut keyspace, "ZRANGEBYSCORE z (1 (9"), bulks(&["a2", "b"]));
        assert_eq!(
            run(&mut keyspace, "ZRANGEBYSCORE z 2 +inf WITHSCORES LIMIT 1 2"),
            bulks(&["b", "2", "c", "9"])
        );
        assert_eq!(run(&mut keyspace, "ZREMRANGEBYSCORE z -inf 2"), Reply::Int(3));
        assert_eq!(run(&mut keyspace, "ZREM z c nobody"), Reply::Int(1));
        assert_eq!(keyspace.keys(), Vec::<String>::new());
    }

    #[test]
    fn odd_input_is_an_error_and_never_a_panic() {
        let mut keyspace = Keyspace::new();
        run(&mut keyspace, "SET text v");
        run(&mut keyspace, "ZADD set 1 a");
        for (line, error) in [
            ("", UNKNOWN),
            ("FLUSHALL", UNKNOWN),
            ("GET", ARGUMENT_COUNT),
            ("GET a b", ARGUMENT_COUNT),
            ("GET set", WRONG_TYPE),
            ("ZADD text 1 a", WRONG_TYPE),
            ("ZREM text a", WRONG_TYPE),
            ("ZADD set x a", NO_FLOAT),
            ("ZADD set nan a", NO_FLOAT),
            ("ZADD set 1 a 2", SYNTAX),
            ("ZRANGEBYSCORE set x 1", NO_RANGE),
            ("ZRANGEBYSCORE set 0 1 LIMIT 1", SYNTAX),
            ("ZRANGEBYSCORE set 0 1 LIMIT a b", NO_INTEGER),
            ("SET k v PX", SYNTAX),
            ("SET k v EX 5", SYNTAX),
            ("SET k v PX 1.5", NO_INTEGER),
            ("SET k v PX 0", "ERR invalid expire time in 'set' command".into()),
            ("PEXPIRE text 9223372036854775807", "ERR invalid expire time in 'pexpire' command".into()),
            ("SCAN x", "ERR invalid cursor".into()),
            ("SCAN 0 COUNT 0", SYNTAX),
            ("SCAN 0 MATCH", SYNTAX),
        ] {
            keyspace.begin(1_000_000);
            assert_eq!(run(&mut keyspace, line), Reply::Error(error), "{line}");
        }
        assert_eq!(run(&mut keyspace, "MGET text set nothing"), {
            Reply::List(vec![bulk("v"), Reply::Nil, Reply::Nil])
        });
    }

    #[test]
    fn memory_is_an_obstacle_only_before_the_first_write() {
        let mut keyspace = Keyspace::new();
        keyspace.set_memory_full(true);
        keyspace.begin(1);
        assert_eq!(run(&mut keyspace, "SET k v"), Reply::Error(OUT_OF_MEMORY));
        assert_eq!(run(&mut keyspace, "DEL nothing"), Reply::Int(0));
        assert_eq!(run(&mut keyspace, "SET k v"), Reply::Status("OK"));
        keyspace.begin(2);
        assert_eq!(run(&mut keyspace, "ZADD z 1 a"), Reply::Error(OUT_OF_MEMORY));
    }
}
