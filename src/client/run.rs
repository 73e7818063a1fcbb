//! `quorate run`: a lease held around a command.
//!
//! The lease is taken before the command starts, extended at a third of its ttl and given
//! back when the command has ended. Whether it is still held is judged by this machine's
//! monotonic clock, not by what the server last said: when no extension has succeeded
//! shortly before the validity ends, the command is ended, server or no server.

use std::ffi::OsString;
use std::fmt::Display;
use std::future::Future;
use std::pin::{Pin, pin};
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::time::{Instant, sleep_until};

use super::process::{self, Running, Signals, Stop, Stops};
use super::{Ask, Client, Failure, Grant, Lease, TIDY_TIMEOUT, Target, exit, new_request_id, progress};

/// How long giving back may take after the lease was lost.
const TIDY_LOST: Duration = Duration::from_millis(300);

/// What to hold around what.
#[derive(Debug, Clone)]
pub struct Job {
    pub target: Target,
    pub ask: Ask,
    pub command: Vec<OsString>,
    /// From TERM to KILL when the lease is lost.
    pub kill_after: Duration,
    pub verbose: bool,
}

/// Runs it all; the result is the exit status.
pub async fn run(client: &Client, job: &Job) -> u8 {
    let mut signals = match Signals::new() {
        Ok(signals) => signals,
        Err(cause) => {
            say(format_args!("cannot receive signals: {cause}"));
            return exit::UNAVAILABLE;
        }
    };
    let began = Instant::now();
    let grant = match acquire(client, job, &mut signals).await {
        Ok(grant) => grant,
        Err(status) => return status,
    };
    let with_token = grant.lease.fencing_token.map(|token| format!(" with fencing token {token},"));
    job.tell(format_args!(
        "acquired{} after {} ms",
        with_token.unwrap_or_default(),
        began.elapsed().as_millis()
    ));
    // What arrives before there is a command would reach nobody.
    let ended = match signals.arrived() {
        Some(signal) => Some(process::status_of_signal(signal as i32)),
        // Whoever was stopped while waiting, or got the answer late, may read of it when it is over.
        None if Watch::of(job, &grant).act_at() <= Instant::now() => {
            say("the lease was over before the command could start");
            None
        }
        None => match Running::start(&job.command, &variables(&grant.lease)) {
            Ok(running) => hold(client, job, &grant, running, &mut signals).await,
            Err(cause) => {
                let program = job.command.first().map(|word| word.to_string_lossy()).unwrap_or_default();
                say(format_args!("{program}: {cause}"));
                Some(process::status_of_start(&cause))
            }
        },
    };
    // What is lost needs no giving back, but a minority of nodes may still hold remains of it.
    let within = if ended.is_none() { TIDY_LOST } else { TIDY_TIMEOUT };
    match client.release(&job.target, &grant.lease, within).await {
        Ok(true) => job.tell("released"),
        Ok(false) => job.tell("was not held any more when it was to be released"),
        Err(_) if ended.is_none() => {}
        // Said aloud: others now wait for the rest of the ttl.
        Err(failure) => say(format_args!("not released, ends with its ttl: {failure}")),
    }
    ended.unwrap_or(exit::LOST)
}

/// The lease, or the status to exit with.
async fn acquire(client: &Client, job: &Job, signals: &mut Signals) -> Result<Grant, u8> {
    let request_id = job.ask.request_id.clone().unwrap_or_else(new_request_id);
    job.tell("waiting");
    let outcome = {
        let mut acquiring = pin!(client.acquire(&job.target, &job.ask, &request_id));
        tokio::select! {
            outcome = &mut acquiring => Ok(outcome),
            signal = signals.next() => Err(signal),
            never = progress::show(client, &job.target) => match never {},
        }
    };
    match outcome {
        Ok(Ok(grant)) => Ok(grant),
        Ok(Err(failure)) => {
            say(&failure);
            let waited = job.ask.wait != Some(Duration::ZERO);
            if failure.status() == exit::UNAVAILABLE || waited && matches!(failure, Failure::NotAcquired(_)) {
                // It may have been granted, and only the answer got lost: that of an earlier try, too.
                client.abandon(&job.target, &request_id).await;
            }
            Err(failure.status())
        }
        Err(signal) => {
            client.abandon(&job.target, &request_id).await;
            Err(process::status_of_signal(signal as i32))
        }
    }
}

/// Extends while the command runs; ends it when the lease is lost. The status that the command ended with,
/// or `None` where the lease was lost.
async fn hold(
    client: &Client,
    job: &Job,
    grant: &Grant,
    (mut running, mut stops): (Running, Stops),
    signals: &mut Signals,
) -> Option<u8> {
    let lease = &grant.lease;
    let mut watch = Watch::of(job, grant);
    let mut next_try = if grant.retried { Instant::now() } else { watch.extend_at() };
    let mut extension: Option<Extending<'_>> = None;
    let mut at_limit = false;
    loop {
        let extending = extension.is_some();
        tokio::select! {
            ended = running.ended() => return Some(match ended {
                Ok(status) => process::status_of(status),
                Err(cause) => {
                    say(format_args!("cannot wait for the command: {cause}"));
                    exit::NOT_EXECUTABLE
                }
            }),
            signal = signals.next() => running.forward(signal),
            stop = stops.next() => {
                if running.stops_us(stop) {
                    running.stop();
                } else if let Stop::Command(signal @ (Signal::SIGSTOP | Signal::SIGTSTP)) = stop {
                    job.tell(format_args!("{signal} stopped the command, whose lease is extended meanwhile"));
                    continue;
                }
                if watch.act_at() > Instant::now() {
                    running.go_on();
                } else {
                    say("the lease was over before the command went on; ending it");
                    running.end(job.kill_after, signals).await;
                    return None;
                }
            }
            () = sleep_until(watch.act_at()) => {
                say(match at_limit {
                    true => "the lease has been held for --max-hold; ending the command",
                    false => "the lease could not be extended in time; ending the command",
                });
                running.end(job.kill_after, signals).await;
                return None;
            }
            () = sleep_until(next_try), if !extending => {
                extension = Some(Box::pin(client.extend(&job.target, lease, watch.try_for())));
            }
            outcome = poll(&mut extension), if extending => {
                extension = None;
                match outcome {
                    Ok(valid_until) => {
                        watch.extended(valid_until);
                        next_try = watch.extend_at();
                        job.tell("extended");
                    }
                    Err(Failure::Lost(problem)) => {
                        say(format_args!("lease lost, ending the command: {problem}"));
                        running.end(job.kill_after, signals).await;
                        return None;
                    }
                    // It is valid to its end, at which the command is ended.
                    Err(Failure::AtLimit(problem)) => {
                        job.tell(format_args!("not extended: {problem}"));
                        (next_try, at_limit) = (watch.valid_until, true);
                    }
                    Err(failure) => {
                        job.tell(format_args!("not extended, trying again: {failure}"));
                        next_try = Instant::now() + watch.retry_after();
                    }
                }
            }
        }
    }
}

/// An extension under way: until when the lease is valid then.
type Extending<'a> = Pin<Box<dyn Future<Output = Result<Instant, Failure>> + 'a>>;

async fn poll(extension: &mut Option<Extending<'_>>) -> Result<Instant, Failure> {
    match extension {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// When to do what about a lease: pure, so that it can be tested without waiting.
#[derive(Debug, Clone, Copy)]
struct Watch {
    ttl: Duration,
    valid_until: Instant,
    /// Before the validity ends, so that the command is gone by then if it goes when told.
    margin: Duration,
}

impl Watch {
    fn of(job: &Job, grant: &Grant) -> Self {
        Self::new(grant.lease.ttl_ms, grant.valid_until, job.kill_after)
    }

    fn new(ttl_ms: u64, valid_until: Instant, kill_after: Duration) -> Self {
        let ttl = Duration::from_millis(ttl_ms);
        Self { ttl, valid_until, margin: kill_after.min(ttl / 6) }
    }

    fn extended(&mut self, valid_until: Instant) {
        // An answer that was overtaken by a later one must not shorten what that one said.
        self.valid_until = self.valid_until.max(valid_until);
    }

    /// A third of the ttl after the last grant or extension, which is when two thirds are left.
    fn extend_at(&self) -> Instant {
        self.valid_until - self.ttl * 2 / 3
    }

    /// When the command has to be ended.
    fn act_at(&self) -> Instant {
        self.valid_until - self.margin
    }

    /// How long one extension may take: a hung server must leave time for another try.
    fn try_for(&self) -> Duration {
        let left = self.act_at().saturating_duration_since(Instant::now());
        (self.ttl / 4).clamp(Duration::from_millis(100), Duration::from_secs(10)).min(left)
    }

    fn retry_after(&self) -> Duration {
        (self.ttl / 30).clamp(Duration::from_millis(20), Duration::from_secs(1))
    }
}

/// What the command gets to know of its lease, and what it must not hear of another that this runs under.
fn variables(lease: &Lease) -> [(&'static str, Option<String>); 3] {
    let tokens = lease.fencing_tokens.clone();
    [
        ("QUORATE_LEASE_ID", Some(lease.lease_id.clone())),
        ("QUORATE_FENCING_TOKEN", lease.fencing_token.map(|token| token.to_string())),
        ("QUORATE_FENCING_TOKENS", tokens.map(|tokens| serde_json::Value::Object(tokens).to_string())),
    ]
}

impl Job {
    fn tell(&self, what: impl Display) {
        if self.verbose {
            say(what);
        }
    }
}

/// To stderr: stdout is the command's.
fn say(what: impl Display) {
    use std::io::Write as _;
    // Nobody there to read it is no reason to stop.
    let _ = writeln!(std::io::stderr(), "quorate: {what}");
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_extended_at_a_third_and_given_up_before_its_validity_ends() {
        let start = Instant::now();
        let mut watch = Watch::new(30_000, start + 30 * SECOND, 5 * SECOND);
        assert_eq!(watch.extend_at(), start + 10 * SECOND);
        assert_eq!(watch.act_at(), start + 25 * SECOND);
        watch.extended(start + 40 * SECOND);
        assert_eq!(watch.extend_at(), start + 20 * SECOND);
        watch.extended(start + 39 * SECOND);
        assert_eq!(watch.act_at(), start + 35 * SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn a_short_lease_leaves_most_of_its_time_to_the_command() {
        let start = Instant::now();
        let watch = Watch::new(600, start + Duration::from_millis(600), 5 * SECOND);
        assert_eq!(watch.act_at(), start + Duration::from_millis(500));
        assert!(watch.try_for() >= Duration::from_millis(100));
    }

    #[tokio::test(start_paused = true)]
    async fn an_extension_leaves_time_for_another_and_never_outlives_the_lease() {
        let start = Instant::now();
        let watch = Watch::new(30_000, start + 30 * SECOND, 5 * SECOND);
        assert_eq!(watch.try_for(), Duration::from_millis(7_500));
        tokio::time::advance(24 * SECOND).await;
        assert_eq!(watch.try_for(), SECOND);
        tokio::time::advance(2 * SECOND).await;
        assert_eq!(watch.try_for(), Duration::ZERO);
    }
}
