//! `quorate run`: from arguments to what is held around the command.

use std::process::ExitCode;

use super::args::RunArgs;
use super::output::{Ended, Wrong, usage};
use crate::client::run::{self, Job};
use crate::client::{Ask, Client, Target, exit};
use crate::server;

pub(super) fn run_command(args: RunArgs) -> Ended {
    let job = Job {
        target: target_of(&args).map_err(usage)?,
        ask: Ask {
            ttl: args.ttl.map(|ttl| ttl.0),
            wait: args.wait.map(|wait| wait.0),
            shared: args.shared,
            max_hold: args.max_hold.map(|max_hold| max_hold.0),
            owner: Some(args.owner.unwrap_or_else(own_name)),
            ..Ask::default()
        },
        command: args.command,
        kill_after: args.kill_after.0,
        verbose: args.verbose,
    };
    job.target.check()?;
    let client = Client::new(&args.server)?;
    let status = server::block_on(1, 0, run::run(&client, &job));
    status.map(ExitCode::from).map_err(|cause| Wrong::new(exit::UNAVAILABLE, cause))
}

/// What `quorate run` is to hold. Checked by hand: clap does not ask for what an argument
/// requires where a group excludes it.
pub(super) fn target_of(args: &RunArgs) -> Result<Target, &'static str> {
    if args.semaphore.is_none() && (args.limit.is_some() || args.permits.is_some()) {
        return Err("--limit and --permits go with --semaphore");
    }
    if args.shared && args.lock.len() != 1 {
        return Err("--shared goes with one --lock");
    }
    if args.election.is_none() && (args.candidate.is_some() || args.value.is_some()) {
        return Err("--candidate and --value go with --election");
    }
    if args.election.is_some() && args.owner.is_some() {
        return Err("--owner does not go with --election: see --candidate");
    }
    if let Some(name) = args.semaphore.clone() {
        let limit = args.limit.ok_or("--semaphore needs --limit")?;
        return Ok(Target::Semaphore { name, limit, permits: args.permits.unwrap_or(1) });
    }
    if let Some(name) = args.election.clone() {
        let candidate = args.candidate.clone().unwrap_or_else(own_name);
        return Ok(Target::Election { name, candidate, value: args.value.clone() });
    }
    match args.lock.as_slice() {
        [name] => Ok(Target::Lock(name.clone())),
        names => Ok(Target::Multilock(names.to_vec())),
    }
}

/// How a holder shows itself unless told otherwise.
pub(super) fn own_name() -> String {
    format!("{}:{}", host_name(), std::process::id())
}

fn host_name() -> String {
    let name = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    name.unwrap_or_else(|| "unknown".to_owned())
}
