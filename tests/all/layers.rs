//! The layers point one way. One crate cannot enforce that, so this reads the imports.

use std::fs;
use std::path::{Path, PathBuf};

/// Each layer with the layers of this crate that it may use, itself included.
const ALLOWED: &[(&str, &[&str])] = &[
    ("domain", &["domain"]),
    ("node", &["node", "domain", "clock", "telemetry"]),
    ("quorum", &["quorum", "node", "domain", "clock", "telemetry"]),
    ("service", &["service", "quorum", "domain", "clock", "telemetry"]),
    ("api", &["api", "access", "service", "domain", "telemetry"]),
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
        let Some((_, allowed)) = ALLOWED.iter().find(|(layer, _)| within(&file, layer)) else { continue };
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
