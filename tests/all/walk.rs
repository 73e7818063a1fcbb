//! The commands of the pages do what they show.
#![allow(clippy::disallowed_methods, reason = "real processes run in real time")]

use std::path::Path;
use std::process::Command;

use crate::dev_server::{DevServer, QUORATE};

/// Each `$ ` line of the page's console blocks, with the lines that it shows below.
fn steps(page: &str) -> Vec<(String, String)> {
    let mut steps: Vec<(String, String)> = Vec::new();
    let mut inside = false;
    for line in page.lines() {
        match line.strip_prefix("$ ") {
            _ if line.starts_with("```") => inside = line == "```console",
            Some(command) if inside => steps.push((command.to_owned(), String::new())),
            None if inside => {
                let shown = &mut steps.last_mut().expect("a block begins with a command").1;
                shown.push_str(line);
                shown.push('\n');
            }
            _ => {}
        }
    }
    steps
}

/// The text with a `#` for each word that has a digit: tokens, ids and times differ from run to run.
fn masked(text: &str) -> String {
    let mut masked = String::new();
    for word in text.split_inclusive(|c: char| !c.is_ascii_alphanumeric()) {
        let end =
            word.len() - word.chars().last().filter(|c| !c.is_ascii_alphanumeric()).map_or(0, char::len_utf8);
        masked.push_str(if word[..end].contains(|c: char| c.is_ascii_digit()) { "#" } else { &word[..end] });
        masked.push_str(&word[end..]);
    }
    masked
}

/// Whether an output is what a page shows, where `…` stands for anything.
fn shows(shown: &str, output: &str) -> bool {
    let (shown, output) = (masked(shown.trim_end()), masked(output.trim_end()));
    let mut parts = shown.split('…');
    let Some(mut rest) = parts.next().and_then(|first| output.strip_prefix(first)) else { return false };
    let mut last = "";
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
        last = part;
    }
    rest.is_empty()
        || (shown.contains('…') && last.is_empty())
        || (shown.contains('…') && output.ends_with(last))
}

#[test]
fn every_command_of_the_pages_answers_what_the_page_shows() {
    for (page, least) in [("README.md", 1), ("docs/api.md", 12), ("docs/cli.md", 2)] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
        let steps = steps(&std::fs::read_to_string(path).unwrap());
        assert!(steps.len() >= least, "{page}: {steps:?}");
        let server = DevServer::start();
        let folder = tempfile::tempdir().unwrap();
        // One shell for all, since they share variables. A mark tells where the output of each ends.
        const MARK: &str = "-- end of the output --";
        let script: String = steps
            .iter()
            .map(|(command, _)| format!("{command}\nstatus=$?\nprintf '\\n{MARK}\\n'\n(exit $status)\n"))
            .collect();
        let script = script.replace("localhost:8080", &server.address().to_string());
        let binaries = Path::new(QUORATE).parent().unwrap().display();
        let output = Command::new("bash")
            .args(["-c", &format!("exec 2>&1\nPATH={binaries}:$PATH\n{script}")])
            .env("QUORATE_SERVER", server.url())
            .current_dir(&folder)
            .output()
            .unwrap();
        let output = String::from_utf8(output.stdout).unwrap();
        let answers: Vec<&str> = output.split(&format!("\n{MARK}\n")).collect();
        assert_eq!(answers.len(), steps.len() + 1, "{output}");
        for ((command, shown), answer) in steps.iter().zip(answers) {
            assert!(shows(shown, answer), "{page}: {command}\nshows\n{shown}\nbut answers\n{answer}");
        }
    }
}

#[test]
fn an_output_that_differs_from_the_page_is_noticed() {
    assert!(shows("{\"a\":1,…}", "{\"a\":27,\"b\":2}\n"));
    assert!(shows("{\"released\":true}", "{\"released\":true}"));
    assert!(!shows("{\"released\":true}", "{\"released\":false}"));
    assert!(!shows("{\"a\":1,…}", "{\"b\":1,\"a\":1}"));
    assert!(!shows("{\"a\":1}", "{\"a\":1,\"b\":2}"));
    assert!(!shows("{…\"limit\":2,…}", "{\"permits\":2}"));
}
