//! multilocks
