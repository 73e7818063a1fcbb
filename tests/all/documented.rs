//! The pages know every setting, metric and rule that the program has, and no other.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::support::server::run_quorate;

/// What stands in the settings page below its mark: a table for each part of `serve --help`.
fn settings_tables() -> String {
    let output = run_quorate(&["serve", "--help"]);
    let help = String::from_utf8(output.stdout).unwrap();
    let mut page = String::new();
    let (_, options) = help.split_once("Options:\n").unwrap();
    let mut rows: Vec<String> = Vec::new();
    for line in options.lines() {
        let text = line.trim();
        match (text.strip_prefix("--"), text.strip_suffix(':')) {
            (_, Some(heading)) if !line.starts_with(' ') => {
                page.push_str(&table(&std::mem::take(&mut rows)));
                page.push_str(&format!("\n## {heading}\n"));
            }
            (Some(flag), _) => rows.push(format!("{flag}\t")),
            // It begins with its short form and is no setting.
            _ if text.starts_with("-h, ") => rows.push("help\t".to_owned()),
            _ if text.is_empty() => {}
            _ => {
                let row = rows.last_mut().unwrap();
                row.push_str(text);
                row.push(' ');
            }
        }
    }
    page + &table(&rows)
}

fn table(rows: &[String]) -> String {
    let mut table = String::from("\n| flag | environment | default | meaning |\n|---|---|---|---|\n");
    for row in rows.iter().filter(|row| !row.starts_with("help\t")) {
        let (flag, mut meaning) = row.split_once('\t').map(|(flag, help)| (flag, help.to_owned())).unwrap();
        let variable = cut(&mut meaning, "[env: ").unwrap_or_else(|| panic!("--{flag}: {meaning}"));
        let default = cut(&mut meaning, "[default: ").map_or("none".to_owned(), |value| {
            let (value, rest) = value
                .split_once(';')
                .map_or((&*value, String::new()), |(value, rest)| (value, format!(";{rest}")));
            format!("`{value}`{rest}")
        });
        let meaning: Vec<&str> = meaning.split_whitespace().collect();
        let meaning = meaning.join(" ").replace('<', "&lt;").replace('|', "\\|");
        table.push_str(&format!("| `--{flag}` | `{variable}` | {default} | {meaning} |\n"));
    }
    table
}

/// Takes what stands between `begin` and the next bracket out of the text.
fn cut(text: &mut String, begin: &str) -> Option<String> {
    let at = text.find(begin)?;
    let end = at + text[at..].find(']')?;
    let value = text[at + begin.len()..end].trim().to_owned();
    text.replace_range(at..=end, "");
    Some(value)
}

#[test]
fn the_settings_page_is_what_the_help_says() {
    const MARK: &str =
        "<!-- from `quorate serve --help`: QUORATE_WRITE_DOCS=1 cargo test --test all documented -->\n";
    let tables = settings_tables();
    assert!(tables.lines().filter(|line| line.starts_with("| `--")).count() > 30, "{tables}");
    let page = read("docs/settings.md");
    let (introduction, found) = page.split_once(MARK).expect("the mark");
    if std::env::var_os("QUORATE_WRITE_DOCS").is_some() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/settings.md");
        std::fs::write(path, format!("{introduction}{MARK}{tables}")).unwrap();
        return;
    }
    assert_eq!(
        found, tables,
        "docs/settings.md is not what `quorate serve --help` says; its mark has the command"
    );
}

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The texts between delimiters that begin with `prefix` and could be a metric's name.
fn names<'a>(text: &'a str, prefix: &'a str, delimiter: char) -> BTreeSet<&'a str> {
    text.split(delimiter).filter(|part| part.starts_with(prefix) && !part.contains([' ', '{'])).collect()
}

#[test]
fn every_metric_stands_in_the_monitoring_page_and_no_other() {
    let (source, page) = (read("src/telemetry/families.rs"), read("docs/monitoring.md"));
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

/// What stands between backticks.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Whether `module::name` is a test: of `tests/all`, of another folder of `tests`, or of `src`.
fn is_test(path: &str) -> bool {
    let Some((module, name)) = path.rsplit_once("::") else { return false };
    let module = module.replace("::", "/");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let places = [
        format!("tests/all/{module}.rs"),
        format!("tests/all/{module}/mod.rs"),
        format!("tests/{module}/main.rs"),
        format!("src/{module}.rs"),
        format!("src/{module}/mod.rs"),
    ];
    places.iter().filter_map(|place| std::fs::read_to_string(root.join(place)).ok()).any(|source| {
        source
            .split_once(&format!("fn {name}("))
            .is_some_and(|(before, _)| before.rsplit("\n\n").next().is_some_and(|own| own.contains("test")))
    })
}

#[test]
fn each_promise_names_tests_that_exist_its_planted_bugs_and_where_runs_are_counted() {
    let (page, ledger) = (read("docs/guarantees.md"), read("docs/proof.md"));
    let (promises, tested) = page.split_once("\n## How each claim is tested\n").unwrap();
    let ledger = ledger.lines().find(|line| line.starts_with("| date | commit |")).unwrap();
    let (mut leads, mut bugs) = (BTreeSet::new(), BTreeSet::new());
    for row in tested.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| promise |")) {
        let [_, lead, claim, tests, planted, counted, _] = row.split('|').collect::<Vec<_>>()[..] else {
            panic!("{row}")
        };
        leads.extend(lead.trim().strip_prefix("**").and_then(|lead| lead.strip_suffix("**")));
        assert!(!claim.trim().is_empty() && code(tests).count() > 0, "{row}");
        bugs.extend(code(planted));
        for column in counted.split(',').map(str::trim).filter(|column| !column.is_empty()) {
            assert!(ledger.contains(&format!("| {column} |")), "no column of the ledger: {column}");
        }
    }
    let named: BTreeSet<&str> =
        code(tested).filter(|code| code.contains("::") && !code.contains(' ')).collect();
    let missing: Vec<&&str> = named.iter().filter(|path| !is_test(path)).collect();
    assert!(missing.is_empty() && named.len() > 40, "no such tests: {missing:?}");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mutations");
    let patches = files(&root).into_iter().filter(|path| path.extension().is_some_and(|end| end == "patch"));
    let patches: BTreeSet<String> =
        patches.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    assert_eq!(bugs, patches.iter().map(String::as_str).collect(), "planted bugs");
    let (_, promises) = promises.split_once("\n## What is promised\n").unwrap();
    let (promises, _) = promises.split_once("\n## ").unwrap();
    for paragraph in promises.split("\n\n").filter(|text| !text.trim().is_empty()) {
        let bold = paragraph.trim().strip_prefix("**").and_then(|text| text.split("**").next());
        let lead = bold.unwrap_or_else(|| panic!("no lead: {paragraph}")).trim_end_matches('.');
        assert!(leads.contains(lead), "no row: {lead}");
    }
}
