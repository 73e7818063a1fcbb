//! The words of the command line. The doc comments are the text of `--help`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};

use super::client_args::{
    ClientArgs, ElectionCommand, FenceCommand, LockCommand, MultilockCommand, SemaphoreCommand, duration,
};
use crate::client::{ServerArgs, path};
use crate::config::{Config, ConfigError, Role, Settings, Span};

/// Locks, semaphores, leader election and fencing tokens over HTTP, granted by a majority of
/// plain Redis servers.
#[derive(Debug, Parser)]
#[command(name = "quorate", version, max_term_width = 100)]
pub(super) struct Cli {
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Serve with nodes embedded in the process, to try things out: no Redis, nothing stored
    Dev(DevArgs),
    /// Serve with Redis nodes
    Serve(ServeArgs),
    /// Mark the nodes of a new deployment, so that it need not wait for the end of the quarantine
    Init(ServeArgs),
    /// Hold a lease while a command runs
    Run(RunArgs),
    /// Acquire, extend, release and show locks
    #[command(subcommand)]
    Lock(LockCommand),
    /// Acquire several locks at once, all or nothing
    #[command(subcommand)]
    Multilock(MultilockCommand),
    /// Acquire, extend, release and show permits of semaphores
    #[command(subcommand)]
    Semaphore(SemaphoreCommand),
    /// Campaign, proclaim, resign, and show who leads
    #[command(subcommand)]
    Election(ElectionCommand),
    /// Issue and check fencing tokens
    #[command(subcommand)]
    Fence(FenceCommand),
    /// Show the state of the nodes
    Nodes {
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Show and change the members of the deployment
    Members(MembersArgs),
    /// Ask a server whether it is ready: exit status 0 or 1
    Healthcheck(HealthcheckArgs),
    /// Make API keys
    #[command(subcommand)]
    Keys(KeysCommand),
    /// Print a configuration file with every setting, its meaning and its default
    Config,
    /// Print the OpenAPI document
    Openapi {
        /// Version of the OpenAPI specification
        #[arg(long, value_enum, default_value_t = OpenapiVersion::V31)]
        version: OpenapiVersion,
    },
    /// Print completions for a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write one for each command
    Man {
        /// Folder to write quorate.1, quorate-run.1, quorate-lock-acquire.1 and so on to
        #[arg(long, value_name = "FOLDER")]
        dir: Option<PathBuf>,
    },
}

#[derive(Debug, Args)]
pub(super) struct DevArgs {
    /// How many nodes
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(super) nodes: usize,
    #[command(flatten)]
    pub(super) common: ServeArgs,
}

#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// File with settings (TOML); flags and environment come first
    #[arg(long, value_name = "FILE", env = "QUORATE_CONFIG", hide_env_values = true, value_parser = path())]
    pub(super) config: Option<PathBuf>,
    #[command(flatten)]
    pub(super) settings: Settings,
}

impl ServeArgs {
    /// What holds; `is_given` tells which flags are no defaults.
    pub(super) fn config(&self, is_given: impl Fn(&str) -> bool, role: Role) -> Result<Config, ConfigError> {
        let mut environment = Vec::new();
        for (name, value) in std::env::vars_os() {
            let Ok(name) = name.into_string() else { continue };
            match value.into_string() {
                Ok(value) => environment.push((name, value)),
                // Passed over, a key file would not be read, and everyone let in.
                Err(_) if Settings::names().iter().any(|known| Settings::variable(known) == name) => {
                    return Err(ConfigError::Value(format!("{name} in the environment: is not UTF-8")));
                }
                Err(_) => {}
            }
        }
        let file = self.config.as_deref().filter(|path| !path.as_os_str().is_empty());
        Config::new(Settings::gather(&self.settings, is_given, environment, file)?, role)
    }
}

#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("what").required(true).args(["lock", "semaphore", "election"]),
    after_help = "Exit status: the command's own (128+n when signal n ended it, 126 not executable, 127 not \
found); 11 not acquired in time; 20 lease lost; 64 usage; 70 no quorum or no server; 77 API key refused.\n\n\
The command finds QUORATE_LEASE_ID and QUORATE_FENCING_TOKEN in its environment (for several locks \
QUORATE_FENCING_TOKENS, a JSON object).\n\nExample: quorate run --lock nightly --wait 0 -- ./backup.sh"
)]
pub(super) struct RunArgs {
    /// Hold this lock; given several times, all of them or none
    #[arg(long, value_name = "NAME")]
    pub(super) lock: Vec<String>,
    /// Hold the lock beside others who share it, and exclude those who do not
    #[arg(long)]
    pub(super) shared: bool,
    /// Hold a permit of this semaphore
    #[arg(long, value_name = "NAME")]
    pub(super) semaphore: Option<String>,
    /// How many permits the semaphore has
    #[arg(long, value_name = "N")]
    pub(super) limit: Option<u32>,
    /// How many permits to hold [default: 1]
    #[arg(long, value_name = "N")]
    pub(super) permits: Option<u32>,
    /// Lead this election
    #[arg(long, value_name = "NAME")]
    pub(super) election: Option<String>,
    /// Name of the candidate [default: host name and process id]
    #[arg(long, value_name = "NAME")]
    pub(super) candidate: Option<String>,
    /// Value to proclaim as the leader
    #[arg(long, value_name = "TEXT")]
    pub(super) value: Option<String>,
    /// Life of the lease without extension; it is extended at a third of this [default: the
    /// server's, 30s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(super) ttl: Option<Span>,
    /// End the command when the lease has been held for this long
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(super) max_hold: Option<Span>,
    /// How long to wait for the lease; 0 tries once [default: as long as it takes, while there is a
    /// quorum]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(super) wait: Option<Span>,
    /// Label of the holder, shown to others [default: host name and process id]
    #[arg(long, value_name = "TEXT")]
    pub(super) owner: Option<String>,
    /// If the lease is lost: how long the command has from TERM to KILL
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "5s")]
    pub(super) kill_after: Span,
    /// Report on stderr what happens
    #[arg(long, short)]
    pub(super) verbose: bool,
    #[command(flatten)]
    pub(super) server: ServerArgs,
    /// The command and its arguments
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true)]
    pub(super) command: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct MembersArgs {
    #[command(subcommand)]
    pub(super) command: Option<MembersCommand>,
    #[command(flatten)]
    pub(super) at: MembersAt,
}

/// Where members are asked for, or changed.
#[derive(Debug, Args)]
pub(super) struct MembersAt {
    #[command(flatten)]
    pub(super) client: ClientArgs,
    /// Ask the nodes themselves instead of a server: the URL of each, given several times
    #[arg(long, value_name = "URL")]
    pub(super) redis: Vec<String>,
    /// With --redis: what all keys begin with
    #[arg(long, value_name = "TEXT", default_value = "quorate")]
    pub(super) key_prefix: String,
}

#[derive(Debug, Subcommand)]
pub(super) enum MembersCommand {
    /// Add a node; its URL must be in the list of every server first
    Add {
        /// The node's URL
        url: String,
        #[command(flatten)]
        at: MembersAt,
    },
    /// Have a node take the place of a member; it votes after the longest lease granted
    Replace {
        /// The member that goes: its id, n1, n2 … of `quorate nodes`, or its address
        node: String,
        /// The URL of the node that comes
        url: String,
        #[command(flatten)]
        at: MembersAt,
    },
    /// Remove a member
    Remove {
        /// The member: its id, n1, n2 … of `quorate nodes`, or its address
        node: String,
        #[command(flatten)]
        at: MembersAt,
    },
    /// Close a member before its restart, so that it votes again at once if it keeps its data
    Close {
        /// The member: its id, n1, n2 … of `quorate nodes`, or its address
        node: String,
        #[command(flatten)]
        at: MembersAt,
    },
    /// Retire a deployment that has moved: its nodes never vote again; needs --redis
    Retire {
        #[command(flatten)]
        at: MembersAt,
    },
}

#[derive(Debug, Args)]
pub(super) struct HealthcheckArgs {
    /// Ask only whether the process answers, not whether a quorum of nodes votes
    #[arg(long)]
    pub(super) live: bool,
    /// How long the answer may take
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "2s")]
    pub(super) timeout: Span,
    #[command(flatten)]
    pub(super) server: ServerArgs,
}

#[derive(Debug, Subcommand)]
pub(super) enum KeysCommand {
    /// Make a key: prints it, only this once, and an entry with its hash for the key file
    New {
        /// Whose key it is: its name in the key file
        #[arg(long)]
        name: String,
        /// What it may do: read, lock, admin
        #[arg(long, value_name = "SCOPE", required = true, value_delimiter = ',', num_args = 1..)]
        scope: Vec<String>,
        /// Prefixes of the names that it may touch [default: all]
        #[arg(long, value_name = "PREFIX", value_delimiter = ',', num_args = 1..)]
        prefix: Vec<String>,
        /// How to print it [default: as text]
        #[arg(short, long, value_name = "FORMAT", value_enum)]
        output: Option<KeyOutput>,
    },
}

/// How a new key is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum KeyOutput {
    /// {"secret": …, "entry": {…}}
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum OpenapiVersion {
    /// As generated
    #[value(name = "3.1")]
    V31,
    /// For older tools
    #[value(name = "3.0")]
    V30,
}
