//! The command line with what clap cannot know of its help.

use clap::CommandFactory as _;

use super::args::Cli;
use crate::config::Settings;

/// Told by the help of each command that asks a server.
const KEY: &str = "The API key is read from the environment variable QUORATE_API_KEY.";

/// The command line with the environment variables of the settings in the help, which clap
/// cannot know, since the settings read the environment themselves.
pub(super) fn command() -> clap::Command {
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
        .fold(with_key(Cli::command()), |cli, name| cli.mut_subcommand(name, with_variables))
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
pub(super) const SHORTEST_TTL: &str = "100ms";

/// Settings that name nodes.
const OF_NODES: [&str; 6] =
    ["redis", "redis_file", "redis_password_file", "redis_ca", "redis_cert", "redis_key"];

/// What else marking them heeds.
const OF_INIT: [&str; 7] =
    ["node_timeout", "connect_timeout", "key_prefix", "max_ttl", "clock_bound", "log_format", "log_level"];

/// Adds to each command that asks a server where its key comes from.
fn with_key(mut command: clap::Command) -> clap::Command {
    let names: Vec<String> = command.get_subcommands().map(|each| each.get_name().to_owned()).collect();
    for name in names {
        command = command.mut_subcommand(name, with_key);
    }
    if command.get_arguments().all(|argument| argument.get_id() != "server") {
        return command;
    }
    let text = match command.get_after_help() {
        Some(more) => format!("{KEY}\n\n{more}"),
        None => KEY.to_owned(),
    };
    command.after_help(text)
}
