//! What may be stored in the place of a record, an index or a queue, under every function of lease.lua.
#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use quorate::clock::{Clock, SystemClock};
use quorate::domain::{Ask, Keys, LeaseId, Mode, Name, Renewal, Scope};
use quorate::node::calls::{self, Bounds, Reason};
use quorate::node::embedded::EmbeddedNode;
use quorate::node::{Marker, NodeError, Settle};

const MARKER: &str = "marker";

static NODE: LazyLock<EmbeddedNode> = LazyLock::new(|| {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    EmbeddedNode::new("run-1", clock)
});

fuzz_target!(|data: &[u8]| {
    let node = &*NODE;
    node.flush();
    let keys = Keys::new("q");
    let name = Name::new("n").unwrap();
    let (lock, index) = (keys.lock(&name), keys.semaphore(&name));
    let text = String::from_utf8_lossy(data);
    let (record, queue) = text.split_once('\0').unwrap_or((&text, ""));
    node.command(&["SET", keys.marker(), MARKER]).unwrap();
    for key in [&lock, &format!("{index}/0"), &format!("{index}//{:032x}", 1)] {
        node.command(&["SET", key, record]).unwrap();
    }
    for key in [&lock, &index] {
        node.command(&["SET", &format!("{key}/queue"), queue]).unwrap();
    }
    let bounds = Bounds { clock_bound_ms: 60_000, fence_retention_ms: 1_000 };
    let marker = Marker { keys: keys.clone(), expected: MARKER.into(), votes: true, bounds };
    let lease = LeaseId::from_bits(1);
    let records = Scope::Records([Arc::from(lock.as_str())].into_iter().collect());
    for scope in [records, Scope::Slots(index.as_str().into())] {
        let ask = Ask {
            scope: &scope,
            slots: &[0],
            mode: Mode::Shared,
            ttl_ms: 1_000,
            max_hold_ms: 0,
            lock_delay_ms: 0,
            request: Some("request-1"),
            params: "-",
            data: "",
            look_only: false,
            limit: 2,
            standing: None,
        };
        let settle = Settle::new(1_000, false, tokio::time::Instant::now());
        let read = calls::read([scope.channels()[0].as_ref()]);
        for command in [
            calls::acquire(&ask, &lease, 1),
            calls::extend(&scope, &lease, None, Renewal::Own, None, false),
            read,
            calls::release(&scope, &lease, Reason::Undo, settle),
            calls::acquire(&ask, &LeaseId::from_bits(2), 1),
            calls::list("q:lock:", "0", 10),
        ] {
            match node.eval(&command, Some(&marker)) {
                Ok(_) => {}
                // Said of what is stored, in the script's own words or in those of Redis.
                Err(NodeError::Redis(why)) => {
                    let is_told =
                        ["not a lease record", "WRONGTYPE", "ERR"].iter().any(|text| why.contains(text));
                    assert!(is_told, "{why}");
                }
                Err(why) => panic!("{why}"),
            }
        }
    }
});
