//! What the clients were told: checked here for what an eye on two neighbours sees, and written
//! call by call for the checker in `tests/history`.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::sync::Mutex;
use std::time::Instant;

use serde_json::{Value, json};

use crate::support::http::Answer;

/// What a client was told.
#[derive(Debug, Clone)]
pub struct Told {
    /// `lock:NAME`, `slot:NAME/N`, `office:NAME`: what can have one holder.
    pub what: String,
    pub token: u64,
    /// Before the request that granted it was sent.
    pub asked: Instant,
    /// After its answer came.
    pub answered: Instant,
    /// Surely valid until then: the validity told, counted from before asking, or its release.
    pub until: Instant,
    /// Issued without a lease.
    pub bare: bool,
}

/// What all clients were told, and what went how often.
pub struct History {
    began: Instant,
    /// A line of JSON for each call; see `tests/history/history.go`.
    calls: Option<Mutex<BufWriter<File>>>,
    pub told: Mutex<Vec<Told>>,
    pub answers: Mutex<BTreeMap<String, u64>>,
    pub wrong: Mutex<Vec<String>>,
}

/// A call with its answer, if there was one.
pub struct Call<'a> {
    pub op: &'static str,
    pub kind: &'static str,
    pub name: &'a str,
    pub asked: Instant,
    /// `None` where nobody knows what became of it.
    pub outcome: Option<&'static str>,
    /// Whatever else the checker needs of the answer.
    pub more: Value,
}

impl History {
    /// Written to a file too, if one is named.
    pub fn new(file: Option<&str>) -> Self {
        let create =
            |path| Mutex::new(BufWriter::new(File::create(path).expect("the history can be written")));
        Self {
            began: Instant::now(),
            calls: file.map(create),
            told: Mutex::default(),
            answers: Mutex::default(),
            wrong: Mutex::default(),
        }
    }

    /// Microseconds since the beginning.
    pub fn at(&self, instant: Instant) -> u64 {
        instant.saturating_duration_since(self.began).as_micros() as u64
    }

    /// Writes down a call that ends now.
    pub fn record(&self, client: u64, call: Call<'_>) {
        let Some(file) = &self.calls else { return };
        let mut line = call.more;
        line["client"] = json!(client);
        line["op"] = json!(call.op);
        line["kind"] = json!(call.kind);
        line["name"] = json!(call.name);
        line["asked_us"] = json!(self.at(call.asked));
        line["answered_us"] = json!(self.at(Instant::now()));
        line["outcome"] = json!(call.outcome.unwrap_or("unknown"));
        writeln!(file.lock().unwrap(), "{line}").expect("the history can be written");
    }

    /// All calls are in the file.
    pub fn flush(&self) {
        if let Some(file) = &self.calls {
            file.lock().unwrap().flush().expect("the history can be written");
        }
    }

    pub fn count(&self, what: &str, answer: &std::io::Result<Answer>) {
        let outcome = match answer {
            Ok(answer) if answer.status == 200 => "200".to_owned(),
            Ok(answer) => format!("{} {}", answer.status, answer.code()),
            Err(_) => "no answer".to_owned(),
        };
        *self.answers.lock().unwrap().entry(format!("{what}: {outcome}")).or_default() += 1;
        if let Ok(answer) = answer {
            let expected = matches!(answer.status, 200 | 409 | 429 | 503);
            if !expected {
                self.wrong.lock().unwrap().push(format!("{what}: {} {}", answer.status, answer.text()));
            }
        }
    }

    /// The index by which its end can be told.
    pub fn add(&self, told: Told) -> usize {
        let mut all = self.told.lock().unwrap();
        all.push(told);
        all.len() - 1
    }

    pub fn end(&self, indices: &[usize], until: Instant) {
        let mut all = self.told.lock().unwrap();
        for &index in indices {
            all[index].until = until;
        }
    }
}
/// What is wrong with a history; nothing, one hopes.
pub fn violations(told: &[Told]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut by_what: HashMap<&str, Vec<&Told>> = HashMap::new();
    for one in told {
        by_what.entry(&one.what).or_default().push(one);
    }
    for (what, mut all) in by_what {
        // Tokens: greater than every one that was answered before this was asked for.
        let mut answered = all.clone();
        answered.sort_by_key(|one| one.answered);
        all.sort_by_key(|one| one.asked);
        let (mut next, mut highest) = (0, 0);
        for one in &all {
            while answered.get(next).is_some_and(|earlier| earlier.answered < one.asked) {
                highest = highest.max(answered[next].token);
                next += 1;
            }
            if one.token <= highest {
                wrong.push(format!("{what}: token {} was granted after {highest} had been", one.token));
            }
        }
        // Leases: surely valid from the answer until the end of what was told.
        let mut leases: Vec<&&Told> =
            all.iter().filter(|one| !one.bare && one.until > one.answered).collect();
        leases.sort_by_key(|one| one.answered);
        for pair in leases.windows(2) {
            if pair[1].answered < pair[0].until {
                let overlap = pair[0].until - pair[1].answered;
                wrong.push(format!(
                    "{what}: leases {} and {} were both valid for {overlap:?}",
                    pair[0].token, pair[1].token
                ));
            }
        }
    }
    wrong
}
