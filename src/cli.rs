//! The command line: one subcommand for the server in each of its shapes, one for each
//! thing that a client does.
//!
//! Answers go to stdout (JSON where the server answered), everything else to stderr. Exit
//! statuses are part of the contract: [`crate::client::exit`].

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgGroup, Args, CommandFactory, Parser, Subcommand, ValueEnum};
use reqwest::Method;
use serde_json::{Map, Value, json};

use crate::api;
use crate::client::run::{self, Job};
use crate::client::{Ask, Client, Failure, ServerArgs, Target, check_name, exit, new_request_id, path};
use crate::config::{Config, ConfigError, DEFAULT_FILE, LogFormat, Role, Settings, Span};
use crate::server;

/// Locks, semaphores, leader election and fencing tokens over HTTP, granted by a majority of
/// plain Redis servers.
#[derive(Debug, Parser)]
#[command(name = "quorate", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve on nodes embedded in the process, to try things out: no Redis, nothing stored
    Dev(DevArgs),
    /// Serve on real nodes
    Serve(ServeArgs),
    /// Mark the nodes of a brand-new deployment, so that it need not wait the quarantine out
    Init(ServeArgs),
    /// Hold a lease around a command
    Run(RunArgs),
    /// Take, extend, release and look at locks
    #[command(subcommand)]
    Lock(LockCommand),
    /// Take several locks at once, all or nothing
    #[command(subcommand)]
    Multilock(MultilockCommand),
    /// Take, extend, release and look at permits of semaphores
    #[command(subcommand)]
    Semaphore(SemaphoreCommand),
    /// Campaign, proclaim, resign, and see who leads
    #[command(subcommand)]
    Election(ElectionCommand),
    /// Issue and check fencing tokens
    #[command(subcommand)]
    Fence(FenceCommand),
    /// Show the state of the nodes
    Nodes {
        #[command(flatten)]
        server: ServerArgs,
    },
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
    /// Print the completions for a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    Man,
}

#[derive(Debug, Args)]
struct DevArgs {
    /// How many nodes
    #[arg(long, value_name = "N", default_value_t = 3)]
    nodes: usize,
    #[command(flatten)]
    common: ServeArgs,
}

#[derive(Debug, Args)]
struct ServeArgs {
    /// File with settings (TOML); flags and environment come first
    #[arg(long, value_name = "FILE", env = "QUORATE_CONFIG", hide_env_values = true, value_parser = path())]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

impl ServeArgs {
    fn config(&self, role: Role) -> Result<Config, ConfigError> {
        let environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        let file = self.config.as_deref().filter(|path| !path.as_os_str().is_empty());
        Config::new(Settings::gather(&self.settings, environment, file)?, role)
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
struct RunArgs {
    /// Hold this lock; given several times, all of them or none
    #[arg(long, value_name = "NAME")]
    lock: Vec<String>,
    /// Hold a permit of this semaphore
    #[arg(long, value_name = "NAME")]
    semaphore: Option<String>,
    /// How many permits the semaphore has
    #[arg(long, value_name = "N")]
    limit: Option<u32>,
    /// How many permits to hold [default: 1]
    #[arg(long, value_name = "N")]
    permits: Option<u32>,
    /// Lead this election
    #[arg(long, value_name = "NAME")]
    election: Option<String>,
    /// Who stands in the election [default: host name and process id]
    #[arg(long, value_name = "NAME")]
    candidate: Option<String>,
    /// What to proclaim as the leader
    #[arg(long, value_name = "TEXT")]
    value: Option<String>,
    /// How long the lease outlives this process at most; it is extended at a third of it
    /// [default: the server's, 30s]
    #[arg(long, value_name = "DURATION")]
    ttl: Option<Span>,
    /// How long to wait for the lease; 0 tries once [default: as long as it takes]
    #[arg(long, value_name = "DURATION")]
    wait: Option<Span>,
    /// Who holds it, for those who look [default: host name and process id]
    #[arg(long, value_name = "TEXT")]
    owner: Option<String>,
    /// When the lease is lost: how long the command has from TERM to KILL
    #[arg(long, value_name = "DURATION", default_value = "5s")]
    kill_after: Span,
    /// Tell on stderr what happens
    #[arg(long, short)]
    verbose: bool,
    #[command(flatten)]
    server: ServerArgs,
    /// The command and its arguments
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true)]
    command: Vec<OsString>,
}

/// What acquiring anything has in common.
#[derive(Debug, Args)]
struct AskArgs {
    /// Life of the lease without extension [default: the server's, 30s]
    #[arg(long, value_name = "DURATION")]
    ttl: Option<Span>,
    /// How long to wait
    #[arg(long, value_name = "DURATION", default_value = "0")]
    wait: Span,
    /// The same id brings the same lease back: makes a retry safe
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Args)]
struct NoteArgs {
    /// Who holds it, for those who look
    #[arg(long, value_name = "TEXT")]
    owner: Option<String>,
    /// What else to tell those who look; may be given several times
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    metadata: Vec<(String, String)>,
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("must be KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// What everything that is done with a lease has in common.
#[derive(Debug, Args)]
struct LeaseArgs {
    /// The lease; better given by the environment, which `ps` does not show
    #[arg(long, value_name = "ID", env = "QUORATE_LEASE_ID", hide_env_values = true)]
    lease_id: String,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Args)]
struct TtlArgs {
    /// Life of the lease from now [default: what it last was]
    #[arg(long, value_name = "DURATION")]
    ttl: Option<Span>,
}

#[derive(Debug, Subcommand)]
enum LockCommand {
    /// Take a lock
    Acquire {
        /// Its name
        name: String,
        #[command(flatten)]
        ask: AskArgs,
        #[command(flatten)]
        note: NoteArgs,
    },
    /// Extend a lease
    Extend {
        /// The lock's name
        name: String,
        #[command(flatten)]
        ttl: TtlArgs,
        #[command(flatten)]
        lease: LeaseArgs,
    },
    /// Give a lock back
    Release {
        /// Its name
        name: String,
        #[command(flatten)]
        lease: LeaseArgs,
    },
    /// Show a lock
    Get {
        /// Its name
        name: String,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// List the locks that are held
    List {
        /// Only names that begin so
        #[arg(long, value_name = "TEXT", default_value = "")]
        prefix: String,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Take a lock away from its holder; needs a key with the scope admin
    ForceRelease {
        /// Its name
        name: String,
        #[command(flatten)]
        server: ServerArgs,
    },
}

#[derive(Debug, Subcommand)]
enum MultilockCommand {
    /// Take several locks
    Acquire {
        /// Their names
        #[arg(required = true)]
        names: Vec<String>,
        #[command(flatten)]
        ask: AskArgs,
        #[command(flatten)]
        note: NoteArgs,
    },
    /// Extend the lease of several locks
    Extend {
        /// Their names
        #[arg(required = true)]
        names: Vec<String>,
        #[command(flatten)]
        ttl: TtlArgs,
        #[command(flatten)]
        lease: LeaseArgs,
    },
    /// Give several locks back
    Release {
        /// Their names
        #[arg(required = true)]
        names: Vec<String>,
        #[command(flatten)]
        lease: LeaseArgs,
    },
}

#[derive(Debug, Subcommand)]
enum SemaphoreCommand {
    /// Take permits
    Acquire {
        /// The semaphore's name
        name: String,
        /// How many permits there are
        #[arg(long, value_name = "N")]
        limit: u32,
        /// How many to take
        #[arg(long, value_name = "N", default_value_t = 1)]
        permits: u32,
        #[command(flatten)]
        ask: AskArgs,
        #[command(flatten)]
        note: NoteArgs,
    },
    /// Extend a lease
    Extend {
        /// The semaphore's name
        name: String,
        #[command(flatten)]
        ttl: TtlArgs,
        #[command(flatten)]
        lease: LeaseArgs,
    },
    /// Give permits back
    Release {
        /// The semaphore's name
        name: String,
        #[command(flatten)]
        lease: LeaseArgs,
    },
    /// Show who holds permits
    Get {
        /// The semaphore's name
        name: String,
        #[command(flatten)]
        server: ServerArgs,
    },
}

#[derive(Debug, Subcommand)]
enum ElectionCommand {
    /// Become the leader
    Campaign {
        /// The election's name
        name: String,
        /// Who stands [default: host name and process id]
        #[arg(long, value_name = "NAME")]
        candidate: Option<String>,
        /// What to proclaim
        #[arg(long, value_name = "TEXT")]
        value: Option<String>,
        #[command(flatten)]
        ask: AskArgs,
    },
    /// Stay the leader
    Extend {
        /// The election's name
        name: String,
        #[command(flatten)]
        ttl: TtlArgs,
        #[command(flatten)]
        lease: LeaseArgs,
    },
    /// Change what the leader proclaims
    Proclaim {
        /// The election's name
        name: String,
        /// What to proclaim
        #[arg(long, value_name = "TEXT")]
        value: String,
        #[command(flatten)]
        lease: LeaseArgs,
    },
    /// Stop being the leader
    Resign {
        /// The election's name
        name: String,
        #[command(flatten)]
        lease: LeaseArgs,
    },
    /// Show who leads; with --after and --wait, as soon as that has changed
    Get {
        /// The election's name
        name: String,
        /// The revision that is known already
        #[arg(long, value_name = "REVISION", requires = "wait")]
        after: Option<String>,
        /// How long to wait for a change
        #[arg(long, value_name = "DURATION", requires = "after")]
        wait: Option<Span>,
        #[command(flatten)]
        server: ServerArgs,
    },
}

#[derive(Debug, Subcommand)]
enum FenceCommand {
    /// Issue the next token of a name
    Issue {
        /// The name
        name: String,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Check whether a later token has been issued: exit status 20 if so
    Check {
        /// The name
        name: String,
        /// The token
        #[arg(value_name = "TOKEN", env = "QUORATE_FENCING_TOKEN", hide_env_values = true)]
        fencing_token: u64,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Show the highest token of a name
    Get {
        /// The name
        name: String,
        #[command(flatten)]
        server: ServerArgs,
    },
}

#[derive(Debug, Args)]
struct HealthcheckArgs {
    /// Ask only whether the process answers, not whether a quorum of nodes votes
    #[arg(long)]
    live: bool,
    /// How long the answer may take
    #[arg(long, value_name = "DURATION", default_value = "2s")]
    timeout: Span,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Subcommand)]
enum KeysCommand {
    /// Make a key: prints it once, and the entry for the key file, which has only its hash
    New {
        /// Whose key it is, as the log shows it
        #[arg(long)]
        name: String,
        /// What it may do: read, lock, admin
        #[arg(long, value_name = "SCOPE", required = true, value_delimiter = ',', num_args = 1..)]
        scope: Vec<String>,
        /// Beginnings of the names that it may touch [default: all]
        #[arg(long, value_name = "PREFIX", value_delimiter = ',', num_args = 1..)]
        prefix: Vec<String>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OpenapiVersion {
    /// As generated
    #[value(name = "3.1")]
    V31,
    /// For older tools
    #[value(name = "3.0")]
    V30,
}

/// The whole program.
pub fn main() -> ExitCode {
    // Several crates bring rustls along; which cryptography it uses is said once, here. It
    // fails only when it has been said before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let cli = match <Cli as clap::FromArgMatches>::from_arg_matches(&match command().try_get_matches() {
        Ok(matches) => matches,
        Err(answer) => return usage(&answer),
    }) {
        Ok(cli) => cli,
        Err(answer) => return usage(&answer),
    };
    dispatch(cli.command)
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
    ["dev", "serve", "init"]
        .into_iter()
        .fold(Cli::command(), |cli, name| cli.mut_subcommand(name, with_variables))
}

/// Help and version are answers, everything else is wrong usage.
fn usage(answer: &clap::Error) -> ExitCode {
    // A closed stdout or stderr is not worth a word.
    let _ = answer.print();
    if answer.use_stderr() { ExitCode::from(exit::USAGE) } else { ExitCode::SUCCESS }
}

fn dispatch(command: Command) -> ExitCode {
    match command {
        Command::Dev(args) => serve(&args.common, Role::Dev { nodes: args.nodes }),
        Command::Serve(args) => serve(&args, Role::Serve),
        Command::Init(args) => initialize(&args),
        Command::Run(args) => run_command(args),
        Command::Lock(command) => ask(lock(command)),
        Command::Multilock(command) => ask(multilock(command)),
        Command::Semaphore(command) => ask(semaphore(command)),
        Command::Election(command) => ask(election(command)),
        Command::Fence(command) => ask(fence(command)),
        Command::Nodes { server } => ask(Ok(get(server, "v1/nodes"))),
        Command::Healthcheck(args) => healthcheck(&args),
        Command::Keys(KeysCommand::New { name, scope, prefix }) => new_key(&name, &scope, &prefix),
        Command::Config => print(DEFAULT_FILE),
        Command::Openapi { version: OpenapiVersion::V31 } => print(&api::openapi_json()),
        Command::Openapi { version: OpenapiVersion::V30 } => print(&api::openapi_3_0_json()),
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut command_for_docs(), "quorate", &mut text);
            print_bytes(&text)
        }
        Command::Man => manual(),
    }
}

fn command_for_docs() -> clap::Command {
    command()
}

fn serve(args: &ServeArgs, role: Role) -> ExitCode {
    let config = match args.config(role) {
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
    if let (Ok(Err(cause)), LogFormat::Json) = (&ended, log_format) {
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

fn initialize(args: &ServeArgs) -> ExitCode {
    let config = match args.config(Role::Init) {
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

/// One thing to ask of a server.
enum Question {
    /// Wait for a lease.
    Acquire(ServerArgs, Target, Ask),
    /// One call.
    Call { server: ServerArgs, method: Method, path: String, body: Option<Value>, wait: Duration },
    /// All pages of a list.
    List { server: ServerArgs, prefix: String },
}

fn get(server: ServerArgs, path: impl Into<String>) -> Question {
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

fn lock(command: LockCommand) -> Result<Question, Failure> {
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

fn multilock(command: MultilockCommand) -> Result<Question, Failure> {
    match command {
        MultilockCommand::Acquire { names, ask, note } => acquire(Target::Multilock(names), ask, Some(note)),
        MultilockCommand::Extend { names, ttl, lease } => extend(&Target::Multilock(names), ttl, lease),
        MultilockCommand::Release { names, lease } => release(&Target::Multilock(names), lease),
    }
}

fn semaphore(command: SemaphoreCommand) -> Result<Question, Failure> {
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

fn election(command: ElectionCommand) -> Result<Question, Failure> {
    let held = |name: String| Target::Election { name, candidate: String::new(), value: None };
    match command {
        ElectionCommand::Campaign { name, candidate, value, ask } => {
            let candidate = candidate.unwrap_or_else(own_name);
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

fn fence(command: FenceCommand) -> Result<Question, Failure> {
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

async fn answer(question: Question) -> Result<Value, Failure> {
    match question {
        Question::Acquire(server, target, ask) => {
            let request_id = ask.request_id.clone().unwrap_or_else(new_request_id);
            let client = Client::new(&server)?;
            Ok(client.acquire(&target, &ask, &request_id).await?.answer)
        }
        Question::Call { server, method, path, body, wait } => {
            let within = wait + Duration::from_secs(10);
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
    let mut command = command_for_docs();
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
            (&["serve", "--insecure-no-auth"][..], Some(true)),
            (&["serve", "--insecure-no-auth=false"], Some(false)),
            (&["serve"], None),
        ] {
            let Command::Serve(args) = parse(words).unwrap().command else { panic!("{words:?}") };
            assert_eq!(args.settings.insecure_no_auth, value);
        }
    }

    #[test]
    fn manual_and_completions_can_be_made() {
        let mut text = Vec::new();
        clap_complete::generate(clap_complete::Shell::Bash, &mut command(), "quorate", &mut text);
        assert!(String::from_utf8(text).unwrap().contains("healthcheck"));
    }
}
