//! Everything that a node is told and asked before the first call.

use bb8_redis::redis::aio::MultiplexedConnection;
use bb8_redis::redis::{self, Cmd, Pipeline};
use tokio::time::Instant;

use super::run;
use super::target::{ConnectError, RawConnection, Target, in_time};
use crate::node::{Identity, NodeError, Script, Value};

/// A command, and what becomes of its reply.
#[derive(Clone, Copy)]
enum Step {
    Must(&'static str),
    May,
    Load(Script),
    Info,
}

/// Makes a connection that is ready: authenticated, on its database, with all scripts loaded;
/// and reads who the node is.
pub(super) async fn connect(
    target: &Target,
    in_flight: usize,
) -> Result<(RawConnection, Identity), ConnectError> {
    let deadline = Instant::now() + target.connect_timeout;
    let mut raw = target.connect(in_flight, deadline).await?;
    let greeting = async {
        let RawConnection { commands, io, .. } = &mut raw;
        let identity = tokio::select! {
            biased;
            identity = greet(commands, target) => identity?,
            // The crate keeps to itself which of the two it was.
            () = io => return Err(ConnectError::new(target.of_silence())),
        };
        Ok(identity)
    };
    let identity = in_time(deadline, greeting).await?;
    Ok((raw, identity))
}

async fn greet(commands: &mut MultiplexedConnection, target: &Target) -> Result<Identity, ConnectError> {
    let mut steps: Vec<(Step, Cmd)> = Vec::new();
    if let Some(password) = target.password().await? {
        let mut auth = redis::cmd("AUTH");
        auth.arg(target.username.as_ref()).arg(password);
        steps.push((Step::Must("AUTH"), auth));
    }
    if target.database != 0 {
        steps.push((Step::Must("SELECT"), redis::cmd("SELECT").arg(target.database).to_owned()));
    }
    steps.extend(info_commands().map(|info| (Step::Info, info)));
    steps.extend(Script::texts().map(|script| (Step::Load(script), load(script))));
    // For CLIENT LIST, for people; an ACL may well forbid it.
    steps.push((Step::May, redis::cmd("CLIENT").arg("SETNAME").arg("quorate").to_owned()));

    let mut info = String::new();
    // The first goes alone: a node that refuses whoever connects (`DENIED`, too many clients, no
    // password) says so as the answer to it and closes, and the rest would only hide that.
    let rest = steps.split_off(1);
    for steps in [steps, rest] {
        let mut pipeline = Pipeline::new();
        for (_, command) in &steps {
            pipeline.add_command(command.clone());
        }
        let replies = commands.send_packed_commands(&pipeline, 0, steps.len()).await?;
        for ((step, _), reply) in steps.into_iter().zip(replies) {
            take(step, run::read(reply), &mut info)?;
        }
    }
    read_identity(&info).map_err(ConnectError::new)
}

fn take(step: Step, reply: Result<Value, NodeError>, info: &mut String) -> Result<(), ConnectError> {
    let name = match step {
        Step::Must(name) => name,
        Step::May => return Ok(()),
        Step::Load(_) => "SCRIPT LOAD",
        Step::Info => "INFO",
    };
    match (step, reply) {
        (Step::Must(_), Ok(_)) => Ok(()),
        (Step::Load(script), Ok(Value::Text(hash))) if hash == run::hash(script) => Ok(()),
        (Step::Info, Ok(Value::Text(part))) => {
            info.push_str(&part);
            Ok(())
        }
        (_, Err(NodeError::Redis(text))) => Err(ConnectError::new(format!("{name}: {text}"))),
        _ => Err(ConnectError::new(format!("{name}: an answer without sense"))),
    }
}

/// Asks who the node is. One section each: older servers take no more.
fn info_commands() -> impl Iterator<Item = Cmd> {
    ["server", "replication", "memory"].into_iter().map(|section| redis::cmd("INFO").arg(section).to_owned())
}

/// The same as one pipeline.
pub(super) fn info() -> Pipeline {
    pipeline(info_commands())
}

/// `SCRIPT LOAD` of every script.
pub(super) fn load_all() -> Pipeline {
    pipeline(Script::texts().map(load))
}

fn load(script: Script) -> Cmd {
    redis::cmd("SCRIPT").arg("LOAD").arg(script.text()).to_owned()
}

fn pipeline(commands: impl Iterator<Item = Cmd>) -> Pipeline {
    let mut pipeline = Pipeline::new();
    for command in commands {
        pipeline.add_command(command);
    }
    pipeline
}

/// Reads the replies to [`info`].
pub(super) fn identity(replies: Vec<redis::Value>) -> Result<Identity, NodeError> {
    let mut info = String::new();
    for reply in replies {
        match run::read(reply)? {
            Value::Text(part) => info.push_str(&part),
            _ => return Err(NodeError::Nonsense),
        }
    }
    read_identity(&info).map_err(|why| NodeError::Redis(why.into()))
}

fn read_identity(info: &str) -> Result<Identity, String> {
    let maybe = |name: &str| {
        let value = info.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'));
        value.filter(|value| !value.is_empty()).map(str::to_owned)
    };
    let field = |name: &str| maybe(name).ok_or_else(|| format!("INFO has no {name}"));
    // Valkey calls itself a Redis 7.2.4 as well, for clients that know no better.
    let version = match maybe("valkey_version") {
        Some(version) => format!("valkey {version}"),
        None => field("redis_version")?,
    };
    // Valkey 9 says it of a server, not of a Redis.
    match maybe("redis_mode").or_else(|| maybe("server_mode")).as_deref() {
        Some("cluster") => {
            return Err("runs in cluster mode, where a script may not use keys of several slots".into());
        }
        Some("sentinel") => return Err("is a Sentinel, not a Redis server".into()),
        _ => {}
    }
    Ok(Identity {
        run_id: field("run_id")?,
        role: field("role")?,
        eviction: field("maxmemory_policy")?,
        version,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "redis_version:7.2.4\r\nrun_id:abc\r\nrole:master\r\nmaxmemory_policy:noeviction\r\n";

    #[test]
    fn a_field_that_info_lacks_is_named() {
        assert_eq!(read_identity(INFO).unwrap().version, "7.2.4");
        for field in ["redis_version", "run_id", "role", "maxmemory_policy"] {
            let error = read_identity(&INFO.replace(field, "other")).unwrap_err();
            assert_eq!(error, format!("INFO has no {field}"));
        }
    }

    #[test]
    fn what_is_no_plain_server_is_called_what_it_is() {
        let of_mode = |mode: &str| read_identity(&format!("redis_mode:{mode}\r\n{INFO}"));
        assert!(of_mode("standalone").is_ok());
        assert!(of_mode("cluster").unwrap_err().contains("cluster mode"));
        assert!(of_mode("sentinel").unwrap_err().contains("Sentinel"));
        let valkey = read_identity(&format!("server_mode:cluster\r\n{INFO}"));
        assert!(valkey.unwrap_err().contains("cluster mode"));
    }

    #[test]
    fn valkey_is_called_by_its_own_name_and_version() {
        let info = format!("server_name:valkey\r\nvalkey_version:8.1.1\r\n{INFO}");
        assert_eq!(read_identity(&info).unwrap().version, "valkey 8.1.1");
    }
}
