//! fencing
