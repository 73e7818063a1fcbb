//! The drift allowance of a lease, and what no deployment may let it exceed.

/// The longest lease that any deployment may allow, ms: a restarted node may have to abstain for that long.
pub const TTL_MS_MAX: u64 = 24 * 3600 * 1000;

/// The longest that a lease with a limit may be held, ms: 30 days.
pub const MAX_HOLD_MS_MAX: u64 = 30 * 24 * 3600 * 1000;
/// The longest time that a name may stay taken after a lease has expired, ms.
pub const LOCK_DELAY_MS_MAX: u64 = 60_000;

/// Milliseconds taken off a lease of `ttl_ms` for clocks that run at different
/// rates: `ttl × 0.01 + 2 ms`, as the Redlock description has it
/// (<https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/>).
pub fn drift_ms(ttl_ms: u64) -> u64 {
    ttl_ms / 100 + 2
}

/// How long a lease of `ttl_ms` is safe to use, `elapsed_ms` after the first
/// byte of the round that granted it was sent; `None` once nothing is left.
pub fn validity_ms(ttl_ms: u64, elapsed_ms: u64) -> Option<u64> {
    ttl_ms.checked_sub(elapsed_ms)?.checked_sub(drift_ms(ttl_ms)).filter(|&left| left > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validity_takes_off_elapsed_time_and_drift() {
        assert_eq!(validity_ms(30_000, 0), Some(29_698));
        assert_eq!(validity_ms(30_000, 100), Some(29_598));
        assert_eq!(validity_ms(100, 96), Some(1));
        assert_eq!(validity_ms(100, 97), None);
        assert_eq!(validity_ms(100, 200), None);
    }
}
