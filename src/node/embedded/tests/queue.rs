//! The queue of servers at one node: whose turn it is, and for how long that is kept.

use super::*;
use crate::domain::{QueueId, Standing, Want};

const KEEP: u64 = 20;

fn standing(server: u64, arrived: u64) -> Standing {
    let queue = QueueId::new(server, 1);
    Standing {
        arrived_us: P + arrived,
        queue,
        life_ms: 3000,
        keep_ms: KEEP,
        want: Want::One,
        limit: 1,
        next: None,
    }
}

/// A server's waiter asks for it, with a token of its own.
fn ask(node: &EmbeddedNode, on: &On<'_>, lease: &str, standing: Option<Standing>) -> String {
    let place = standing.map(|standing| standing.to_string()).unwrap_or_default();
    let proposed = P + node.now_us() - P + 1;
    acquire_at(node, on, &Ask { lease, proposed, ..ASK }, 3, &place)
}

fn queue(node: &EmbeddedNode, on: &str) -> String {
    node.get_raw(&format!("q:{on}/queue")).unwrap_or_default()
}

fn is_held(reply: &str) -> bool {
    reply.starts_with("0 [")
}

#[test]
fn a_name_that_was_released_is_kept_for_who_waits_longest_and_then_for_the_next() {
    let node = node();
    ask(&node, &LOCK, A, None);
    // The later one is heard of first.
    assert!(is_held(&ask(&node, &LOCK, C, Some(standing(3, 30)))));
    assert!(is_held(&ask(&node, &LOCK, B, Some(standing(2, 20)))));
    at(&node, 1000);
    assert_eq!(release(&node, &LOCK, A), "1");
    at(&node, 1005);
    assert_eq!(ask(&node, &LOCK, D, None), "0 35", "who does not wait comes last");
    assert_eq!(ask(&node, &LOCK, C, Some(standing(3, 30))), "0 15");
    assert!(ask(&node, &LOCK, B, Some(standing(2, 20))).starts_with('1'));
    assert!(is_held(&ask(&node, &LOCK, D, None)));
    at(&node, 1010);
    assert!(release(&node, &LOCK, B).starts_with('1'));
    assert_eq!(ask(&node, &LOCK, D, None), "0 20");
    assert!(ask(&node, &LOCK, C, Some(standing(3, 30))).starts_with('1'));
    assert_eq!(queue(&node, "lock:a"), "");
}

#[test]
fn who_came_first_and_asks_here_for_the_first_time_waits_for_nobody_and_leaves_the_others_their_places() {
    let node = node();
    ask(&node, &LOCK, A, None);
    assert!(is_held(&ask(&node, &LOCK, C, Some(standing(3, 30)))));
    release(&node, &LOCK, A);
    let before = queue(&node, "lock:a");
    assert_eq!(before.lines().count(), 1);
    assert!(ask(&node, &LOCK, B, Some(standing(2, 20))).starts_with('1'));
    assert_eq!(queue(&node, "lock:a"), before);
    assert_eq!(ask(&node, &LOCK, D, Some(standing(4, 40))), ask(&node, &LOCK, D, Some(standing(4, 40))));
}

#[test]
fn a_head_that_is_dead_costs_one_moment_and_is_gone() {
    let node = node();
    ask(&node, &LOCK, A, None);
    ask(&node, &LOCK, B, Some(standing(2, 20)));
    ask(&node, &LOCK, C, Some(standing(3, 30)));
    release(&node, &LOCK, A);
    at(&node, KEEP - 1);
    assert_eq!(ask(&node, &LOCK, C, Some(standing(3, 30))), "0 1");
    at(&node, KEEP);
    assert!(ask(&node, &LOCK, C, Some(standing(3, 30))).starts_with('1'));
    assert_eq!(queue(&node, "lock:a"), "");
}

#[test]
fn an_entry_that_is_not_written_again_lapses() {
    let node = node();
    ask(&node, &LOCK, A, None);
    ask(&node, &LOCK, B, Some(standing(2, 20)));
    at(&node, 2000);
    ask(&node, &LOCK, C, Some(standing(3, 30)));
    at(&node, 3000);
    release(&node, &LOCK, A);
    assert!(ask(&node, &LOCK, C, Some(standing(3, 30))).starts_with('1'), "nobody is before it");
    at(&node, 6001);
    assert_eq!(queue(&node, "lock:a"), "");
}

#[test]
fn what_expires_is_kept_for_the_head_from_then_on() {
    let node = node();
    ask(&node, &LOCK, A, None);
    at(&node, TTL - 1000);
    ask(&node, &LOCK, B, Some(standing(2, 20)));
    at(&node, TTL + 5);
    assert_eq!(ask(&node, &LOCK, C, None), "0 15");
    at(&node, TTL + KEEP);
    assert!(ask(&node, &LOCK, C, None).starts_with('1'));
}

#[test]
fn the_next_waiter_of_a_server_takes_its_entry_over() {
    let node = node();
    ask(&node, &LOCK, A, None);
    let two = Standing { next: Some((P + 40, Want::One)), ..standing(2, 20) };
    ask(&node, &LOCK, B, Some(two));
    ask(&node, &LOCK, C, Some(standing(3, 30)));
    release(&node, &LOCK, A);
    assert!(ask(&node, &LOCK, B, Some(two)).starts_with('1'));
    release(&node, &LOCK, B);
    assert_eq!(ask(&node, &LOCK, B, Some(standing(2, 40))), "0 20", "now the other server comes first");
    assert!(ask(&node, &LOCK, C, Some(standing(3, 30))).starts_with('1'));
}

#[test]
fn a_multilock_is_kept_each_of_its_names_until_it_has_them_all() {
    let node = node();
    ask(&node, &LOCK, A, None);
    let both = Standing { want: Want::Several, ..standing(2, 20) };
    assert!(is_held(&ask(&node, &BOTH, B, Some(both))));
    // The other name is free all the time, and no stream of single locks passes.
    let b = On::Locks(&["b"]);
    assert_eq!(ask(&node, &b, C, Some(standing(3, 30))), "0 3000");
    at(&node, 2000);
    assert!(is_held(&ask(&node, &BOTH, B, Some(both))));
    assert_eq!(ask(&node, &b, C, Some(standing(3, 30))), "0 3000");
    release(&node, &LOCK, A);
    assert!(ask(&node, &BOTH, B, Some(both)).starts_with('1'));
    release(&node, &BOTH, B);
    assert!(ask(&node, &b, C, Some(standing(3, 30))).starts_with('1'));
}

#[test]
fn all_permits_of_a_semaphore_are_kept_for_who_waits_for_them() {
    let node = node();
    let all = |arrived| Standing { want: Want::Several, limit: 3, ..standing(2, arrived) };
    let one = |arrived| Standing { limit: 3, ..standing(3, arrived) };
    ask(&node, &On::Slots(&[0]), A, None);
    ask(&node, &On::Slots(&[1]), C, None);
    assert!(is_held(&ask(&node, &On::Slots(&[0, 1, 2]), B, Some(all(20)))));
    release(&node, &On::Slots(&[0]), A);
    assert_eq!(ask(&node, &On::Slots(&[0]), D, Some(one(30))), "0 3000");
    // By a higher limit there are slots that it does not want.
    let other = Ask { lease: E, proposed: P + 5, ..ASK };
    assert!(acquire_at(&node, &On::Slots(&[7]), &other, 9, "-").starts_with('1'));
    release(&node, &On::Slots(&[7]), E);
    release(&node, &On::Slots(&[1]), C);
    assert!(ask(&node, &On::Slots(&[0, 1, 2]), B, Some(all(20))).starts_with('1'));
}

#[test]
fn permits_of_a_higher_limit_count_for_a_lower_one() {
    let node = node();
    let acquire =
        |slots: &[u64], lease, limit| acquire_at(&node, &On::Slots(slots), &Ask { lease, ..ASK }, limit, "-");
    assert!(acquire(&[3, 4, 5], A, 6).starts_with('1'));
    assert_eq!(acquire(&[0], B, 3), "0");
    assert!(acquire(&[0], B, 4).starts_with('1'));
    assert!(acquire(&[0], B, 4).starts_with('1'), "a message that comes twice");
}

#[test]
fn a_release_names_those_whose_turn_it_is() {
    #[derive(Default)]
    struct Heard(parking_lot::Mutex<Vec<String>>);
    impl HintSink for Heard {
        fn hint(&self, _: &str, message: &str) {
            self.0.lock().push(message.to_owned());
        }
        fn missed(&self) {}
    }
    let node = node();
    let heard = Arc::new(Heard::default());
    let connection = node.connect();
    connection.listen(heard.clone());
    for channel in ["q:lock:a", SEMAPHORE] {
        connection.subscribe(channel.into()).now_or_never().unwrap().unwrap();
    }
    ask(&node, &LOCK, A, None);
    release(&node, &LOCK, A);
    ask(&node, &LOCK, A, None);
    let [two, three] = [standing(2, 20), standing(3, 30)];
    ask(&node, &LOCK, C, Some(three));
    ask(&node, &LOCK, B, Some(two));
    release(&node, &LOCK, A);
    // Of two permits that are given back, the first two are told.
    let slots = On::Slots(&[0, 1]);
    ask(&node, &slots, A, None);
    ask(&node, &On::Slots(&[0]), B, Some(two));
    ask(&node, &On::Slots(&[0]), C, Some(three));
    release(&node, &slots, A);
    let [two, three] = [two.queue, three.queue].map(|queue| queue.to_string());
    assert_eq!(*heard.0.lock(), [String::new(), two.clone(), format!("{two} {three}")]);
}
