//! What client commands ask of a server.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Map, Value, json};

use super::client_args::{
    AskArgs, ClientArgs, ElectionCommand, FenceCommand, LeaseArgs, LockCommand, MultilockCommand, NoteArgs,
    ReleaseArgs, SemaphoreCommand, TtlArgs,
};
use crate::client::{ANSWER_GRACE, Ask, Client, Failure, ServerArgs, Target, check_name, new_request_id};

/// One thing to ask of a server.
pub(super) struct Question {
    pub(super) client: ClientArgs,
    pub(super) what: What,
    /// Whether what was not held any more is a failure.
    pub(super) strict: bool,
}

pub(super) enum What {
    /// Wait for a lease.
    Acquire(Target, Ask),
    /// One call.
    Call { method: Method, path: String, body: Option<Value>, wait: Duration },
    /// All pages of a list.
    List { prefix: String },
}

impl Question {
    fn new(client: ClientArgs, what: What) -> Self {
        Self { client, what, strict: false }
    }
}

pub(super) fn call(
    client: ClientArgs,
    method: Method,
    path: String,
    body: Option<Map<String, Value>>,
) -> Question {
    let body = body.map(Value::Object);
    Question::new(client, What::Call { method, path, body, wait: Duration::ZERO })
}

pub(super) fn get(client: ClientArgs, path: impl Into<String>) -> Question {
    call(client, Method::GET, path.into(), None)
}

fn post(client: ClientArgs, path: impl Into<String>, body: Map<String, Value>) -> Question {
    call(client, Method::POST, path.into(), Some(body))
}

fn acquire(target: Target, args: AskArgs, note: Option<NoteArgs>) -> Result<Question, Failure> {
    target.check()?;
    let (owner, metadata) = note.map_or((None, Vec::new()), |note| (note.owner, note.metadata));
    let ask = Ask {
        ttl: args.ttl.map(|ttl| ttl.0),
        wait: Some(args.wait.0),
        max_hold: args.max_hold.map(|max_hold| max_hold.0),
        owner,
        metadata,
        request_id: args.request_id,
        ..Ask::default()
    };
    Ok(Question::new(args.client, What::Acquire(target, ask)))
}

fn extend(target: &Target, ttl: TtlArgs, lease: LeaseArgs) -> Result<Question, Failure> {
    target.check()?;
    let mut body = target.body();
    body.insert("lease_id".to_owned(), json!(lease.lease_id));
    if let Some(ttl) = ttl.ttl {
        body.insert("ttl_ms".to_owned(), json!(ttl.0.as_millis() as u64));
    }
    Ok(post(lease.client, target.extend_path(), body))
}

fn release(target: &Target, ReleaseArgs { strict, lease }: ReleaseArgs) -> Result<Question, Failure> {
    target.check()?;
    let mut body = target.body();
    body.insert("lease_id".to_owned(), json!(lease.lease_id));
    Ok(Question { strict, ..post(lease.client, target.release_path(), body) })
}

pub(super) fn lock(command: LockCommand) -> Result<Question, Failure> {
    match command {
        LockCommand::Acquire { name, ask, note } => acquire(Target::Lock(name), ask, Some(note)),
        LockCommand::Extend { name, ttl, lease } => extend(&Target::Lock(name), ttl, lease),
        LockCommand::Release { name, release: given } => release(&Target::Lock(name), given),
        LockCommand::Get { name, client } => {
            check_name(&name)?;
            Ok(get(client, format!("v1/locks/{name}")))
        }
        LockCommand::List { prefix, client } => {
            if !crate::domain::Name::is_prefix(&prefix) {
                return Err(Failure::Usage(format!("no name begins with {prefix:?}")));
            }
            Ok(Question::new(client, What::List { prefix }))
        }
        LockCommand::ForceRelease { name, reason, client } => {
            check_name(&name)?;
            let path = format!("v1/locks/{name}?");
            let start = path.len();
            let mut query = url::form_urlencoded::Serializer::for_suffix(path, start);
            query.extend_pairs(reason.map(|reason| ("reason", reason)));
            Ok(call(client, Method::DELETE, query.finish(), None))
        }
    }
}

pub(super) fn multilock(command: MultilockCommand) -> Result<Question, Failure> {
    match command {
        MultilockCommand::Acquire { names, ask, note } => acquire(Target::Multilock(names), ask, Some(note)),
        MultilockCommand::Extend { names, ttl, lease } => extend(&Target::Multilock(names), ttl, lease),
        MultilockCommand::Release { names, release: given } => release(&Target::Multilock(names), given),
    }
}

pub(super) fn semaphore(command: SemaphoreCommand) -> Result<Question, Failure> {
    let held = |name: String| Target::Semaphore { name, limit: 1, permits: 1 };
    match command {
        SemaphoreCommand::Acquire { name, limit, permits, ask, note } => {
            acquire(Target::Semaphore { name, limit, permits }, ask, Some(note))
        }
        SemaphoreCommand::Extend { name, ttl, lease } => extend(&held(name), ttl, lease),
        SemaphoreCommand::Release { name, release: given } => release(&held(name), given),
        SemaphoreCommand::Get { name, client } => {
            check_name(&name)?;
            Ok(get(client, format!("v1/semaphores/{name}")))
        }
    }
}

pub(super) fn election(command: ElectionCommand) -> Result<Question, Failure> {
    let held = |name: String| Target::Election { name, candidate: String::new(), value: None };
    match command {
        ElectionCommand::Campaign { name, candidate, value, ask } => {
            let candidate = candidate.unwrap_or_else(super::run::own_name);
            acquire(Target::Election { name, candidate, value }, ask, None)
        }
        ElectionCommand::Extend { name, ttl, lease } => extend(&held(name), ttl, lease),
        ElectionCommand::Resign { name, release: given } => release(&held(name), given),
        ElectionCommand::Proclaim { name, value, lease } => {
            check_name(&name)?;
            let body = [("lease_id", json!(lease.lease_id)), ("value", json!(value))];
            let body = body.map(|(key, value)| (key.to_owned(), value));
            Ok(post(lease.client, format!("v1/elections/{name}/proclaim"), Map::from_iter(body)))
        }
        ElectionCommand::Get { name, after, wait, client } => {
            check_name(&name)?;
            let wait = wait.map_or(Duration::ZERO, |wait| wait.0);
            let mut path = format!("v1/elections/{name}");
            if let Some(after) = after {
                let mut query = url::form_urlencoded::Serializer::new(String::new());
                query.append_pair("after", &after).append_pair("wait_ms", &wait.as_millis().to_string());
                path = format!("{path}?{}", query.finish());
            }
            Ok(Question::new(client, What::Call { method: Method::GET, path, body: None, wait }))
        }
    }
}

pub(super) fn fence(command: FenceCommand) -> Result<Question, Failure> {
    match command {
        FenceCommand::Issue { name, client } => {
            check_name(&name)?;
            Ok(post(client, format!("v1/fencing/{name}/issue"), Map::new()))
        }
        FenceCommand::Check { name, fencing_token, client } => {
            check_name(&name)?;
            let body = Map::from_iter([("fencing_token".to_owned(), json!(fencing_token))]);
            Ok(post(client, format!("v1/fencing/{name}/check"), body))
        }
        FenceCommand::Get { name, client } => {
            check_name(&name)?;
            Ok(get(client, format!("v1/fencing/{name}")))
        }
    }
}

pub(super) async fn answer(server: &ServerArgs, what: What) -> Result<Value, Failure> {
    let client = Client::new(server)?;
    match what {
        What::Acquire(target, ask) => {
            let request_id = ask.request_id.clone().unwrap_or_else(new_request_id);
            Ok(client.acquire(&target, &ask, &request_id).await?.answer)
        }
        What::Call { method, path, body, wait } => {
            client.call(method, &path, body.as_ref(), wait + ANSWER_GRACE).await
        }
        What::List { prefix } => {
            let mut locks = Vec::new();
            let mut cursor: Option<String> = None;
            loop {
                let mut query = url::form_urlencoded::Serializer::new(String::new());
                query.append_pair("limit", "1000");
                if !prefix.is_empty() {
                    query.append_pair("prefix", &prefix);
                }
                if let Some(cursor) = &cursor {
                    query.append_pair("cursor", cursor);
                }
                let page = client.get(&format!("v1/locks?{}", query.finish()), Duration::ZERO).await?;
                locks.extend(page.get("locks").and_then(Value::as_array).into_iter().flatten().cloned());
                cursor = page.get("next_cursor").and_then(Value::as_str).map(str::to_owned);
                if cursor.is_none() {
                    return Ok(json!({ "locks": locks }));
                }
            }
        }
    }
}
