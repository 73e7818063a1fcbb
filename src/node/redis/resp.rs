//! The wire: calls are written straight into the buffer of one connection, and
//! replies are read straight into [`Value`].
//!
//! The redis crate has both, but its way of a call is a `Cmd`, a `Pipeline`, a
//! packed copy, a second task and a parser combinator, and this is the hottest
//! path there is: see the figures in [`super`].
//!
//! RESP2 is enough here: scripts return integers, strings, lists and nil.
//! <https://redis.io/docs/latest/develop/reference/protocol-spec/>

use crate::node::{Call, Script, Value};

/// More than any script may return. A length beyond it is a stream out of step.
const REPLY_BYTES_MAX: usize = 64 << 20;

/// Scripts nest two levels deep.
const DEPTH_MAX: u32 = 8;

/// How a script is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum As {
    /// `EVALSHA`, which needs the script to be loaded.
    Hash,
    /// `EVAL`, which loads it too.
    Text,
}

/// The bytes of each script's invocation that never change.
pub(super) struct ScriptBytes {
    by_hash: Vec<Vec<u8>>,
    by_text: Vec<Vec<u8>>,
    hashes: Vec<String>,
}

impl ScriptBytes {
    pub(super) fn new() -> Self {
        let hashes: Vec<String> = Script::ALL
            .iter()
            .map(|script| redis::Script::new(script.text()).get_hash().to_owned())
            .collect();
        let by_hash = hashes.iter().map(|hash| head(b"EVALSHA", hash.as_bytes())).collect();
        let by_text = Script::ALL.iter().map(|script| head(b"EVAL", script.text().as_bytes())).collect();
        Self { by_hash, by_text, hashes }
    }

    /// A call whose script runs for it alone.
    pub(super) fn put(&self, call: &Call, sent: As, out: &mut Vec<u8>) {
        put_call(self.head(call.command.script, sent), call, out);
    }

    /// Calls that share one run of their script.
    pub(super) fn put_batch(&self, calls: &[Call], sent: As, out: &mut Vec<u8>) {
        let marker = calls.iter().find_map(|call| call.marker.as_ref());
        let keys =
            calls.iter().map(|call| call.command.keys().len()).sum::<usize>() + 2 * marker.iter().len();
        let args = calls.iter().map(|call| call.command.args().len()).sum::<usize>() + 4;
        put_length(out, b'*', 3 + keys + args);
        out.extend_from_slice(self.head(Script::Acquire, sent));
        let mut digits = [0; DIGITS];
        put_bulk(out, decimal(keys, &mut digits));
        if let Some(marker) = marker {
            put_bulk(out, marker.keys.marker().as_bytes());
            put_bulk(out, marker.keys.undone().as_bytes());
        }
        for call in calls {
            out.extend_from_slice(call.command.resp().0.as_bytes());
        }
        put_bulk(out, marker.map_or(b"", |marker| marker.expected.as_bytes()));
        for bound in marker.map_or([0, 0], |marker| marker.bounds.batch_args()) {
            put_bulk(out, decimal(bound as usize, &mut digits));
        }
        let prefix = calls.first().map_or("", |call| call.command.prefix(marker.map(|marker| &**marker)));
        put_bulk(out, prefix.as_bytes());
        for call in calls {
            out.extend_from_slice(call.command.resp().1.as_bytes());
        }
    }

    fn head(&self, script: Script, sent: As) -> &[u8] {
        match sent {
            As::Hash => &self.by_hash[script as usize],
            As::Text => &self.by_text[script as usize],
        }
    }

    /// `SCRIPT LOAD` of every script: [`Script::texts`] replies, each the hash.
    pub(super) fn put_load(&self, out: &mut Vec<u8>) {
        for script in Script::texts() {
            put_command(out, &["SCRIPT", "LOAD", script.text()]);
        }
    }

    /// What `SCRIPT LOAD` must answer.
    pub(super) fn hash(&self, script: Script) -> &str {
        &self.hashes[script as usize]
    }
}

fn head(command: &[u8], script: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(script.len() + 32);
    put_bulk(&mut bytes, command);
    put_bulk(&mut bytes, script);
    bytes
}

fn put_call(head: &[u8], call: &Call, out: &mut Vec<u8>) {
    let (keys, args) = call.command.resp();
    let marker = usize::from(call.marker.is_some());
    let key_count = marker + call.command.keys().len();
    put_length(out, b'*', 3 + key_count + marker + call.command.args().len());
    out.extend_from_slice(head);
    let mut digits = [0; DIGITS];
    put_bulk(out, decimal(key_count, &mut digits));
    if let Some(marker) = &call.marker {
        put_bulk(out, marker.keys.marker().as_bytes());
    }
    out.extend_from_slice(keys.as_bytes());
    if let Some(marker) = &call.marker {
        put_bulk(out, marker.expected.as_bytes());
    }
    out.extend_from_slice(args.as_bytes());
}

/// Any other command.
pub(super) fn put_command(out: &mut Vec<u8>, words: &[&str]) {
    put_length(out, b'*', words.len());
    for word in words {
        put_bulk(out, word.as_bytes());
    }
}

fn put_bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    put_length(out, b'$', bytes.len());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

fn put_length(out: &mut Vec<u8>, kind: u8, length: usize) {
    // Nearly all lengths have one digit or two.
    if length < 10 {
        out.extend_from_slice(&[kind, b'0' + length as u8, b'\r', b'\n']);
    } else if length < 100 {
        out.extend_from_slice(&[kind, b'0' + (length / 10) as u8, b'0' + (length % 10) as u8, b'\r', b'\n']);
    } else {
        let mut digits = [0; DIGITS];
        out.push(kind);
        out.extend_from_slice(decimal(length, &mut digits));
        out.extend_from_slice(b"\r\n");
    }
}

/// Enough for `usize::MAX`.
const DIGITS: usize = 20;

fn decimal(mut number: usize, digits: &mut [u8; DIGITS]) -> &[u8] {
    let mut start = DIGITS;
    loop {
        start -= 1;
        digits[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[start..];
        }
    }
}

/// One complete reply.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// A value.
    Value(Value),
    /// `-ERR …`: the command failed, the connection is well.
    Error(String),
    /// Well-formed, but nothing that a script of ours returns (an error inside a list).
    Odd,
}

/// The stream is out of step and its connection of no use any more.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("protocol error: {0}")]
pub(super) struct Malformed(&'static str);

/// Reads one reply from the front of `bytes`: the reply and its length, or `None`
/// until more bytes are there.
pub(super) fn parse(bytes: &[u8]) -> Result<Option<(Reply, usize)>, Malformed> {
    let mut parser = Parser { bytes, at: 0, odd: false };
    let reply = if bytes.first() == Some(&b'-') {
        parser.at = 1;
        parser.line().map(|line| line.map(|line| Reply::Error(text(line))))?
    } else {
        let value = parser.value(0)?;
        if parser.odd { value.map(|_| Reply::Odd) } else { value.map(Reply::Value) }
    };
    match reply {
        Some(reply) => Ok(Some((reply, parser.at))),
        None if bytes.len() > REPLY_BYTES_MAX => Err(Malformed("a reply beyond all bounds")),
        None => Ok(None),
    }
}

/// How the reply to a batch begins.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BatchHead {
    /// The node's clock in ms, and as many replies as there are calls follow.
    Replies(u64),
    /// The node's clock in ms, and every reply is 1.
    AllDone(u64),
    /// No call ran.
    Error(String),
}

/// Reads how the reply to a batch of `calls` begins: that and its length, or `None` until more
/// bytes are there.
pub(super) fn parse_batch(bytes: &[u8], calls: usize) -> Result<Option<(BatchHead, usize)>, Malformed> {
    let mut parser = Parser { bytes, at: 1, odd: false };
    let head = match bytes.first() {
        None => None,
        Some(b'-') => parser.line()?.map(|line| BatchHead::Error(text(line))),
        Some(b'*') => match parser.length()? {
            None => None,
            Some(Some(count)) if count == calls + 1 || count == 1 => match parser.value(1)? {
                None => None,
                Some(Value::Int(now_ms)) if now_ms >= 0 => {
                    let head = if count == 1 { BatchHead::AllDone } else { BatchHead::Replies };
                    Some(head(now_ms.unsigned_abs()))
                }
                Some(_) => return Err(Malformed("a batch without the time")),
            },
            Some(_) => return Err(Malformed("a batch with another number of replies")),
        },
        Some(_) => return Err(Malformed("no batch where there should be one")),
    };
    if head.is_none() && bytes.len() > REPLY_BYTES_MAX {
        return Err(Malformed("a reply beyond all bounds"));
    }
    Ok(head.map(|head| (head, parser.at)))
}

struct Parser<'a> {
    bytes: &'a [u8],
    at: usize,
    odd: bool,
}

impl<'a> Parser<'a> {
    fn value(&mut self, depth: u32) -> Result<Option<Value>, Malformed> {
        let Some(&kind) = self.bytes.get(self.at) else { return Ok(None) };
        self.at += 1;
        Ok(match kind {
            b':' => self.integer()?.map(Value::Int),
            b'$' => match self.length()? {
                None => None,
                Some(None) => Some(Value::Nil),
                Some(Some(length)) => self.bulk(length)?.map(|bytes| Value::Text(text(bytes))),
            },
            b'*' => match self.length()? {
                None => None,
                Some(None) => Some(Value::Nil),
                Some(Some(_)) if depth == DEPTH_MAX => return Err(Malformed("lists nested too deep")),
                Some(Some(length)) => {
                    // The bound keeps a lie about the length from allocating by itself.
                    let mut list = Vec::with_capacity(length.min(64));
                    for _ in 0..length {
                        let Some(value) = self.value(depth + 1)? else { return Ok(None) };
                        list.push(value);
                    }
                    Some(Value::List(list))
                }
            },
            b'+' => self.line()?.map(|line| Value::Text(text(line))),
            b'-' => {
                self.odd = true;
                self.line()?.map(|_| Value::Nil)
            }
            _ => return Err(Malformed("an unknown type")),
        })
    }

    fn line(&mut self) -> Result<Option<&'a [u8]>, Malformed> {
        let rest = &self.bytes[self.at..];
        let Some(end) = rest.iter().position(|&byte| byte == b'\r') else { return Ok(None) };
        match rest.get(end + 1) {
            None => Ok(None),
            Some(b'\n') => {
                self.at += end + 2;
                Ok(Some(&rest[..end]))
            }
            Some(_) => Err(Malformed("a line without its end")),
        }
    }

    /// A number and the end of its line, in one pass: two of three bytes of a reply are digits.
    fn integer(&mut self) -> Result<Option<i64>, Malformed> {
        let negative = self.bytes.get(self.at) == Some(&b'-');
        let start = self.at + usize::from(negative);
        let rest = &self.bytes[start..];
        let (mut number, mut digits) = (0_u64, 0);
        for byte in rest {
            let digit = byte.wrapping_sub(b'0');
            if digit > 9 {
                break;
            }
            number = number.wrapping_mul(10).wrapping_add(u64::from(digit));
            digits += 1;
        }
        match rest[digits..] {
            [b'\r', b'\n', ..] => self.at = start + digits + 2,
            [] | [b'\r'] => return Ok(None),
            _ => return Err(Malformed("a number that is none")),
        }
        // Nineteen digits always fit in 64 bits, so up to there nothing has wrapped.
        if !(1..=19).contains(&digits) {
            return Err(Malformed("a number without digits, or with too many"));
        }
        let number = if negative { 0_i64.checked_sub_unsigned(number) } else { i64::try_from(number).ok() };
        number.map(Some).ok_or(Malformed("a number out of range"))
    }

    /// The length of what follows; the inner `None` is -1, RESP2's nil.
    fn length(&mut self) -> Result<Option<Option<usize>>, Malformed> {
        Ok(match self.integer()? {
            None => None,
            Some(-1) => Some(None),
            Some(length) => match usize::try_from(length) {
                Ok(length) if length <= REPLY_BYTES_MAX => Some(Some(length)),
                _ => return Err(Malformed("a length beyond all bounds")),
            },
        })
    }

    fn bulk(&mut self, length: usize) -> Result<Option<&'a [u8]>, Malformed> {
        let rest = &self.bytes[self.at..];
        if rest.len() < length + 2 {
            return Ok(None);
        }
        if &rest[length..length + 2] != b"\r\n" {
            return Err(Malformed("a string without its end"));
        }
        self.at += length + 2;
        Ok(Some(&rest[..length]))
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(bytes: &[u8]) -> Value {
        match parse(bytes) {
            Ok(Some((Reply::Value(value), length))) if length == bytes.len() => value,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn replies_of_scripts_are_read_as_they_are() {
        assert_eq!(
            value(b"*3\r\n:1\r\n:1790000000000\r\n:9007199254740991\r\n"),
            Value::List(vec![
                Value::Int(1),
                Value::Int(1_790_000_000_000),
                Value::Int(9_007_199_254_740_991)
            ])
        );
        assert_eq!(
            value(b"*2\r\n:0\r\n*3\r\n$2\r\nab\r\n$-1\r\n$0\r\n\r\n"),
            Value::List(vec![
                Value::Int(0),
                Value::List(vec![Value::Text("ab".into()), Value::Nil, Value::Text(String::new())])
            ])
        );
        assert_eq!(value(b"+OK\r\n"), Value::Text("OK".into()));
        assert_eq!(value(b":-9223372036854775808\r\n"), Value::Int(i64::MIN));
        assert_eq!(value(b"*-1\r\n"), Value::Nil);
        assert_eq!(value(b"*0\r\n"), Value::List(vec![]));
    }

    #[test]
    fn bytes_that_are_not_utf8_are_replaced() {
        assert_eq!(value(b"$3\r\na\xffb\r\n"), Value::Text("a\u{fffd}b".into()));
    }

    #[test]
    fn a_reply_cut_anywhere_waits_for_the_rest() {
        let whole = b"*4\r\n:1\r\n$5\r\nhello\r\n*1\r\n$-1\r\n+x\r\n";
        for cut in 0..whole.len() {
            assert_eq!(parse(&whole[..cut]), Ok(None), "cut at {cut}");
        }
        assert!(matches!(parse(whole), Ok(Some((Reply::Value(_), length))) if length == whole.len()));
    }

    #[test]
    fn an_error_is_a_reply_and_an_error_inside_a_list_is_odd() {
        assert_eq!(
            parse(b"-BUSY Redis is busy\r\n:1\r\n"),
            Ok(Some((Reply::Error("BUSY Redis is busy".into()), 21)))
        );
        assert_eq!(parse(b"*2\r\n:1\r\n-ERR inner\r\n"), Ok(Some((Reply::Odd, 20))));
    }

    #[test]
    fn a_batch_begins_with_the_time_and_with_how_much_is_said_of_each_call() {
        let read = |bytes: &[u8]| parse_batch(bytes, 2);
        assert_eq!(read(b"*1\r\n:7\r\n:0\r\n"), Ok(Some((BatchHead::AllDone(7), 8))));
        assert_eq!(read(b"*3\r\n:7\r\n:1\r\n:0\r\n"), Ok(Some((BatchHead::Replies(7), 8))));
        assert_eq!(read(b"-NOSCRIPT x\r\n"), Ok(Some((BatchHead::Error("NOSCRIPT x".to_owned()), 13))));
        for part in [&b""[..], b"*", b"*1\r\n", b"*3\r\n:7\r", b"-NOSCRIPT x"] {
            assert_eq!(read(part), Ok(None));
        }
        for bytes in
            [&b"*2\r\n:7\r\n:1\r\n"[..], b"*4\r\n:7\r\n", b"*1\r\n:-7\r\n", b"*1\r\n$1\r\n7\r\n", b":7\r\n"]
        {
            assert!(read(bytes).is_err(), "{:?}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn the_head_of_a_batch_has_the_bound_of_every_reply() {
        for first in [b'-', b'*'] {
            let mut bytes = vec![b'1'; REPLY_BYTES_MAX + 2];
            bytes[0] = first;
            assert!(parse(&bytes).is_err());
            assert!(parse_batch(&bytes, 2).is_err(), "{}", char::from(first));
        }
    }

    #[test]
    fn nonsense_is_refused_without_a_panic() {
        for bytes in [
            &b"%1\r\n+a\r\n:1\r\n"[..],
            b":1x\r\n",
            b":\r\n",
            b"$-2\r\n",
            b"$99999999999\r\n",
            b":9223372036854775808\r\n",
            b"$1\r\nabc\r\n",
            b":1\rx",
            b"HTTP/1.1 400 Bad Request\r\n",
            &b"*1\r\n".repeat(100),
        ] {
            assert!(parse(bytes).is_err(), "{:?}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn random_bytes_never_panic() {
        use rand::{Rng, SeedableRng};
        let mut random = rand::rngs::SmallRng::seed_from_u64(8);
        let alphabet = b"*$:+-\r\n0123459ab";
        for _ in 0..200_000 {
            let length = random.random_range(0..24);
            let bytes: Vec<u8> =
                (0..length).map(|_| alphabet[random.random_range(0..alphabet.len())]).collect();
            if let Ok(Some((_, used))) = parse(&bytes) {
                assert!(used <= bytes.len());
            }
        }
    }

    #[test]
    fn whatever_a_node_writes_is_read_back_wherever_it_is_cut() {
        use rand::{Rng, SeedableRng};
        fn draw(random: &mut impl Rng, depth: u32, wire: &mut Vec<u8>) -> Value {
            match random.random_range(0..if depth < 3 { 5 } else { 3 }) {
                0 => {
                    let number = random.random::<i64>() >> random.random_range(0..64);
                    wire.extend(format!(":{number}\r\n").into_bytes());
                    Value::Int(number)
                }
                1 => {
                    let text = "\r\n:$x".repeat(random.random_range(0..4));
                    put_bulk(wire, text.as_bytes());
                    Value::Text(text)
                }
                2 => {
                    wire.extend(b"$-1\r\n");
                    Value::Nil
                }
                _ => {
                    let length = random.random_range(0..5);
                    put_length(wire, b'*', length);
                    Value::List((0..length).map(|_| draw(random, depth + 1, wire)).collect())
                }
            }
        }
        let mut random = rand::rngs::SmallRng::seed_from_u64(8);
        for _ in 0..2_000 {
            let mut wire = Vec::new();
            let expected = draw(&mut random, 0, &mut wire);
            assert_eq!(value(&wire), expected);
            for cut in 0..wire.len() {
                assert_eq!(parse(&wire[..cut]), Ok(None));
            }
        }
    }

    #[test]
    fn lengths_are_written_in_decimal() {
        for length in [0, 7, 10, 99, 100, 12345] {
            let mut out = Vec::new();
            put_length(&mut out, b'$', length);
            assert_eq!(out, format!("${length}\r\n").into_bytes());
        }
    }
}
