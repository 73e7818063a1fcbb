//! The operations page knows every setting that the program has, with its default, and no other.

use std::collections::BTreeMap;
use std::path::Path;

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
