//! elections
