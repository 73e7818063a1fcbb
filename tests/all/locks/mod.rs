//! `/v1/locks`: taking, extending, releasing, looking at and listing locks.

mod acquire;
mod extend;
mod inspect;
mod limits;
mod list;
mod release;
mod retries;
mod shared;
