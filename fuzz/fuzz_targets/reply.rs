//! What a node may answer to any script.
#![no_main]

use libfuzzer_sys::arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;
use quorate::domain::Survey;
use quorate::node::calls::{Extended, GrantVote, ListStep, Released, Status, read_entries, read_issued};
use quorate::node::scripts::reply_of_one;
use quorate::node::{Answer, Script, Value};

fn value(from: &mut Unstructured<'_>, depth: usize) -> Value {
    match from.int_in_range(0..=3).unwrap_or(0) {
        1 => Value::Int(from.arbitrary().unwrap_or_default()),
        2 => Value::Text(from.arbitrary::<&str>().unwrap_or_default().to_owned()),
        3 if depth > 0 => {
            let length = from.int_in_range(0..=12).unwrap_or(0);
            Value::List((0..length).map(|_| value(from, depth - 1)).collect())
        }
        _ => Value::Nil,
    }
}

fuzz_target!(|data: &[u8]| {
    let mut from = Unstructured::new(data);
    let done = from.arbitrary().unwrap_or_default();
    let length = from.int_in_range(0..=12).unwrap_or(0);
    let rest: Vec<Value> = (0..length).map(|_| value(&mut from, 3)).collect();
    let answer = Answer { done, node_ms: 0, rest };
    let _ = GrantVote::read(answer.clone());
    let _ = Extended::read(answer.clone());
    let _ = Survey::read(answer.clone());
    let _ = ListStep::read(answer.clone());
    let _ = read_entries(answer.clone(), answer.rest.len());
    let _ = (Released::read(&answer), Status::read(&answer), read_issued(&answer));
    for script in Script::ALL {
        let _ = reply_of_one(script, Value::List(answer.rest.clone()));
    }
});
