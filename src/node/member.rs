//! A node as a voter.
