//! Variables of the environment that are misspelt, so that a typo does not pass for a default.

use crate::config::ENV_PREFIX;

/// Read by the program itself, or set by it for others.
const NOT_OF_CLAP: [&str; 2] = ["QUORATE_API_KEY", "QUORATE_FENCING_TOKENS"];

/// Says of each variable in `set` that is unknown and looks like one that is known, which that is. What looks like
/// none is not ours to judge: Kubernetes sets `QUORATE_PORT` and the like for a Service of that name.
pub(super) fn misspelt(command: &clap::Command, set: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut known = NOT_OF_CLAP.map(str::to_owned).to_vec();
    known.extend(crate::config::Settings::names().iter().map(|name| crate::config::Settings::variable(name)));
    variables_of(command, &mut known);
    let ours = set.into_iter().filter(|name| name.starts_with(ENV_PREFIX) && !known.contains(name));
    ours.filter_map(|name| {
        let distance = |known: &str| strsim::damerau_levenshtein(known, &name.to_ascii_uppercase());
        let nearest = known.iter().min_by_key(|known| distance(known))?;
        // Of a short name, two letters are most of it.
        let allowed = if nearest.len() < ENV_PREFIX.len() + 6 { 1 } else { 2 };
        (distance(nearest) <= allowed)
            .then(|| format!("{name} in the environment means nothing; is {nearest} meant?"))
    })
    .collect()
}

fn variables_of(command: &clap::Command, known: &mut Vec<String>) {
    let variables = command.get_arguments().filter_map(|argument| argument.get_env());
    known.extend(variables.map(|name| name.to_string_lossy().into_owned()));
    command.get_subcommands().for_each(|subcommand| variables_of(subcommand, known));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_that_nearly_is_one_of_ours_is_told_and_what_others_set_is_not() {
        let told = |name: &str| misspelt(&crate::cli::help::command(), [name.to_owned()]);
        for (name, meant) in [
            ("QUORATE_MAX_TLL", "QUORATE_MAX_TTL"),
            ("QUORATE_API_KEYZ", "QUORATE_API_KEY"),
            ("QUORATE_APIKEY", "QUORATE_API_KEY"),
            ("QUORATE_SERVR", "QUORATE_SERVER"),
            ("QUORATE_listen", "QUORATE_LISTEN"),
        ] {
            assert!(told(name).first().is_some_and(|line| line.contains(meant)), "{name}: {:?}", told(name));
        }
        for name in [
            "QUORATE_MAX_TTL",
            "QUORATE_API_KEY",
            "QUORATE_CA",
            "QUORATE_CONFIG",
            "QUORATE_LEASE_ID",
            "QUORATE_FENCING_TOKENS",
            "QUORATE_PORT",
            "QUORATE_PORT_8080_TCP_ADDR",
            "QUORATE_SERVICE_HOST",
            "QUORATE_URL",
            "QUOTATE_MAX_TLL",
        ] {
            assert_eq!(told(name), Vec::<String>::new());
        }
    }
}
