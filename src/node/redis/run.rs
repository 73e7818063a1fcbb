//! How calls become one command of Redis, and how its reply becomes their answers.
//!
//! Nothing else of this folder knows what a run of several calls looks like.

use std::sync::{Arc, LazyLock};

use bb8_redis::redis::{self, Cmd, ServerError};
use tokio::time::Instant;

use crate::node::{Call, NodeError, Script, Value};

/// Calls in one run of a script, and their keys: a node does nothing else meanwhile.
const CALLS_MAX: usize = 64;
const KEYS_MAX: usize = 512;

/// The `EVALSHA` of these calls, which share one run ([`joins`]), or of a call alone.
pub(super) fn command(calls: &[Call]) -> Cmd {
    let Some(first) = calls.first() else { return Cmd::new() };
    let marker = first.marker.as_ref();
    let batched = first.command.script.is_batched();
    let own_keys: usize = calls.iter().map(|call| call.command.keys().len()).sum();
    let marker_keys = usize::from(marker.is_some());
    let mut command = redis::cmd("EVALSHA");
    command.arg(hash(first.command.script)).arg(marker_keys + own_keys);
    if let Some(marker) = marker {
        command.arg(marker.keys.marker());
    }
    for key in calls.iter().flat_map(|call| call.command.keys()) {
        command.arg(key);
    }
    if batched {
        let bounds = marker.map_or([0, 0], |marker| marker.bounds.batch_args());
        command.arg(marker.map_or("", |marker| &*marker.expected)).arg(&bounds[..]);
    } else if let Some(marker) = marker {
        command.arg(&*marker.expected);
    }
    for arg in calls.iter().flat_map(|call| call.command.args()) {
        command.arg(arg);
    }
    command
}

/// Whether `call` may share a run with `calls`, which have so many `keys`: there is room, and
/// they expect the same marker, or none.
pub(super) fn joins(call: &Call, calls: &[Call], keys: usize) -> bool {
    let Some(first) = calls.first() else { return true };
    if !call.command.script.is_batched() || !first.command.script.is_batched() {
        return false;
    }
    if calls.len() == CALLS_MAX || keys + call.command.keys().len() > KEYS_MAX {
        return false;
    }
    match (&call.marker, &first.marker) {
        (Some(one), Some(other)) => {
            Arc::ptr_eq(&one.expected, &other.expected) || one.expected == other.expected
        }
        (one, other) => one.is_none() && other.is_none(),
    }
}

/// Gives each of the `calls` its part of the reply, which arrived at `now`.
pub(super) fn answer(calls: Vec<Call>, reply: redis::Value, now: Instant) {
    let batched = calls.first().is_some_and(|call| call.command.script.is_batched());
    match reply {
        redis::Value::ServerError(error) => refuse(calls, &NodeError::Redis(words(&error).into())),
        redis::Value::Array(list) if batched => answer_each(calls, list, now),
        _ if batched => refuse(calls, &NodeError::Nonsense),
        reply => {
            // It shares its run with no other.
            if let Some(call) = calls.into_iter().next() {
                call.reply.send(read(reply));
            }
        }
    }
}

/// The reply of a batch: the node's clock, and one reply for each call.
fn answer_each(calls: Vec<Call>, list: Vec<redis::Value>, now: Instant) {
    let replies = list.len().saturating_sub(1);
    let mut list = list.into_iter();
    let node_ms = match list.next() {
        Some(redis::Value::Int(node_ms)) => u64::try_from(node_ms).ok(),
        _ => None,
    };
    let Some(node_ms) = node_ms.filter(|_| replies == calls.len()) else {
        return refuse(calls, &NodeError::Nonsense);
    };
    for (call, part) in calls.into_iter().zip(list) {
        call.reply.send_part(now, node_ms, read(part));
    }
}

/// Answers all of the `calls` with `error`.
pub(super) fn refuse(calls: Vec<Call>, error: &NodeError) {
    for call in calls {
        call.reply.send(Err(error.clone()));
    }
}

/// The value in the terms of a script; bytes that are not UTF-8 are replaced.
pub(super) fn read(value: redis::Value) -> Result<Value, NodeError> {
    Ok(match value {
        redis::Value::Nil => Value::Nil,
        redis::Value::Int(number) => Value::Int(number),
        redis::Value::BulkString(bytes) => Value::Text(match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        }),
        redis::Value::SimpleString(text) => Value::Text(text),
        redis::Value::Okay => Value::Text("OK".to_owned()),
        redis::Value::ServerError(error) => return Err(NodeError::Redis(words(&error).into())),
        redis::Value::Array(list) => {
            let list = list.into_iter().map(|value| match value {
                // No script returns an error among other values.
                redis::Value::ServerError(_) => Err(NodeError::Nonsense),
                value => read(value),
            });
            Value::List(list.collect::<Result<_, _>>()?)
        }
        _ => return Err(NodeError::Nonsense),
    })
}

/// The error as the node wrote it.
pub(super) fn words(error: &ServerError) -> String {
    match error.details() {
        Some(details) => format!("{} {details}", error.code()),
        None => error.code().to_owned(),
    }
}

/// What `SCRIPT LOAD` must answer for this script.
pub(super) fn hash(script: Script) -> &'static str {
    static HASHES: LazyLock<[String; Script::COUNT]> =
        LazyLock::new(|| Script::ALL.map(|script| redis::Script::new(script.text()).get_hash().to_owned()));
    &HASHES[script as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_not_utf8_are_replaced() {
        let value = read(redis::Value::BulkString(b"a\xffb".to_vec())).unwrap();
        assert_eq!(value, Value::Text("a\u{fffd}b".into()));
    }

    #[test]
    fn replies_of_scripts_are_read_as_they_are() {
        use redis::Value::{Array, BulkString, Int, Nil, Okay};
        let reply = Array(vec![Int(i64::MIN), Array(vec![BulkString(b"ab".to_vec()), Nil]), Okay]);
        let expected = Value::List(vec![
            Value::Int(i64::MIN),
            Value::List(vec![Value::Text("ab".into()), Value::Nil]),
            Value::Text("OK".into()),
        ]);
        assert_eq!(read(reply).unwrap(), expected);
        assert!(matches!(read(redis::Value::Double(0.5)), Err(NodeError::Nonsense)));
    }
}
