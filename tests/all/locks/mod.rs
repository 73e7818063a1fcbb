//! `/v1/locks`: taking, extending, releasing, looking at and listing locks.

mod acquire;
mod extend;
mod inspect;
mod list;
mod release;
mod retries;
