//! The words of the commands that ask a server. The doc comments are the text of `--help`.

use clap::{Args, Subcommand, ValueEnum};

use crate::client::ServerArgs;
use crate::config::Span;

/// What all that a server answers has in common.
#[derive(Debug, Args)]
pub(super) struct ClientArgs {
    #[command(flatten)]
    pub(super) server: ServerArgs,
    /// How to print the answer [default: a table for lists at a terminal, else JSON]
    #[arg(short, long, value_name = "FORMAT", value_enum)]
    pub(super) output: Option<Output>,
}

/// How an answer is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// One line of JSON
    Json,
    /// A table, where the answer is a list
    Table,
}

/// A duration of a client command. A number alone is seconds to most tools and milliseconds to settings files.
pub(super) fn duration(text: &str) -> Result<Span, String> {
    match text.trim().parse::<u64>() {
        Ok(number) if number > 0 => Err(format!("write {number}s or {number}ms")),
        _ => text.parse(),
    }
}

/// What acquiring anything has in common.
#[derive(Debug, Args)]
pub(super) struct AskArgs {
    /// Life of the lease without extension [default: the server's, 30s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(super) ttl: Option<Span>,
    /// However often it is extended, it ends this long after it was acquired
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(super) max_hold: Option<Span>,
    /// How long to wait
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "0")]
    pub(super) wait: Span,
    /// Makes a retry safe: the same id gets the same lease back
    #[arg(long, value_name = "ID")]
    pub(super) request_id: Option<String>,
    #[command(flatten)]
    pub(super) client: ClientArgs,
}

#[derive(Debug, Args)]
pub(super) struct NoteArgs {
    /// Label of the holder, shown to others
    #[arg(long, value_name = "TEXT")]
    pub(super) owner: Option<String>,
    /// Further labels, shown to others; may be given several times
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub(super) metadata: Vec<(String, String)>,
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("must be KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// What everything that is done with a lease has in common.
#[derive(Debug, Args)]
pub(super) struct LeaseArgs {
    /// Id of the lease; better given in the environment, which `ps` does not show
    #[arg(long, value_name = "ID", env = "QUORATE_LEASE_ID", hide_env_values = true)]
    pub(super) lease_id: String,
    #[command(flatten)]
    pub(super) client: ClientArgs,
}

/// What extending a lease has in common.
#[derive(Debug, Args)]
pub(super) struct ExtendArgs {
    /// Life of the lease from now on [default: the ttl that it has]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(super) ttl: Option<Span>,
    #[command(flatten)]
    pub(super) lease: LeaseArgs,
}

/// What giving anything back has in common.
#[derive(Debug, Args)]
pub(super) struct ReleaseArgs {
    /// Exit with status 20 where the lease was not held any more
    #[arg(long)]
    pub(super) strict: bool,
    #[command(flatten)]
    pub(super) lease: LeaseArgs,
}

/// What is done with one name, or a lease of it.
#[derive(Debug, Args)]
pub(super) struct Named<A: Args> {
    /// The name
    pub(super) name: String,
    #[command(flatten)]
    pub(super) args: A,
}

/// The same with a lease of several locks.
#[derive(Debug, Args)]
pub(super) struct NamedByMany<A: Args> {
    /// The locks' names
    #[arg(required = true)]
    pub(super) names: Vec<String>,
    #[command(flatten)]
    pub(super) args: A,
}

#[derive(Debug, Subcommand)]
pub(super) enum LockCommand {
    /// Acquire a lock
    Acquire {
        /// The lock's name
        name: String,
        #[command(flatten)]
        ask: AskArgs,
        #[command(flatten)]
        note: NoteArgs,
    },
    /// Extend a lease
    Extend(Named<ExtendArgs>),
    /// Release a lock
    Release(Named<ReleaseArgs>),
    /// Show a lock
    Get(Named<ClientArgs>),
    /// List the locks that are held
    List {
        /// Only names with this prefix
        #[arg(long, value_name = "TEXT", default_value = "")]
        prefix: String,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Take a lock away from its holder; needs a key with the scope admin
    ForceRelease {
        /// The lock's name
        name: String,
        /// Why, for the server's log
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
        #[command(flatten)]
        client: ClientArgs,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum MultilockCommand {
    /// Acquire several locks
    Acquire {
        /// The locks' names
        #[arg(required = true)]
        names: Vec<String>,
        #[command(flatten)]
        ask: AskArgs,
        #[command(flatten)]
        note: NoteArgs,
    },
    /// Extend the lease of several locks
    Extend(NamedByMany<ExtendArgs>),
    /// Release several locks
    Release(NamedByMany<ReleaseArgs>),
}

#[derive(Debug, Subcommand)]
pub(super) enum SemaphoreCommand {
    /// Acquire permits
    Acquire {
        /// The semaphore's name
        name: String,
        /// How many permits there are
        #[arg(long, value_name = "N")]
        limit: u32,
        /// How many to acquire
        #[arg(long, value_name = "N", default_value_t = 1)]
        permits: u32,
        #[command(flatten)]
        ask: AskArgs,
        #[command(flatten)]
        note: NoteArgs,
    },
    /// Extend a lease
    Extend(Named<ExtendArgs>),
    /// Release permits
    Release(Named<ReleaseArgs>),
    /// Show who holds permits
    Get(Named<ClientArgs>),
}

#[derive(Debug, Subcommand)]
pub(super) enum ElectionCommand {
    /// Campaign to become the leader
    Campaign {
        /// The election's name
        name: String,
        /// Name of the candidate [default: host name and process id]
        #[arg(long, value_name = "NAME")]
        candidate: Option<String>,
        /// Value to proclaim
        #[arg(long, value_name = "TEXT")]
        value: Option<String>,
        #[command(flatten)]
        ask: AskArgs,
    },
    /// Extend the leadership
    Extend(Named<ExtendArgs>),
    /// Change the value that the leader proclaims
    Proclaim {
        /// The election's name
        name: String,
        /// Value to proclaim
        #[arg(long, value_name = "TEXT")]
        value: String,
        #[command(flatten)]
        lease: LeaseArgs,
    },
    /// Resign as the leader
    Resign(Named<ReleaseArgs>),
    /// Show who leads; with --after and --wait, once that has changed
    Get {
        /// The election's name
        name: String,
        /// The revision that you already know
        #[arg(long, value_name = "REVISION", requires = "wait")]
        after: Option<String>,
        /// How long to wait for a change
        #[arg(long, value_name = "DURATION", value_parser = duration, requires = "after")]
        wait: Option<Span>,
        #[command(flatten)]
        client: ClientArgs,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum FenceCommand {
    /// Issue the next token of a name
    Issue(Named<ClientArgs>),
    /// Check whether a later token has been issued: exit status 20 if so
    Check {
        /// The name
        name: String,
        /// The token
        #[arg(value_name = "TOKEN", env = "QUORATE_FENCING_TOKEN", hide_env_values = true)]
        fencing_token: u64,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Show the highest token of a name
    Get(Named<ClientArgs>),
}
