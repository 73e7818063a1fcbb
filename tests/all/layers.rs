//! The layers point one way. One crate cannot enforce that, so this reads the imports.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Each layer with the layers of this crate that it may use, itself included.
const ALLOWED: &[(&str, &[&str])] = &[
    ("domain", &["domain"]),
    ("clock", &["clock"]),
    ("telemetry", &["telemetry", "domain"]),
    ("node", &["node", "domain", "clock", "telemetry"]),
    ("quorum", &["quorum", "node", "domain", "clock", "telemetry"]),
    ("service", &["service", "quorum", "domain", "clock", "telemetry"]),
    ("access", &["access", "domain"]),
    ("api", &["api", "access", "service", "domain", "telemetry"]),
    ("config", &["config", "domain"]),
    ("server", &["server", "api", "access", "service", "quorum", "node", "config", "clock", "telemetry"]),
    ("client", &["client", "domain"]),
    ("cli", &["cli", "client", "server", "api", "access", "config", "domain"]),
];

/// A crate, and the only places of `src` that may use it.
const CRATES: &[(&str, &[&str])] = &[
    ("axum", &["api", "server"]),
    ("utoipa", &["api"]),
    ("::redis", &["node/redis"]),
    ("bb8_redis", &["node/redis"]),
    ("mlua", &["node/embedded"]),
    ("opentelemetry", &["telemetry"]),
    ("opentelemetry_sdk", &["telemetry"]),
    ("opentelemetry_otlp", &["telemetry"]),
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
}

/// Code lines of a file, without comments and without its unit tests.
fn code(path: &Path) -> Vec<String> {
    if path.ends_with("tests.rs") {
        return Vec::new();
    }
    let text = fs::read_to_string(path).unwrap();
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().to_owned();
    text.lines().filter(|line| !line.trim_start().starts_with("//")).map(str::to_owned).collect()
}

fn all() -> Vec<(String, Vec<String>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    sources(&root, &mut found);
    assert!(found.len() > 20, "the sources are where this test looks");
    found
        .into_iter()
        .map(|path| (path.strip_prefix(&root).unwrap().display().to_string(), code(&path)))
        .collect()
}

fn within(file: &str, place: &str) -> bool {
    file.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '.']))
}

#[test]
fn no_layer_uses_a_layer_above_it() {
    let mut wrong = Vec::new();
    for (file, lines) in all() {
        if ["lib.rs", "main.rs"].contains(&file.as_str()) {
            continue;
        }
        let allowed = ALLOWED.iter().find(|(layer, _)| within(&file, layer));
        let (_, allowed) = allowed.unwrap_or_else(|| panic!("{file} is in no layer"));
        for line in lines {
            for used in line.split("crate::").skip(1) {
                let layer: String = used.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                if !layer.is_empty() && !allowed.contains(&layer.as_str()) {
                    wrong.push(format!("{file}: {}", line.trim()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn each_foreign_crate_stays_in_its_room() {
    let mut wrong = Vec::new();
    for (file, lines) in all() {
        for (name, places) in CRATES {
            let uses = |line: &&String| {
                let bare = name.trim_start_matches(':');
                line.contains(&format!("use {name}::"))
                    || (bare == *name && line.contains(&format!("{name}::")))
            };
            if !places.iter().any(|place| within(&file, place)) {
                wrong.extend(lines.iter().filter(uses).map(|line| format!("{file}: {}", line.trim())));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Whole paths of what stands in a `use`, its braces taken apart.
fn paths(prefix: &str, tree: &str, found: &mut Vec<String>) {
    let (mut depth, mut begin) = (0, 0);
    let ends = tree.char_indices().chain([(tree.len(), ',')]);
    for (at, c) in ends {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let part = tree[begin..at].trim();
                begin = at + 1;
                match part.split_once('{') {
                    Some((head, rest)) => {
                        paths(&format!("{prefix}{head}"), rest.strip_suffix('}').unwrap_or(rest), found)
                    }
                    None => found.push(format!("{prefix}{part}")),
                }
            }
            _ => {}
        }
    }
}

/// The module of a file: `api/mod.rs` and `api.rs` are `api`.
fn module(file: &str) -> String {
    file.trim_end_matches(".rs").trim_end_matches("/mod").to_owned()
}

/// The module, of those that are there, in which what `path` names in the file of `of` stands.
fn target(path: &str, of: &str, modules: &BTreeSet<String>) -> Option<String> {
    let mut segments: Vec<&str> = path.split("::").map(str::trim).collect();
    let mut base: Vec<&str> = of.split('/').collect();
    match segments[0] {
        "crate" => base.clear(),
        "super" | "self" => {}
        _ => return None,
    }
    while let Some("crate" | "super" | "self") = segments.first().copied() {
        if segments.remove(0) == "super" {
            base.pop();
        }
    }
    let whole = [base, segments].concat();
    (1..=whole.len()).rev().map(|length| whole[..length].join("/")).find(|name| modules.contains(name))
}

/// A module may name what is in it, to put it together or to hand it on; nothing else goes both ways.
#[test]
fn no_file_depends_on_itself_by_way_of_others() {
    let files: Vec<_> = all().into_iter().map(|(file, lines)| (module(&file), lines.join(" "))).collect();
    let modules: BTreeSet<String> = files.iter().map(|(module, _)| module.clone()).collect();
    let mut uses: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (of, code) in files.iter().filter(|(of, _)| !["lib", "main"].contains(&of.as_str())) {
        let mut named = Vec::new();
        for tree in code.split("use ").skip(1).filter_map(|rest| rest.split_once(';')) {
            paths("", tree.0, &mut named);
        }
        let inside = |name: &String| name == of || name.starts_with(&format!("{of}/"));
        let targets = named.iter().filter_map(|path| target(path, of, &modules));
        uses.insert(of, targets.filter(|name| !inside(name)).collect());
    }
    // What nobody in the rest uses, or what uses nobody in the rest, is in no circle.
    let mut rest: BTreeSet<&str> = uses.keys().copied().collect();
    loop {
        let used: BTreeSet<&str> = rest.iter().flat_map(|of| &uses[of]).map(String::as_str).collect();
        let keep = |of: &&str| used.contains(of) && uses[of].iter().any(|name| rest.contains(name.as_str()));
        let left: BTreeSet<&str> = rest.iter().copied().filter(|of| keep(of)).collect();
        if left.len() == rest.len() {
            break;
        }
        rest = left;
    }
    assert!(rest.is_empty(), "in a circle, or between two: {rest:?}");
}
