//! The command line: one subcommand for the server in each of its shapes, one for each
//! thing that a client does.
//!
//! Answers go to stdout (JSON where the server answered), everything else to stderr. Exit
//! statuses are part of the contract: [`crate::client::exit`].

mod args;
mod questions;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use clap::CommandFactory;
use serde_json::Value;

use self::args::{Cli, Command, HealthcheckArgs, KeysCommand, OpenapiVersion, RunArgs};
use self::questions::{Question, answer, election, fence, get, lock, multilock, semaphore};
use crate::api;
use crate::client::run::{self, Job};
use crate::client::{Ask, Client, Failure, Target, exit};
use crate::config::{Config, ConfigError, LogFormat, Role, Settings, commented_file};
use crate::server;

/// The whole program.
pub fn main() -> ExitCode {
    // Several crates bring rustls along; which cryptography it uses is said once, here. It
    // fails only when it has been said before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let read = command().try_get_matches();
    let read =
        read.and_then(|matches| Ok((<Cli as clap::FromArgMatches>::from_arg_matches(&matches)?, matches)));
    match read {
        Ok((cli, matches)) => dispatch(cli.command, matches.subcommand().map(|(_, matches)| matches)),
        // Help and version are answers, everything else is wrong usage.
        Err(answer) => {
            // A closed stdout or stderr is not worth a word.
            let _ = answer.print();
            if answer.use_stderr() { ExitCode::from(exit::USAGE) } else { ExitCode::SUCCESS }
        }
    }
}

/// The command line with the environment variables of the settings in the help, which clap
/// cannot know, since the settings read the environment themselves.
fn command() -> clap::Command {
    let names = Settings::names();
    let with_variables = |command: clap::Command| {
        command.mut_args(|arg| match arg.get_help() {
            Some(help) if names.iter().any(|name| name == arg.get_id().as_str()) => {
                let text = format!("{help} [env: {}]", Settings::variable(arg.get_id().as_str()));
                arg.help(text)
            }
            _ => arg,
        })
    };
    // They may be given all the same, as in a file that is for both.
    let without = |command: clap::Command, hidden: &dyn Fn(&str) -> bool| {
        command.mut_args(|arg| {
            let hide =
                names.iter().any(|name| name == arg.get_id().as_str()) && hidden(arg.get_id().as_str());
            arg.hide(hide)
        })
    };
    let is_of_nodes = |name: &str| OF_NODES.contains(&name);
    let is_not_of_init = |name: &str| !OF_NODES.contains(&name) && !OF_INIT.contains(&name);
    ["dev", "serve", "init"]
        .into_iter()
        .fold(Cli::command(), |cli, name| cli.mut_subcommand(name, with_variables))
        // A banner, or a report, says all that there is to say until something is wrong. And to mark nodes
        // grants nothing: the servers note what they may grant before they do.
        .mut_subcommand("init", |command| {
            without(command, &is_not_of_init).mut_args(|arg| match arg.get_id().as_str() {
                "max_ttl" => arg.default_value(SHORTEST_TTL),
                "log_level" => arg.default_value("error"),
                _ => arg,
            })
        })
        .mut_subcommand("dev", |command| {
            without(command, &is_of_nodes).mut_arg("log_level", |arg| arg.default_value("error"))
        })
}

/// The lower bound of `--max-ttl`.
const SHORTEST_TTL: &str = "100ms";

/// Settings that name nodes.
const OF_NODES: [&str; 4] = ["redis", "redis_file", "redis_password_file", "redis_ca"];

/// What else marking them heeds.
const OF_INIT: [&str; 7] =
    ["node_timeout", "connect_timeout", "key_prefix", "max_ttl", "clock_bound", "log_format", "log_level"];

fn dispatch(command: Command, matches: Option<&clap::ArgMatches>) -> ExitCode {
    // Flags that are given come before the environment, defaults after it.
    let is_given = |flag: &str| {
        let source = matches.and_then(|matches| matches.value_source(flag));
        source == Some(clap::parser::ValueSource::CommandLine)
    };
    match command {
        // In the environment they may be meant for another command.
        Command::Dev(args) if args.common.settings.names_nodes() => {
            wrong(exit::USAGE, "dev has nodes of its own; with Redis nodes: quorate serve")
        }
        Command::Dev(args) => {
            let role = Role::Dev { nodes: args.nodes };
            serve(args.common.config(is_given, role), role)
        }
        Command::Serve(args) => serve(args.config(is_given, Role::Serve), Role::Serve),
        Command::Init(args) => initialize(args.config(is_given, Role::Init)),
        Command::Run(args) => run_command(args),
        Command::Lock(command) => ask(lock(command)),
        Command::Multilock(command) => ask(multilock(command)),
        Command::Semaphore(command) => ask(semaphore(command)),
        Command::Election(command) => ask(election(command)),
        Command::Fence(command) => ask(fence(command)),
        Command::Nodes { server } => ask(Ok(get(server, "v1/nodes"))),
        Command::Healthcheck(args) => healthcheck(&args),
        Command::Keys(KeysCommand::New { name, scope, prefix }) => new_key(&name, &scope, &prefix),
        Command::Config => print(&commented_file()),
        Command::Openapi { version: OpenapiVersion::V31 } => print(&api::openapi_json()),
        Command::Openapi { version: OpenapiVersion::V30 } => print(&api::openapi_3_0_json()),
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut self::command(), "quorate", &mut text);
            print_bytes(&text)
        }
        Command::Man => manual(),
    }
}

fn serve(config: Result<Config, ConfigError>, role: Role) -> ExitCode {
    let config = match config {
        Ok(config) => config,
        Err(cause) => return wrong(exit::USAGE, cause),
    };
    let log = match server::logging::start(&config) {
        Ok(log) => log,
        Err(cause) => return wrong(exit::USAGE, cause),
    };
    let log_format = config.log_format;
    let nodes = config.redis.len();
    let ended = server::block_on(config.threads, nodes, server::run(config, role));
    let is_heard = tracing::enabled!(tracing::Level::ERROR);
    if let (Ok(Err(cause)), LogFormat::Json, true) = (&ended, log_format, is_heard) {
        // Where the log is for machines, the last words are too.
        tracing::error!(%cause, "cannot serve");
        return ExitCode::from(1);
    }
    // Last words come last.
    drop(log);
    match ended {
        Ok(Ok(code)) => code,
        Ok(Err(cause)) => wrong(1, cause),
        Err(cause) => wrong(1, cause),
    }
}

fn initialize(config: Result<Config, ConfigError>) -> ExitCode {
    let config = match config {
        Ok(config) => config,
        Err(cause) => return wrong(exit::USAGE, cause),
    };
    let log = match server::logging::start(&config) {
        Ok(log) => log,
        Err(cause) => return wrong(exit::USAGE, cause),
    };
    let ended = server::block_on(1, 0, server::initialize(config));
    drop(log);
    match ended {
        Ok(Ok(report)) => print(&report),
        Ok(Err(cause)) => wrong(1, cause),
        Err(cause) => wrong(1, cause),
    }
}

fn run_command(args: RunArgs) -> ExitCode {
    let target = match target_of(&args) {
        Ok(target) => target,
        Err(why) => return wrong(exit::USAGE, why),
    };
    let job = Job {
        target,
        ask: Ask {
            ttl: args.ttl.map(|ttl| ttl.0),
            wait: args.wait.map(|wait| wait.0),
            owner: Some(args.owner.unwrap_or_else(own_name)),
            ..Ask::default()
        },
        command: args.command,
        kill_after: args.kill_after.0,
        verbose: args.verbose,
    };
    let client = match job.target.check().and_then(|()| Client::new(&args.server)) {
        Ok(client) => client,
        Err(failure) => return wrong(failure.status(), failure),
    };
    match server::block_on(1, 0, run::run(&client, &job)) {
        Ok(status) => ExitCode::from(status),
        Err(cause) => wrong(exit::UNAVAILABLE, cause),
    }
}

/// What `quorate run` is to hold. Checked by hand: clap does not ask for what an argument
/// requires where a group excludes it.
fn target_of(args: &RunArgs) -> Result<Target, &'static str> {
    if args.semaphore.is_none() && (args.limit.is_some() || args.permits.is_some()) {
        return Err("--limit and --permits go with --semaphore");
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
fn own_name() -> String {
    format!("{}:{}", host_name(), std::process::id())
}

fn host_name() -> String {
    let name = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    name.unwrap_or_else(|| "unknown".to_owned())
}

/// Asks, prints the answer, and says by the exit status what came of it.
fn ask(question: Result<Question, Failure>) -> ExitCode {
    let outcome = question.and_then(|question| {
        server::block_on(1, 0, answer(question))
            .map_err(|cause| Failure::Unreachable { why: cause.to_string(), cut: false })?
    });
    match outcome {
        Ok(answer) => print_json(&answer),
        Err(failure) => wrong(failure.status(), failure),
    }
}

fn healthcheck(args: &HealthcheckArgs) -> ExitCode {
    let path = if args.live { "livez" } else { "readyz" };
    let asked = server::block_on(1, 0, async {
        let client = Client::new(&args.server)?;
        client.probe(path, args.timeout.0).await
    });
    match asked {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(failure)) => wrong(1, failure),
        Err(cause) => wrong(1, cause),
    }
}

fn new_key(name: &str, scopes: &[String], prefixes: &[String]) -> ExitCode {
    let (secret, entry) = match api::auth::new_key(name, scopes, prefixes) {
        Ok(key) => key,
        Err(cause) => return wrong(exit::USAGE, cause),
    };
    print(&format!(
        "API key, shown only now (for clients: QUORATE_API_KEY, or Authorization: Bearer):\n\n{secret}\n\n\
         Entry for the key file (--api-keys), which the server reads again by itself:\n\n{entry}\n"
    ))
}

/// One page for all commands, each with its own section.
fn manual() -> ExitCode {
    let mut text = Vec::new();
    let mut command = command();
    command.build();
    if let Err(cause) = clap_mangen::Man::new(command.clone()).render(&mut text) {
        return wrong(1, cause);
    }
    for subcommand in command.get_subcommands().filter(|subcommand| subcommand.get_name() != "help") {
        let name = subcommand.get_name().to_ascii_uppercase();
        let man = clap_mangen::Man::new(subcommand.clone());
        let section = writeln!(text, ".SH {name}")
            .and_then(|()| man.render_synopsis_section(&mut text))
            .and_then(|()| man.render_options_section(&mut text));
        if let Err(cause) = section {
            return wrong(1, cause);
        }
    }
    print_bytes(&text)
}

fn print(text: &str) -> ExitCode {
    let mut text = text.to_owned();
    if !text.ends_with('\n') {
        text.push('\n');
    }
    print_bytes(text.as_bytes())
}

/// Pretty for people, one line for programs.
fn print_json(value: &Value) -> ExitCode {
    let text = match std::io::stdout().is_terminal() {
        true => serde_json::to_string_pretty(value),
        false => serde_json::to_string(value),
    };
    match text {
        Ok(text) => print(&text),
        Err(cause) => wrong(1, cause),
    }
}

fn print_bytes(bytes: &[u8]) -> ExitCode {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        // `quorate config | head` is not a failure.
        Err(cause) if cause.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(cause) => wrong(1, cause),
    }
}

fn wrong(status: u8, why: impl std::fmt::Display) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "quorate: {why}");
    ExitCode::from(status)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn parse(words: &[&str]) -> Result<Cli, clap::Error> {
        Cli::try_parse_from([&["quorate"], words].concat())
    }

    /// What would be held; none where that is wrong usage.
    fn target(words: &[&str]) -> Option<Target> {
        match parse(words).ok()?.command {
            Command::Run(args) => target_of(&args).ok(),
            _ => None,
        }
    }

    #[test]
    fn the_command_line_is_well_formed() {
        command().debug_assert();
    }

    #[test]
    fn every_setting_tells_its_variable_in_the_help() {
        let mut all = command();
        let help = all.find_subcommand_mut("serve").unwrap().render_long_help().to_string();
        for name in Settings::names() {
            let variable = format!("[env: {}]", Settings::variable(&name));
            assert!(help.replace("\n          ", " ").contains(&variable), "{variable} in {help}");
        }
    }

    #[test]
    fn the_help_tells_of_what_a_command_heeds() {
        let help = |name: &str| command().find_subcommand_mut(name).unwrap().render_long_help().to_string();
        for (name, heeded, not) in [
            ("init", &["--redis-file", "--max-ttl", "--log-level"][..], &["--listen", "--max-waiters"][..]),
            ("dev", &["--listen", "--nodes", "--node-timeout"], &["--redis", "QUORATE_REDIS"]),
            ("serve", &["--listen", "--redis"], &["--nodes"]),
        ] {
            let help = help(name);
            assert!(heeded.iter().all(|word| help.contains(word)), "{help}");
            assert!(!not.iter().any(|word| help.contains(word)), "{help}");
        }
    }

    #[test]
    fn what_follows_the_command_is_the_commands() {
        for words in [
            &["run", "--lock", "a", "--", "ls", "-l", "--lock", "b"][..],
            &["run", "--lock", "a", "ls", "-l", "--lock", "b"],
        ] {
            let Command::Run(args) = parse(words).unwrap().command else { panic!("{words:?}") };
            assert_eq!(args.lock, ["a"]);
            assert_eq!(args.command, ["ls", "-l", "--lock", "b"]);
        }
    }

    #[test]
    fn run_holds_exactly_one_kind_of_thing() {
        for words in [
            &["run", "--", "true"][..],
            &["run", "--lock", "a"],
            &["run", "--lock", "a", "--election", "b", "--", "true"],
            &["run", "--semaphore", "a", "--", "true"],
            &["run", "--lock", "a", "--limit", "3", "--", "true"],
            &["run", "--lock", "a", "--candidate", "me", "--", "true"],
            &["run", "--election", "a", "--owner", "me", "--", "true"],
            &["run", "--lock", "a", "--tll", "3s", "--", "true"],
            &["run", "--lock", "a", "--ttl", "soon", "--", "true"],
        ] {
            assert!(target(words).is_none(), "{words:?}");
        }
        let names = ["a".to_owned(), "b".to_owned()].to_vec();
        assert_eq!(
            target(&["run", "--lock", "a", "--lock", "b", "--", "true"]),
            Some(Target::Multilock(names))
        );
        let semaphore = Target::Semaphore { name: "a".to_owned(), limit: 3, permits: 1 };
        assert_eq!(target(&["run", "--semaphore", "a", "--limit", "3", "--", "true"]), Some(semaphore));
    }

    #[test]
    fn flags_that_are_switches_may_be_given_a_value() {
        for (words, value) in [
            (&["serve", "--insecure-no-auth"][..], true),
            (&["serve", "--insecure-no-auth=false"], false),
            (&["serve", "--insecure-no-auth=1"], true),
            (&["serve", "--insecure-no-auth=No"], false),
            (&["serve"], false),
        ] {
            let Command::Serve(args) = parse(words).unwrap().command else { panic!("{words:?}") };
            assert_eq!(args.settings.insecure_no_auth.0, value);
        }
    }

    #[test]
    fn to_mark_nodes_says_nothing_of_how_long_leases_live_unless_told() {
        let max_ttl = |words: &[&str]| {
            let matches = command().try_get_matches_from([&["quorate"], words].concat()).unwrap();
            match <Cli as clap::FromArgMatches>::from_arg_matches(&matches).unwrap().command {
                Command::Init(args) | Command::Serve(args) => args.settings.max_ttl.to_string(),
                _ => panic!("{words:?}"),
            }
        };
        assert_eq!(max_ttl(&["init"]), "100ms");
        assert_eq!(max_ttl(&["serve"]), "5m");
        assert_eq!(max_ttl(&["init", "--max-ttl", "7s"]), "7s");
        assert_eq!(SHORTEST_TTL.parse(), Ok(crate::config::Span(crate::config::TTL_MIN)));
    }

    #[test]
    fn manual_and_completions_can_be_made() {
        let mut text = Vec::new();
        clap_complete::generate(clap_complete::Shell::Bash, &mut self::command(), "quorate", &mut text);
        assert!(String::from_utf8(text).unwrap().contains("healthcheck"));
    }
}
