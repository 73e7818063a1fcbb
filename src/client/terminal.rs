//! The terminal that we and a command in a process group of its own share.

use std::fs::File;

use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};

/// The terminal of our session.
pub(super) struct Terminal(File);

impl Terminal {
    /// None where there is no terminal.
    pub(super) fn open() -> Option<Self> {
        let terminal = File::options().read(true).write(true).open("/dev/tty").ok()?;
        // Else we are stopped when we give or take the terminal from the background, or write to it.
        let mut writes = SigSet::empty();
        writes.add(Signal::SIGTTOU);
        writes.thread_block().ok()?;
        Some(Self(terminal))
    }

    /// Whether we are in the foreground.
    pub(super) fn is_ours(&self) -> bool {
        self.is_of(getpgrp())
    }

    /// Whether this process group is in the foreground.
    pub(super) fn is_of(&self, group: Pid) -> bool {
        tcgetpgrp(&self.0) == Ok(group)
    }

    /// Only the group in the foreground may read from a terminal, and Ctrl-C and Ctrl-Z reach only that.
    pub(super) fn give_to(&self, group: Pid) {
        // It fails where the group has ended, or the terminal has gone.
        let _ = tcsetpgrp(&self.0, group);
    }
}
