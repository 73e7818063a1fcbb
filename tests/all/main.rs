//! All integration tests in one binary: one link, and one place for what they share.

mod layers;
