//! What goes to stdout: text, JSON, tables.

use std::fmt::Display;
use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use serde_json::Value;

use super::client_args::Output;
use crate::client::{Failure, Printable, exit, printable_json};

/// The lists that are shown as tables: the member of the answer, and its columns with their keys.
const TABLES: [(&str, &[(&str, &str)]); 3] = [
    (
        "locks",
        &[
            ("NAME", "name"),
            ("OWNER", "owner"),
            ("MODE", "mode"),
            ("TOKEN", "fencing_token"),
            ("ENDS IN", "remaining_ms"),
            ("WAITERS", "waiters"),
        ],
    ),
    ("members", &[("MEMBER", "id"), ("ADDRESS", "address"), ("STATE", "state"), ("VOTES IN", "votes_in_ms")]),
    (
        "nodes",
        &[
            ("NODE", "id"),
            ("ADDRESS", "address"),
            ("STATE", "state"),
            ("VERSION", "redis_version"),
            ("ANSWERS IN", "latency_ms"),
            ("VOTES IN", "voting_in_ms"),
            ("REASON", "reason"),
        ],
    ),
];

/// A list as a table where a person reads it or asks for one, else JSON: pretty for people, one line for
/// programs.
pub(super) fn print_answer(answer: &Value, output: Option<Output>) -> Ended {
    let at_terminal = std::io::stdout().is_terminal();
    let as_table = output.map_or(at_terminal, |output| output == Output::Table);
    if let Some(table) = table(answer).filter(|_| as_table) {
        return print(&table);
    }
    let text = match at_terminal && output.is_none() {
        true => serde_json::to_string_pretty(answer),
        false => serde_json::to_string(answer),
    };
    print(&printable_json(&text.map_err(failed)?))
}

fn table(answer: &Value) -> Option<String> {
    let (rows, columns) =
        TABLES.iter().find_map(|(list, columns)| Some((answer.get(list)?.as_array()?, columns)))?;
    let headings = columns.iter().map(|(heading, _)| (*heading).to_owned()).collect();
    let rows = rows.iter().map(|row| columns.iter().map(|(_, key)| cell(key, row.get(key))).collect());
    let lines: Vec<Vec<String>> = std::iter::once(headings).chain(rows).collect();
    let widths: Vec<usize> = (0..columns.len())
        .map(|at| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or_default())
        .collect();
    let line = |cells: &Vec<String>| {
        let padded: String =
            cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}  ")).collect();
        padded.trim_end().to_owned() + "\n"
    };
    Some(lines.iter().map(line).collect())
}

fn cell(key: &str, value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "-".to_owned(),
        Some(Value::String(text)) => Printable(text).to_string(),
        Some(value) => match value.as_f64().filter(|_| key.ends_with("_ms")) {
            // Tenths of a second tell enough of a time that passes meanwhile, microseconds of an answer.
            Some(ms) if ms >= 1_000.0 => format!("{:.1}s", ms / 1_000.0),
            Some(ms) => format!("{ms}ms"),
            None => value.to_string(),
        },
    }
}

pub(super) fn print(text: &str) -> Ended {
    let mut text = text.to_owned();
    if !text.ends_with('\n') {
        text.push('\n');
    }
    print_bytes(text.as_bytes())
}

pub(super) fn print_bytes(bytes: &[u8]) -> Ended {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        // `quorate config | head` is not a failure.
        Err(cause) if cause.kind() != std::io::ErrorKind::BrokenPipe => Err(failed(cause)),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Says something to stderr.
pub(super) fn say(what: impl Display) {
    let _ = writeln!(std::io::stderr(), "quorate: {what}");
}

/// What a command ends with.
pub(super) type Ended = Result<ExitCode, Wrong>;

/// Why a command failed, and the status that says so.
pub(super) struct Wrong {
    pub(super) status: u8,
    pub(super) why: String,
}

impl Wrong {
    pub(super) fn new(status: u8, why: impl Display) -> Self {
        Self { status, why: why.to_string() }
    }
}

impl From<Failure> for Wrong {
    fn from(failure: Failure) -> Self {
        Self::new(failure.status(), failure)
    }
}

/// The command line, or a setting, makes no sense.
pub(super) fn usage(why: impl Display) -> Wrong {
    Wrong::new(exit::USAGE, why)
}

/// Something else went wrong.
pub(super) fn failed(why: impl Display) -> Wrong {
    Wrong::new(1, why)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_list_is_a_table_and_anything_else_is_none() {
        let list = json!({"locks": [
            {"name": "nightly", "owner": "re\u{202e}d", "fencing_token": 7, "remaining_ms": 12_345, "waiters": 0},
            {"name": "a", "mode": "shared", "fencing_token": 12_345, "remaining_ms": 80, "waiters": 12},
        ]});
        let shown = "NAME     OWNER        MODE    TOKEN  ENDS IN  WAITERS\n\
                     nightly  re\\u{202e}d  -       7      12.3s    0\n\
                     a        -            shared  12345  80ms     12\n";
        assert_eq!(table(&list).unwrap(), shown);
        assert_eq!(table(&json!({"locks": []})).unwrap(), "NAME  OWNER  MODE  TOKEN  ENDS IN  WAITERS\n");
        assert_eq!(table(&json!({"name": "nightly", "held": false})), None);
    }
}
