//! The clock of tests and of the simulator.

use std::sync::atomic::{AtomicI64, Ordering};

use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::time::Instant;

use super::Clock;

/// A clock that a seed decides and a test can turn.
#[derive(Debug)]
pub struct SeededClock {
    random: Mutex<SmallRng>,
    start: Instant,
    start_us: u64,
    skew_us: AtomicI64,
}

impl SeededClock {
    /// Starts at `start_us` and runs with tokio's clock.
    pub fn new(seed: u64, start_us: u64) -> Self {
        Self {
            random: Mutex::new(SmallRng::seed_from_u64(seed)),
            start: Instant::now(),
            start_us,
            skew_us: 0.into(),
        }
    }

    /// Sets how wrong the wall clock is from now on, µs.
    pub fn set_skew_us(&self, skew_us: i64) {
        self.skew_us.store(skew_us, Ordering::Relaxed);
    }

    fn with<T>(&self, draw: impl FnOnce(&mut SmallRng) -> T) -> T {
        draw(&mut self.random.lock())
    }
}

impl Clock for SeededClock {
    fn wall_us(&self) -> u64 {
        let skew = self.skew_us.load(Ordering::Relaxed);
        (self.start_us + self.start.elapsed().as_micros() as u64).saturating_add_signed(skew)
    }

    fn random_bits(&self) -> u128 {
        self.with(Rng::random)
    }

    fn random_below(&self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.with(|random| random.random_range(0..bound)) }
    }
}
