//! Everything from outside: the real binary over real `redis-server` processes, a file or folder
//! per resource, mirroring the URLs; then what no single resource owns.
#![allow(clippy::disallowed_methods, reason = "real processes run in real time")]

mod redis_process;
mod support;

mod elections;
mod fencing;
mod locks;
mod multilocks;
mod semaphores;

mod audit;
mod auth;
mod bad_input;
mod batches;
mod chaos;
mod cli_run;
mod cli_terminal;
mod dev_server;
mod disconnects;
mod documented;
mod drain;
mod fairness;
mod hold;
mod http_edge;
mod layers;
mod looks;
mod members;
mod metrics;
mod nodes_down;
mod nonsense;
mod parity;
mod pauses;
mod places;
mod proxies;
mod quarantine;
mod redis_node;
mod restricted;
mod secrets;
mod service;
mod slow;
mod steady;
mod tokens;
mod traces;
mod waiting;
mod walk;
