//! Text that others wrote, for a terminal or a log: it must not act on either.

use std::fmt::{self, Write as _};

/// Shown with its control characters, and those that turn the direction of text, escaped.
pub(crate) struct Printable<'a>(pub(crate) &'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for letter in self.0.chars() {
            match acts(letter) {
                true => write!(f, "{}", letter.escape_default())?,
                false => f.write_char(letter)?,
            }
        }
        Ok(())
    }
}

/// JSON with the same characters escaped: they stand only in its strings.
pub(crate) fn printable_json(json: &str) -> String {
    json.chars().fold(String::with_capacity(json.len()), |mut text, letter| {
        // Line breaks and indentation are JSON's own: within strings they are escaped already.
        match acts(letter) && letter != '\n' {
            // Writing to a string does not fail. All of these are in the first plane.
            true => drop(write!(text, "\\u{:04x}", u32::from(letter))),
            false => text.push(letter),
        }
        text
    })
}

/// Whether a terminal does something else than to show it: control characters, line separators, and the marks,
/// embeddings, overrides and isolates of the bidirectional algorithm, which make a text look like another.
fn acts(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || letter == '\u{feff}'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_others_does_not_act_on_a_terminal() {
        let owner = "ev\u{1b}[31mil\u{7}\nquorate: ré\u{9b}leased\u{202e}x\u{2066}";
        let told = r"ev\u{1b}[31mil\u{7}\nquorate: ré\u{9b}leased\u{202e}x\u{2066}";
        assert_eq!(Printable(owner).to_string(), told);
    }

    #[test]
    fn json_of_others_means_the_same_and_does_not_act_on_a_terminal() {
        let value = serde_json::json!({"owner": "ré\u{202e}x\u{9b}\u{1b}\n"});
        let shown = printable_json(&serde_json::to_string_pretty(&value).unwrap());
        assert!(!shown.chars().any(|letter| acts(letter) && letter != '\n'), "{shown}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
    }
}
