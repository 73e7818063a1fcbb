//! The command that a lease is held around: starting it, its signals, its end.
//!
//! It runs in a process group of its own, so that ending it ends what it started too, with
//! one exception: where a person sits at the terminal, it stays in ours. Only the group in
//! the foreground may read from a terminal, and Ctrl-C and Ctrl-Z then reach the command
//! from the terminal itself, as they would without us. Started in the background, the
//! command is stopped when it reads from the terminal; then we stop too, as one job, and give
//! it the terminal once we are brought to the foreground.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::ExitStatus;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg, raise};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpgrp, getpid};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::exit;
use super::terminal::Terminal;

/// What is passed on to the command, and what ends waiting for a lease: all that would end us and leave
/// the command behind without its lease, but for what nobody can catch and what tells of a fault of our
/// own. By the number that arrives, what it is passed on as: realtime signals have no names to send them
/// by, and are there to end a service, if anything.
fn forwarded() -> impl Iterator<Item = (i32, Signal)> {
    use Signal::*;
    let named = Signal::iterator().filter(|signal| {
        let is_fault = matches!(signal, SIGILL | SIGTRAP | SIGBUS | SIGFPE | SIGSEGV | SIGSYS);
        let is_harmless = matches!(signal, SIGCHLD | SIGCONT | SIGURG | SIGWINCH);
        let stops = matches!(signal, SIGSTOP | SIGTSTP | SIGTTIN | SIGTTOU);
        !(is_fault || is_harmless || stops || *signal == SIGKILL)
    });
    named.map(|signal| (signal as i32, signal)).chain(realtime().map(|number| (number, SIGTERM)))
}

#[cfg(target_os = "linux")]
fn realtime() -> impl Iterator<Item = i32> {
    nix::libc::SIGRTMIN()..=nix::libc::SIGRTMAX()
}

#[cfg(not(target_os = "linux"))]
fn realtime() -> impl Iterator<Item = i32> {
    std::iter::empty()
}

/// What the terminal itself sends to all of its foreground group.
const OF_TERMINAL: [Signal; 2] = [Signal::SIGINT, Signal::SIGQUIT];

/// The signals that arrive, in order.
pub struct Signals(mpsc::UnboundedReceiver<Signal>);

impl Signals {
    /// Receives from now on. Signals that were ignored when we were started stay ignored, by
    /// us and the command: `nohup` and shells in the background rely on it.
    pub fn new() -> io::Result<Self> {
        let ignored = ignored_signals();
        let (sender, receiver) = mpsc::unbounded_channel();
        for (number, passed_on) in forwarded() {
            if ignored & (1 << (number - 1)) != 0 {
                continue;
            }
            let mut arrivals = signal(SignalKind::from_raw(number))?;
            let sender = sender.clone();
            tokio::spawn(async move {
                while arrivals.recv().await.is_some() && sender.send(passed_on).is_ok() {}
            });
        }
        // So that `next` waits for ever rather than ends when all are ignored.
        tokio::spawn(async move { sender.closed().await });
        Ok(Self(receiver))
    }

    /// One that has arrived already.
    pub fn arrived(&mut self) -> Option<Signal> {
        self.0.try_recv().ok()
    }

    /// The next signal.
    pub async fn next(&mut self) -> Signal {
        match self.0.recv().await {
            Some(signal) => signal,
            None => std::future::pending().await,
        }
    }
}

/// A bit for each signal that is ignored; none where the system does not say.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// The exit status that a shell gives for a signal.
pub fn status_of_signal(signal: i32) -> u8 {
    128_u8.wrapping_add(signal as u8)
}

/// The exit status that stands for how a command ended.
pub fn status_of(ended: ExitStatus) -> u8 {
    match (ended.code(), ended.signal()) {
        // A status is a byte on every system that there is.
        (Some(code), _) => code as u8,
        (None, Some(signal)) => status_of_signal(signal),
        (None, None) => exit::NOT_EXECUTABLE,
    }
}

/// The exit status that stands for why a command could not be started.
pub fn status_of_start(error: &io::Error) -> u8 {
    match error.kind() {
        io::ErrorKind::NotFound => exit::NOT_FOUND,
        _ => exit::NOT_EXECUTABLE,
    }
}

/// A command that runs.
pub struct Running {
    child: Child,
    pid: Pid,
    own_group: bool,
    terminal: Option<Terminal>,
}

/// A stop that concerns both us and the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// We are to stop, as by Ctrl-Z or a batch system.
    Us,
    /// The command was stopped by this signal.
    Command(Signal),
}

/// Tells of stops; of none where the command is in our group, since the terminal then stops both.
pub struct Stops {
    ours: Option<tokio::signal::unix::Signal>,
    children: Option<tokio::signal::unix::Signal>,
    command: Option<Pid>,
}

impl Stops {
    /// From now on we do not stop by ourselves, and the command go on, where it is in a group of its own.
    fn of(own_group: bool) -> Self {
        let number = Signal::SIGTSTP as i32;
        let heeded = own_group && ignored_signals() & (1 << (number - 1)) == 0;
        // Without it we would stop alone, as if it were SIGSTOP.
        let ours = heeded.then(|| signal(SignalKind::from_raw(number)).ok()).flatten();
        let children = own_group.then(|| signal(SignalKind::child()).ok()).flatten();
        Self { ours, children, command: None }
    }

    /// Waits for the next one.
    pub async fn next(&mut self) -> Stop {
        loop {
            if let Some(signal) = self.command.and_then(stopped_by) {
                return Stop::Command(signal);
            }
            tokio::select! {
                () = heard(&mut self.ours) => return Stop::Us,
                () = heard(&mut self.children) => {}
            }
        }
    }
}

async fn heard(signal: &mut Option<tokio::signal::unix::Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// The signal that stopped the command, told once for each stop.
#[cfg(target_os = "linux")]
fn stopped_by(command: Pid) -> Option<Signal> {
    use nix::sys::wait::{Id, waitid};
    match waitid(Id::Pid(command), WaitPidFlag::WSTOPPED | WaitPidFlag::WNOHANG) {
        Ok(WaitStatus::Stopped(_, signal)) => Some(signal),
        _ => None,
    }
}

#[cfg(not(target_os = "linux"))]
fn stopped_by(_: Pid) -> Option<Signal> {
    None
}

impl Running {
    /// Starts `words` with `variables` added to the environment, or taken out of it. What tells us to stop does
    /// so from before that on.
    ///
    /// # Errors
    /// As the operating system has it; [`status_of_start`] tells what to exit with.
    pub fn start(words: &[OsString], variables: &[(&str, Option<String>)]) -> io::Result<(Self, Stops)> {
        let Some((program, arguments)) = words.split_first() else {
            return Err(io::ErrorKind::NotFound.into());
        };
        // Whoever started us may ignore the end of children, and then nobody could wait for ours.
        let ends = signal(SignalKind::child())?;
        let terminal = Terminal::open();
        let own_group = !terminal.as_ref().is_some_and(Terminal::is_ours);
        let mut stops = Stops::of(own_group);
        let mut command = std::process::Command::new(program);
        command.args(arguments);
        for (name, value) in variables {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        if own_group {
            command.process_group(0);
        }
        let child = Command::from(command).spawn()?;
        let pid = child.id().and_then(|id| i32::try_from(id).ok()).ok_or(io::ErrorKind::NotFound)?;
        let pid = Pid::from_raw(pid);
        if getpid().as_raw() == 1 {
            tokio::spawn(bury_orphans(ends, pid));
        }
        stops.command = own_group.then_some(pid);
        Ok((Self { child, pid, own_group, terminal }, stops))
    }

    /// Stops all of the command, since nobody extends its lease then, and us, until we are to go on.
    pub fn stop(&self) {
        self.send(Signal::SIGSTOP);
        let _ = raise(Signal::SIGSTOP);
    }

    /// The command goes on after a stop, with the terminal where we are in its foreground.
    pub fn go_on(&self) {
        if let Some(terminal) = self.terminal.as_ref().filter(|terminal| self.own_group && terminal.is_ours())
        {
            terminal.give_to(self.pid);
        }
        self.send(Signal::SIGCONT);
    }

    /// Whether we stop as well. Not where the command, as soon as it has the terminal that we are in the foreground
    /// of, can go on; nor where somebody stopped it by itself, who may let it go on without us.
    pub fn stops_us(&self, stop: Stop) -> bool {
        let is_ours = self.terminal.as_ref().is_some_and(Terminal::is_ours);
        let is_its = self.terminal.as_ref().is_some_and(|terminal| terminal.is_of(self.pid));
        match stop {
            Stop::Us => true,
            Stop::Command(Signal::SIGTTIN | Signal::SIGTTOU) => !is_ours && !is_its,
            // Ctrl-Z reached it alone, and our parent waits for us.
            Stop::Command(Signal::SIGTSTP) => is_its,
            Stop::Command(_) => false,
        }
    }

    /// Waits for its end. May be dropped and called again.
    pub async fn ended(&mut self) -> io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Passes on a signal that we got.
    pub fn forward(&self, signal: Signal) {
        if self.own_group {
            self.send(signal);
        } else if !OF_TERMINAL.contains(&signal) {
            // Those of the terminal reached it already, and twice often means "at once".
            let _ = kill(self.pid, signal);
        }
    }

    /// Ends it and all that it started: TERM, then KILL after `grace`. Signals that arrive
    /// meanwhile are passed on.
    pub async fn end(mut self, grace: Duration, signals: &mut Signals) {
        let deadline = Instant::now() + grace;
        // Once it has ended, nothing tells any more what it started.
        let descendants: Vec<_> = match self.own_group {
            true => Vec::new(),
            false => {
                let family = family(self.pid.as_raw()).into_iter().skip(1);
                family.filter_map(|pid| Some((pid, born(pid)?))).collect()
            }
        };
        self.send(Signal::SIGTERM);
        // What is stopped would not see it.
        self.go_on();
        loop {
            tokio::select! {
                _ = self.child.wait() => break,
                signal = signals.next() => self.forward(signal),
                () = tokio::time::sleep_until(deadline) => {
                    self.send(Signal::SIGKILL);
                    let _ = self.child.wait().await;
                    break;
                }
            }
        }
        // Without the lease nothing of the command may go on, children included.
        loop {
            let left = self.left(&descendants);
            if left.is_empty() {
                return;
            }
            if Instant::now() >= deadline {
                for pid in left {
                    let _ = kill(pid, Signal::SIGKILL);
                }
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// What goes on after the command has ended: its group, as one, or those of `descendants`.
    fn left(&self, descendants: &[(i32, u64)]) -> Vec<Pid> {
        if !self.own_group {
            let alive = descendants.iter().filter(|&&(pid, since)| born(pid) == Some(since));
            return alive.map(|&(pid, _)| Pid::from_raw(pid)).collect();
        }
        // As the first process of a container we inherit what lost its parent, and who has ended
        // counts until somebody has waited for it.
        let group = Pid::from_raw(-self.pid.as_raw());
        while let Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) =
            waitpid(group, Some(WaitPidFlag::WNOHANG))
        {}
        if kill(group, None) == Err(Errno::ESRCH) { Vec::new() } else { vec![group] }
    }

    /// To the command and what it started.
    fn send(&self, signal: Signal) {
        if self.own_group {
            let _ = killpg(self.pid, signal);
        } else {
            for pid in family(self.pid.as_raw()) {
                let _ = kill(Pid::from_raw(pid), signal);
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(terminal) = self.terminal.as_ref().filter(|terminal| terminal.is_of(self.pid)) {
            terminal.give_to(getpgrp());
        }
    }
}

/// Waits for all that has ended but the `command`, whenever a child's end is told. The first process of a
/// container inherits what lost its parent, and until somebody has waited for it, each counts as a process.
#[cfg(target_os = "linux")]
async fn bury_orphans(mut ends: tokio::signal::unix::Signal, command: Pid) {
    use nix::sys::wait::{Id, waitid};
    let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    while ends.recv().await.is_some() {
        while let Ok(status) = waitid(Id::All, look)
            && let Some(ended) = status.pid().filter(|ended| *ended != command)
            && waitpid(ended, Some(WaitPidFlag::WNOHANG)).is_ok()
        {}
    }
}

#[cfg(not(target_os = "linux"))]
async fn bury_orphans(_: tokio::signal::unix::Signal, _: Pid) {}

/// When a process began, as far as the system tells: a number that another one under the same id does not
/// have. None where it has ended, even if nobody has waited for it.
fn born(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program, in brackets, may have anything in it.
    let mut words = stat.rsplit_once(')')?.1.split_whitespace();
    let state = words.next()?;
    // proc(5): the state is the third field, this the 22nd.
    if state == "Z" { None } else { words.nth(18)?.parse().ok() }
}

/// A process and its descendants, as far as the system tells.
fn family(pid: i32) -> Vec<i32> {
    let mut all = vec![pid];
    let mut next = 0;
    while let Some(&parent) = all.get(next) {
        // Each child is told of at the thread that started it.
        let threads = std::fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
        for thread in threads {
            let children = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            all.extend(children.split_whitespace().filter_map(|child| child.parse::<i32>().ok()));
        }
        next += 1;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Vec<OsString> {
        ["sh", "-c", script].map(OsString::from).to_vec()
    }

    #[tokio::test]
    async fn exit_statuses_are_those_of_a_shell() {
        for (script, status) in [("exit 0", 0), ("exit 3", 3), ("kill -TERM $$", 143), ("kill -KILL $$", 137)]
        {
            let (mut running, _) = Running::start(&shell(script), &[]).unwrap();
            assert_eq!(status_of(running.ended().await.unwrap()), status, "{script}");
        }
        let missing = Running::start(&["/nonexistent/command".into()], &[]).err().unwrap();
        assert_eq!(status_of_start(&missing), 127);
        let folder = Running::start(&["/".into()], &[]).err().unwrap();
        assert_eq!(status_of_start(&folder), 126);
    }

    #[tokio::test]
    async fn ending_a_command_ends_what_it_started() {
        let file = tempfile::NamedTempFile::new().unwrap();
        // Both parent and child are deaf to TERM.
        let script = format!("trap '' TERM; sleep 60 & echo $! > {}; wait", file.path().display());
        let mut signals = Signals::new().unwrap();
        let (running, _) = Running::start(&shell(&script), &[]).unwrap();
        let child = loop {
            let text = std::fs::read_to_string(file.path()).unwrap();
            if let Ok(pid) = text.trim().parse::<i32>() {
                break Pid::from_raw(pid);
            }
            sleep(Duration::from_millis(10)).await;
        };
        running.end(Duration::from_millis(200), &mut signals).await;
        for _ in 0..100 {
            if born(child.as_raw()).is_none() {
                return;
            }
            sleep(Duration::from_millis(10)).await;
        }
        panic!("the command's child is still there");
    }

    #[test]
    fn what_another_thread_started_is_of_the_family() {
        let sleeper = std::process::Command::new("sleep");
        let mut child = std::thread::scope(|threads| {
            // The thread goes on until its child has been found.
            let (found, until_found) = std::sync::mpsc::channel::<()>();
            let (started, child) = std::sync::mpsc::channel();
            threads.spawn(move || {
                let mut sleeper = sleeper;
                started.send(sleeper.arg("60").spawn().unwrap()).unwrap();
                let _ = until_found.recv();
            });
            let child = child.recv().unwrap();
            assert!(family(std::process::id() as i32).contains(&(child.id() as i32)));
            drop(found);
            child
        });
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[tokio::test]
    async fn what_ended_without_a_parent_is_not_waited_for() {
        // Then orphans come to us, as they come to the first process of a container.
        nix::sys::prctl::set_child_subreaper(true).unwrap();
        let ready = tempfile::NamedTempFile::new().unwrap();
        let script = format!("(sleep 60 &); echo > {}; sleep 60", ready.path().display());
        let mut signals = Signals::new().unwrap();
        let (running, _) = Running::start(&shell(&script), &[]).unwrap();
        while ready.as_file().metadata().unwrap().len() == 0 {
            sleep(Duration::from_millis(10)).await;
        }
        let ended = running.end(Duration::from_secs(3600), &mut signals);
        tokio::time::timeout(Duration::from_secs(60), ended).await.expect("it has ended");
    }
}
