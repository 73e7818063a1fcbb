//! What client commands ask of a server.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Map, Value, json};

use super::args::{
    AskArgs, ElectionCommand, FenceCommand, LeaseArgs, LockCommand, MultilockCommand, NoteArgs,
    SemaphoreCommand, TtlArgs,
};
use crate::client::{ANSWER_GRACE, Ask, Client, Failure, ServerArgs, Target, check_name, new_request_id};

/// One thing to ask of a server.
pub(super) enum Question {
    /// Wait for a lease.
    Acquire(ServerArgs, Target, Ask),
    /// One call.
    Call { server: ServerArgs, method: Method, path: String, body: Option<Value>, wait: Duration },
    /// All pages of a list.
    List { server: ServerArgs, prefix: String },
}

pub(super) fn get(server: ServerArgs, path: impl Into<String>) -> Question {
    Question::Call { server, method: Method::GET, path: path.into(), body: None, wait: Duration::ZERO }
}

fn post(server: ServerArgs, path: impl Into<String>, body: Map<String, Value>) -> Question {
    let body = Some(Value::Object(body));
    Question::Call { server, method: Method::POST, path: path.into(), body, wait: Duration::ZERO }
}

fn acquire(target: Target, args: AskArgs, note: Option<NoteArgs>) -> Result<Question, Failure> {
    target.check()?;
    let (owner, metadata) = note.map_or((None, Vec::new()), |note| (note.owner, note.metadata));
    let ask = Ask {
        ttl: args.ttl.map(|ttl| ttl.0),
        wait: Some(args.wait.0),
        owner,
        metadata,
        request_id: args.request_id,
    };
    Ok(Question::Acquire(args.server, target, ask))
}

fn extend(target: &Target, ttl: TtlArgs, lease: LeaseArgs) -> Result<Question, Failure> {
    target.check()?;
    let mut body = target.body();
    body.insert("lease_id".to_owned(), json!(lease.lease_id));
    if let Some(ttl) = ttl.ttl {
        body.insert("ttl_ms".to_owned(), json!(ttl.0.as_millis() as u64));
    }
    Ok(post(lease.server, target.extend_path(), body))
}

fn release(target: &Target, lease: LeaseArgs) -> Result<Question, Failure> {
    target.check()?;
    let mut body = target.body();
    body.insert("lease_id".to_owned(), json!(lease.lease_id));
    Ok(post(lease.server, target.release_path(), body))
}

pub(super) fn lock(command: LockCommand) -> Result<Question, Failure> {
    match command {
        LockCommand::Acquire { name, ask, note } => acquire(Target::Lock(name), ask, Some(note)),
        LockCommand::Extend { name, ttl, lease } => extend(&Target::Lock(name), ttl, lease),
        LockCommand::Release { name, lease } => release(&Target::Lock(name), lease),
        LockCommand::Get { name, server } => {
            check_name(&name)?;
            Ok(get(server, format!("v1/locks/{name}")))
        }
        LockCommand::List { prefix, server } => {
            if !crate::domain::Name::is_prefix(&prefix) {
                return Err(Failure::Usage(format!("no name begins with {prefix:?}")));
            }
            Ok(Question::List { server, prefix })
        }
        LockCommand::ForceRelease { name, server } => {
            check_name(&name)?;
            let path = format!("v1/locks/{name}");
            Ok(Question::Call { server, method: Method::DELETE, path, body: None, wait: Duration::ZERO })
        }
    }
}

pub(super) fn multilock(command: MultilockCommand) -> Result<Question, Failure> {
    match command {
        MultilockCommand::Acquire { names, ask, note } => acquire(Target::Multilock(names), ask, Some(note)),
        MultilockCommand::Extend { names, ttl, lease } => extend(&Target::Multilock(names), ttl, lease),
        MultilockCommand::Release { names, lease } => release(&Target::Multilock(names), lease),
    }
}

pub(super) fn semaphore(command: SemaphoreCommand) -> Result<Question, Failure> {
    let held = |name: String| Target::Semaphore { name, limit: 1, permits: 1 };
    match command {
        SemaphoreCommand::Acquire { name, limit, permits, ask, note } => {
            acquire(Target::Semaphore { name, limit, permits }, ask, Some(note))
        }
        SemaphoreCommand::Extend { name, ttl, lease } => extend(&held(name), ttl, lease),
        SemaphoreCommand::Release { name, lease } => release(&held(name), lease),
        SemaphoreCommand::Get { name, server } => {
            check_name(&name)?;
            Ok(get(server, format!("v1/semaphores/{name}")))
        }
    }
}

pub(super) fn election(command: ElectionCommand) -> Result<Question, Failure> {
    let held = |name: String| Target::Election { name, candidate: String::new(), value: None };
    match command {
        ElectionCommand::Campaign { name, candidate, value, ask } => {
            let candidate = candidate.unwrap_or_else(super::own_name);
            acquire(Target::Election { name, candidate, value }, ask, None)
        }
        ElectionCommand::Extend { name, ttl, lease } => extend(&held(name), ttl, lease),
        ElectionCommand::Resign { name, lease } => release(&held(name), lease),
        ElectionCommand::Proclaim { name, value, lease } => {
            check_name(&name)?;
            let body = [("lease_id", json!(lease.lease_id)), ("value", json!(value))];
            let body = body.map(|(key, value)| (key.to_owned(), value));
            Ok(post(lease.server, format!("v1/elections/{name}/proclaim"), Map::from_iter(body)))
        }
        ElectionCommand::Get { name, after, wait, server } => {
            check_name(&name)?;
            let wait = wait.map_or(Duration::ZERO, |wait| wait.0);
            let mut path = format!("v1/elections/{name}");
            if let Some(after) = after {
                let mut query = url::form_urlencoded::Serializer::new(String::new());
                query.append_pair("after", &after).append_pair("wait_ms", &wait.as_millis().to_string());
                path = format!("{path}?{}", query.finish());
            }
            Ok(Question::Call { server, method: Method::GET, path, body: None, wait })
        }
    }
}

pub(super) fn fence(command: FenceCommand) -> Result<Question, Failure> {
    match command {
        FenceCommand::Issue { name, server } => {
            check_name(&name)?;
            Ok(post(server, format!("v1/fencing/{name}/issue"), Map::new()))
        }
        FenceCommand::Check { name, fencing_token, server } => {
            check_name(&name)?;
            let body = Map::from_iter([("fencing_token".to_owned(), json!(fencing_token))]);
            Ok(post(server, format!("v1/fencing/{name}/check"), body))
        }
        FenceCommand::Get { name, server } => {
            check_name(&name)?;
            Ok(get(server, format!("v1/fencing/{name}")))
        }
    }
}

pub(super) async fn answer(question: Question) -> Result<Value, Failure> {
    match question {
        Question::Acquire(server, target, ask) => {
            let request_id = ask.request_id.clone().unwrap_or_else(new_request_id);
            let client = Client::new(&server)?;
            Ok(client.acquire(&target, &ask, &request_id).await?.answer)
        }
        Question::Call { server, method, path, body, wait } => {
            let within = wait + ANSWER_GRACE;
            Client::new(&server)?.call(method, &path, body.as_ref(), within).await
        }
        Question::List { server, prefix } => {
            let client = Client::new(&server)?;
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
