//! The pages know every setting, metric and rule that the program has, and no other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::support::server::run_quorate;

/// Each flag of `serve` with what its help says.
fn helped() -> BTreeMap<String, String> {
    let output = run_quorate(&["serve", "--help"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let mut flags: BTreeMap<String, String> = BTreeMap::new();
    let mut last = None;
    for line in text.lines().map(str::trim) {
        if let Some((_, flag)) = line.split_once("--").filter(|(before, _)| before.len() <= 4) {
            let name: String = flag.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
            last = Some(flags.entry(name).or_default());
        } else if let Some(help) = &mut last {
            help.push(' ');
            help.push_str(line);
        }
    }
    flags.remove("help");
    flags
}

/// Each flag of the page's table with its environment variable and its default.
fn documented() -> BTreeMap<String, (String, String)> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/operations.md");
    let page = std::fs::read_to_string(page).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `--"));
    rows.map(|row| {
        let cells: Vec<&str> = row.split(" | ").collect();
        let name = cells[0].split([' ', '`']).next().unwrap().to_owned();
        (name, (cells[1].trim_matches('`').to_owned(), cells[2].to_owned()))
    })
    .collect()
}

#[test]
fn every_setting_stands_in_the_operations_page_with_its_variable_and_default() {
    let (helped, documented) = (helped(), documented());
    assert!(helped.len() > 30, "the help was read: {helped:?}");
    let names = |of: Vec<&String>| of.into_iter().cloned().collect::<Vec<_>>();
    assert_eq!(names(documented.keys().collect()), names(helped.keys().collect()));
    for (name, help) in helped {
        let (variable, told) = &documented[&name];
        assert_eq!(*variable, format!("QUORATE_{}", name.to_uppercase().replace('-', "_")));
        let default = help.split_once("[default: ").map(|(_, rest)| rest);
        match default.and_then(|rest| rest.split([']', ';']).next()) {
            Some(default) => {
                assert!(told.starts_with(&format!("`{default}`")), "--{name}: {default}, {told}")
            }
            None => assert!(matches!(told.as_str(), "none" | "off" | "the system's"), "--{name}: {told}"),
        }
    }
}

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The texts between delimiters that begin with `prefix` and could be a metric's name.
fn names<'a>(text: &'a str, prefix: &'a str, delimiter: char) -> BTreeSet<&'a str> {
    text.split(delimiter).filter(|part| part.starts_with(prefix) && !part.contains([' ', '{'])).collect()
}

#[test]
fn every_metric_stands_in_the_operations_page_and_no_other() {
    let (source, page) = (read("src/telemetry.rs"), read("docs/operations.md"));
    let table: String = page.lines().filter(|line| line.starts_with("| `quorate_")).collect();
    assert_eq!(names(&table, "quorate_", '`'), names(&source, "quorate_", '"'));
}

/// Files below `folder`, all the way down.
fn files(folder: &Path) -> Vec<PathBuf> {
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn the_rules_that_comments_refer_to_stand_in_the_protocol_page_with_their_planted_bugs() {
    let page = read("docs/protocol.md");
    let rules: BTreeSet<&str> = page
        .lines()
        .filter_map(|line| line.trim_start_matches('#').strip_prefix(' ')?.split(' ').next())
        .collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = 0;
    for path in files(&root.join("src")).into_iter().chain(files(&root.join("tests/mutations"))) {
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        for (before, after) in text.match_indices('§').map(|(at, mark)| text.split_at(at + mark.len())) {
            let rule =
                after.split(|c: char| !c.is_ascii_digit() && c != '.').next().unwrap().trim_end_matches('.');
            if !before.ends_with("RFC 6750 §") {
                assert!(rules.contains(rule), "{}: §{rule}", path.display());
                found += 1;
            }
        }
        if path.extension().is_some_and(|ending| ending == "patch") {
            let name = path.file_stem().unwrap().to_string_lossy();
            assert!(page.contains(&format!("`{name}`")), "{name}");
        }
    }
    assert!(found > 50, "{found}");
}
