//! What client commands ask of a server.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Map, Value, json};

use super::client_args::{
    AskArgs, ClientArgs, ElectionCommand, ExtendArgs, FenceCommand, LockCommand, MultilockCommand, Named,
    NamedByMany, NoteArgs, ReleaseArgs, SemaphoreCommand,
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

/// The path of a name, which is a segment of it as it stands.
fn path(kind: &str, name: &str, verb: &str) -> Result<String, Failure> {
    check_name(name)?;
    Ok(format!("v1/{kind}/{name}{verb}"))
}

/// The path with those of the parameters that are given.
fn with_query<const N: usize>(path: &str, parameters: [(&str, Option<&str>); N]) -> String {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(parameters.into_iter().filter_map(|(name, value)| Some((name, value?))));
    match query.finish().as_str() {
        "" => path.to_owned(),
        query => format!("{path}?{query}"),
    }
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

fn extend(target: &Target, ExtendArgs { ttl, lease }: ExtendArgs) -> Result<Question, Failure> {
    target.check()?;
    let mut body = target.body();
    body.insert("lease_id".to_owned(), json!(lease.lease_id));
    if let Some(ttl) = ttl {
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
        LockCommand::Extend(Named { name, args }) => extend(&Target::Lock(name), args),
        LockCommand::Release(Named { name, args }) => release(&Target::Lock(name), args),
        LockCommand::Get(Named { name, args }) => Ok(get(args, path("locks", &name, "")?)),
        LockCommand::List { prefix, client } => {
            if !crate::domain::Name::is_prefix(&prefix) {
                return Err(Failure::Usage(format!("no name begins with {prefix:?}")));
            }
            Ok(Question::new(client, What::List { prefix }))
        }
        LockCommand::ForceRelease { name, reason, client } => {
            let path = with_query(&path("locks", &name, "")?, [("reason", reason.as_deref())]);
            Ok(call(client, Method::DELETE, path, None))
        }
    }
}

pub(super) fn multilock(command: MultilockCommand) -> Result<Question, Failure> {
    match command {
        MultilockCommand::Acquire { names, ask, note } => acquire(Target::Multilock(names), ask, Some(note)),
        MultilockCommand::Extend(NamedByMany { names, args }) => extend(&Target::Multilock(names), args),
        MultilockCommand::Release(NamedByMany { names, args }) => release(&Target::Multilock(names), args),
    }
}

pub(super) fn semaphore(command: SemaphoreCommand) -> Result<Question, Failure> {
    let held = |name: String| Target::Semaphore { name, limit: 1, permits: 1 };
    match command {
        SemaphoreCommand::Acquire { name, limit, permits, ask, note } => {
            acquire(Target::Semaphore { name, limit, permits }, ask, Some(note))
        }
        SemaphoreCommand::Extend(Named { name, args }) => extend(&held(name), args),
        SemaphoreCommand::Release(Named { name, args }) => release(&held(name), args),
        SemaphoreCommand::Get(Named { name, args }) => Ok(get(args, path("semaphores", &name, "")?)),
    }
}

pub(super) fn election(command: ElectionCommand) -> Result<Question, Failure> {
    let held = |name: String| Target::Election { name, candidate: String::new(), value: None };
    match command {
        ElectionCommand::Campaign { name, candidate, value, ask } => {
            let candidate = candidate.unwrap_or_else(super::run::own_name);
            acquire(Target::Election { name, candidate, value }, ask, None)
        }
        ElectionCommand::Extend(Named { name, args }) => extend(&held(name), args),
        ElectionCommand::Resign(Named { name, args }) => release(&held(name), args),
        ElectionCommand::Proclaim { name, value, lease } => {
            let body = [("lease_id", json!(lease.lease_id)), ("value", json!(value))];
            let body = body.map(|(key, value)| (key.to_owned(), value));
            Ok(post(lease.client, path("elections", &name, "/proclaim")?, Map::from_iter(body)))
        }
        ElectionCommand::Get { name, after, wait, client } => {
            let wait = wait.map_or(Duration::ZERO, |wait| wait.0);
            let wait_ms = after.is_some().then(|| wait.as_millis().to_string());
            let query = [("after", after.as_deref()), ("wait_ms", wait_ms.as_deref())];
            let path = with_query(&path("elections", &name, "")?, query);
            Ok(Question::new(client, What::Call { method: Method::GET, path, body: None, wait }))
        }
    }
}

pub(super) fn fence(command: FenceCommand) -> Result<Question, Failure> {
    match command {
        FenceCommand::Issue(Named { name, args }) => {
            Ok(post(args, path("fencing", &name, "/issue")?, Map::new()))
        }
        FenceCommand::Check { name, fencing_token, client } => {
            let body = Map::from_iter([("fencing_token".to_owned(), json!(fencing_token))]);
            Ok(post(client, path("fencing", &name, "/check")?, body))
        }
        FenceCommand::Get(Named { name, args }) => Ok(get(args, path("fencing", &name, "")?)),
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
                let prefix = Some(prefix.as_str()).filter(|prefix| !prefix.is_empty());
                let query = [("limit", Some("1000")), ("prefix", prefix), ("cursor", cursor.as_deref())];
                let page = client.get(&with_query("v1/locks", query), Duration::ZERO).await?;
                locks.extend(page.get("locks").and_then(Value::as_array).into_iter().flatten().cloned());
                cursor = page.get("next_cursor").and_then(Value::as_str).map(str::to_owned);
                if cursor.is_none() {
                    return Ok(json!({ "locks": locks }));
                }
            }
        }
    }
}
