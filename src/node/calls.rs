//! Builders of commands and readers of answers, one pair a script.
