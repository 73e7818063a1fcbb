//! `quorate members`: through a server, or at the nodes themselves.

use clap::Parser as _;
use reqwest::Method;
use serde_json::json;

use super::args::{Cli, Command, MembersArgs, MembersAt, MembersCommand};
use super::ask;
use super::output::{Ended, failed, print_answer, usage};
use super::questions::{call, get};
use crate::config::{Config, ConfigError, Role};
use crate::server::{self, Change};

/// Shows the members, or has them changed.
pub(super) fn members(MembersArgs { command, at }: MembersArgs) -> Ended {
    let (change, at) = match command {
        None => (None, at),
        Some(MembersCommand::Add { url, at }) => (Some(Change::Add(url)), at),
        Some(MembersCommand::Replace { node, url, at }) => (Some(Change::Replace(node, url)), at),
        Some(MembersCommand::Remove { node, at }) => (Some(Change::Remove(node)), at),
        Some(MembersCommand::Close { node, at }) => (Some(Change::Close(node)), at),
        Some(MembersCommand::Retire { at }) => (Some(Change::Retire), at),
    };
    if at.redis.is_empty() { through_server(change, at) } else { at_nodes(change.as_ref(), &at) }
}

fn through_server(change: Option<Change>, MembersAt { client, .. }: MembersAt) -> Ended {
    let url = |url: String| json!({ "url": url }).as_object().cloned();
    ask(match change {
        None => get(client, "v1/members"),
        Some(Change::Add(new)) => call(client, Method::POST, "v1/members".to_owned(), url(new)),
        Some(Change::Replace(node, new)) => {
            call(client, Method::POST, format!("v1/members/{}/replace", segment(&node)), url(new))
        }
        Some(Change::Remove(node)) => {
            call(client, Method::DELETE, format!("v1/members/{}", segment(&node)), None)
        }
        Some(Change::Close(node)) => {
            call(client, Method::POST, format!("v1/members/{}/close", segment(&node)), None)
        }
        Some(Change::Retire) => {
            return Err(usage("retire asks the nodes themselves: give --redis URL for each"));
        }
    })
}

/// An address as a segment of a path.
fn segment(text: &str) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~".contains(byte);
    text.bytes().map(|b| if is_plain(&b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

fn at_nodes(change: Option<&Change>, at: &MembersAt) -> Ended {
    let config = config(at).map_err(usage)?;
    let view = server::block_on(1, 0, server::members(config, change)).map_err(failed)?;
    print_answer(&view.map_err(failed)?, at.client.output)
}

/// As `init` would read it, with what else the environment says of nodes.
fn config(at: &MembersAt) -> Result<Config, ConfigError> {
    let mut arguments = vec!["quorate", "init", "--key-prefix", &at.key_prefix];
    at.redis.iter().for_each(|url| arguments.extend(["--redis", url]));
    let read = Cli::try_parse_from(arguments).map_err(|cause| ConfigError::Value(cause.to_string()))?;
    let Command::Init(args) = read.command else {
        return Err(ConfigError::Value("no nodes are named".to_owned()));
    };
    args.config(|flag| matches!(flag, "redis" | "key_prefix"), Role::Init)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_one_segment_of_a_path() {
        assert_eq!(segment("redis://[::1]:6379"), "redis%3A%2F%2F%5B%3A%3A1%5D%3A6379");
        assert_eq!(segment("n3"), "n3");
    }
}
