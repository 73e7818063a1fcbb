//! Time and randomness behind one trait; nothing else reads either.
//!
//! The monotonic clock is tokio's, so that a test with paused time turns it;
//! the wall clock and the random numbers are injected, so that a seed replays a
//! whole deployment and a test can set one API server's clock wrong.

mod testing;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::Instant;

pub use self::testing::SeededClock;

/// What the engine may know of time and chance.
pub trait Clock: Send + Sync + 'static {
    /// Wall clock, µs since the epoch. May jump; used for tokens and for display only.
    fn wall_us(&self) -> u64;

    /// 128 random bits for a lease id, unpredictable in production.
    fn random_bits(&self) -> u128;

    /// A random number below `bound` (0 where `bound` is 0), for back-off and slots.
    fn random_below(&self, bound: u64) -> u64;

    /// Monotonic now.
    fn now(&self) -> Instant {
        Instant::now()
    }

    /// How long the machine has slept since some moment, µs: time that [`now`](Clock::now) does not count.
    fn slept_us(&self) -> u64 {
        0
    }
}

/// Random numbers drawn from one seed.
const DRAWS: u32 = 256;

/// The clock of a real process.
#[derive(Debug)]
pub struct SystemClock {
    /// A CSPRNG, so that there is no system call per lease id, and how often it may be drawn from before it is seeded
    /// anew: a cloned process has the same.
    ids: Mutex<(StdRng, u32)>,
    /// What the machine had slept when this began, µs.
    slept_us: u64,
}

impl SystemClock {
    /// The clock of this machine.
    pub fn new() -> Self {
        Self { ids: Mutex::new((StdRng::from_os_rng(), DRAWS)), slept_us: slept_us() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods, reason = "the one place that reads it")]
    fn wall_us(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_micros() as u64
    }

    fn random_bits(&self) -> u128 {
        let (random, left) = &mut *self.ids.lock();
        *left = left.checked_sub(1).unwrap_or(DRAWS);
        if *left == 0
            && let Ok(seeded) = StdRng::try_from_os_rng()
        {
            *random = seeded;
        }
        random.random()
    }

    fn slept_us(&self) -> u64 {
        slept_us().saturating_sub(self.slept_us)
    }

    fn random_below(&self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { rand::rng().random_range(0..bound) }
    }
}

/// How far the clock that counts sleep is ahead of the one that does not, µs.
#[cfg(target_os = "linux")]
fn slept_us() -> u64 {
    use nix::time::{ClockId, clock_gettime};
    let read = |id| clock_gettime(id).map_or(Duration::ZERO, Duration::from);
    let awake = read(ClockId::CLOCK_MONOTONIC);
    read(ClockId::CLOCK_BOOTTIME).saturating_sub(awake).as_micros() as u64
}

/// No such clock is known here.
#[cfg(not(target_os = "linux"))]
fn slept_us() -> u64 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cloned_process_draws_other_numbers_before_long() {
        let clock = SystemClock::new();
        let clone = SystemClock { ids: Mutex::new(clock.ids.lock().clone()), slept_us: 0 };
        assert_eq!(clock.random_bits(), clone.random_bits());
        (0..DRAWS).for_each(|_| assert_ne!(clock.random_bits(), 0));
        (0..DRAWS).for_each(|_| assert_ne!(clone.random_bits(), 0));
        assert_ne!(clock.random_bits(), clone.random_bits());
    }
}
