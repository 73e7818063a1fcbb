//! The command line: one subcommand for the server in each of its shapes, one for each
//! thing that a client does.
//!
//! Answers go to stdout (JSON where the server answered), everything else to stderr. Exit
//! statuses are part of the contract: [`crate::client::exit`].

mod args;
mod client_args;
mod environment;
mod help;
mod manual;
mod members;
mod output;
mod questions;
mod run;

use std::process::ExitCode;

use serde_json::{Value, json};

use self::args::{Cli, Command, HealthcheckArgs, KeyOutput, KeysCommand, OpenapiVersion};
use self::client_args::Output;
use self::help::command;
use self::output::{Ended, Wrong, failed, print, print_answer, print_bytes, say, usage};
use self::questions::{Question, answer, election, fence, get, lock, multilock, semaphore};
use crate::access;
use crate::api;
use crate::client::{Client, exit};
use crate::config::{Config, ConfigError, LogFormat, Role, commented_file};
use crate::server;

/// The whole program.
pub fn main() -> ExitCode {
    // Several crates bring rustls along; which cryptography it uses is said once, here. It
    // fails only when it has been said before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let command = command();
    let set = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for line in environment::misspelt(&command, set) {
        say(line);
    }
    let read = command.try_get_matches();
    let read =
        read.and_then(|matches| Ok((<Cli as clap::FromArgMatches>::from_arg_matches(&matches)?, matches)));
    match read {
        Ok((cli, matches)) => {
            let ended = dispatch(cli.command, matches.subcommand().map(|(_, matches)| matches));
            ended.unwrap_or_else(|wrong| {
                say(wrong.why);
                ExitCode::from(wrong.status)
            })
        }
        // Help and version are answers, everything else is wrong usage.
        Err(answer) => {
            // A closed stdout or stderr is not worth a word.
            let _ = answer.print();
            if answer.use_stderr() { ExitCode::from(exit::USAGE) } else { ExitCode::SUCCESS }
        }
    }
}

fn dispatch(command: Command, matches: Option<&clap::ArgMatches>) -> Ended {
    // Flags that are given come before the environment, defaults after it.
    let is_given = |flag: &str| {
        let source = matches.and_then(|matches| matches.value_source(flag));
        source == Some(clap::parser::ValueSource::CommandLine)
    };
    match command {
        // In the environment they may be meant for another command.
        Command::Dev(args) if args.common.settings.names_nodes() => {
            Err(usage("dev has nodes of its own; with Redis nodes: quorate serve"))
        }
        Command::Dev(args) => {
            let role = Role::Dev { nodes: args.nodes };
            serve(args.common.config(is_given, role), role)
        }
        Command::Serve(args) => serve(args.config(is_given, Role::Serve), Role::Serve),
        Command::Init(args) => initialize(args.config(is_given, Role::Init)),
        Command::Run(args) => run::run_command(args),
        Command::Lock(command) => ask(lock(command)?),
        Command::Multilock(command) => ask(multilock(command)?),
        Command::Semaphore(command) => ask(semaphore(command)?),
        Command::Election(command) => ask(election(command)?),
        Command::Fence(command) => ask(fence(command)?),
        Command::Nodes { client } => ask(get(client, "v1/nodes")),
        Command::Members(args) => members::members(args),
        Command::Healthcheck(args) => healthcheck(&args),
        Command::Keys(KeysCommand::New { name, scope, prefix, output }) => {
            new_key(&name, &scope, &prefix, output)
        }
        Command::Config => print(&commented_file()),
        Command::Openapi { version: OpenapiVersion::V31 } => print(&api::openapi_json()),
        Command::Openapi { version: OpenapiVersion::V30 } => print(&api::openapi_3_0_json()),
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut self::command(), "quorate", &mut text);
            print_bytes(&text)
        }
        Command::Man { dir: None } => manual::print_page(self::command()),
        Command::Man { dir: Some(folder) } => manual::write_pages(self::command(), &folder),
    }
}

fn serve(config: Result<Config, ConfigError>, role: Role) -> Ended {
    let config = config.map_err(usage)?;
    let log = server::logging::start(&config).map_err(usage)?;
    let audit = server::logging::start_audit(&config).map_err(usage)?;
    let (threads, nodes, log_format) = (config.threads, config.redis.len(), config.log_format);
    let ended = server::block_on(threads, nodes, server::run(config, role)).map_err(failed)?;
    let is_heard = tracing::enabled!(tracing::Level::ERROR);
    if let (Err(cause), LogFormat::Json, true) = (&ended, log_format, is_heard) {
        // Where the log is for machines, the last words are too.
        tracing::error!(%cause, "cannot serve");
        return Ok(ExitCode::from(1));
    }
    // Last words come last.
    drop((audit, log));
    ended.map_err(failed)
}

fn initialize(config: Result<Config, ConfigError>) -> Ended {
    let config = config.map_err(usage)?;
    let _log = server::logging::start(&config).map_err(usage)?;
    let report = server::block_on(1, 0, server::initialize(config)).map_err(failed)?;
    print(&report.map_err(failed)?)
}

/// Asks, prints the answer, and says by the exit status what came of it.
fn ask(Question { client, what, strict }: Question) -> Ended {
    let asked = server::block_on(1, 0, answer(&client.server, what));
    let answer = asked.map_err(|cause| Wrong::new(exit::UNAVAILABLE, cause))??;
    let printed = print_answer(&answer, client.output);
    let not_held = strict && answer.get("released").and_then(Value::as_bool) == Some(false);
    if not_held { Err(Wrong::new(exit::LOST, "nothing was held")) } else { printed }
}

fn healthcheck(args: &HealthcheckArgs) -> Ended {
    let path = if args.live { "livez" } else { "readyz" };
    let asked = server::block_on(1, 0, async {
        let client = Client::new(&args.server)?;
        client.probe(path, args.timeout.0).await
    });
    asked.map_err(failed)?.map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}

fn new_key(name: &str, scopes: &[String], prefixes: &[String], output: Option<KeyOutput>) -> Ended {
    let (secret, entry) = access::new_key(name, scopes, prefixes).map_err(usage)?;
    if output == Some(KeyOutput::Json) {
        let file: Value = toml::from_str(&entry).map_err(failed)?;
        return print_answer(&json!({"secret": secret, "entry": file["key"][0]}), Some(Output::Json));
    }
    print(&format!(
        "API key, shown only now (for clients: QUORATE_API_KEY, or Authorization: Bearer):\n\n{secret}\n\n\
         Entry for the key file (--api-keys), which the server reads again by itself:\n\n{entry}\n"
    ))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::help::SHORTEST_TTL;
    use super::run::target_of;
    use super::*;
    use crate::client::Target;
    use crate::config::Settings;

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
