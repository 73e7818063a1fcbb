//! The commented file with every setting and its default, as `quorate config` prints it.

use std::fmt::Write as _;

use super::settings::arguments;

/// Where the lines of comments end.
const WIDTH: usize = 90;

const HEAD: &str = "\
# Settings of `quorate serve`, each with its default. Read with --config FILE.
#
# A flag (--max-ttl 3m) or an environment variable (QUORATE_MAX_TTL=3m) of the same name
# comes first. Durations: \"3s\", \"250ms\", \"1m 30s\", or a plain number of milliseconds.
";

/// A TOML file of what the help says. A setting without a default is commented out.
pub fn commented_file() -> String {
    let mut text = HEAD.to_owned();
    let mut heading = None;
    // Writing to a string does not fail.
    for argument in arguments().get_arguments() {
        if argument.get_help_heading() != heading {
            heading = argument.get_help_heading();
            let _ = write!(text, "\n# --- {} ---\n", heading.unwrap_or_default());
        }
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        let _ = write!(text, "\n{}", comment(&help));
        let name = argument.get_id();
        let example = argument.get_value_names().and_then(<[_]>::first).map_or("VALUE", |name| name.as_str());
        let _ = match (argument.get_default_values(), argument.get_value_delimiter()) {
            ([default, ..], _) => writeln!(text, "{name} = {}", value(&default.to_string_lossy())),
            ([], Some(_)) => writeln!(text, "# {name} = [\"{example}\", \"{example}\", \"{example}\"]"),
            ([], None) => writeln!(text, "# {name} = \"{example}\""),
        };
    }
    text
}

/// Numbers and truth values as they are, everything else as a string.
fn value(text: &str) -> String {
    match text.parse::<f64>().is_ok() || text.parse::<bool>().is_ok() {
        true => text.to_owned(),
        false => toml::Value::from(text).to_string(),
    }
}

fn comment(text: &str) -> String {
    let mut lines = vec![String::from("#")];
    for word in text.split_whitespace() {
        if lines.last().is_some_and(|line| line.len() + 1 + word.len() > WIDTH) {
            lines.push(String::from("#"));
        }
        if let Some(line) = lines.last_mut() {
            let _ = write!(line, " {word}");
        }
    }
    lines.join("\n") + "\n"
}
