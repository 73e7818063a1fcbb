//! Many short strings in one allocation: the keys and arguments of a command, which goes to every node.

use smallvec::SmallVec;

/// Strings in the order of their addition.
#[derive(Debug, Clone, Default)]
pub(super) struct Words {
    text: String,
    /// Where each word ends, and the next begins.
    ends: SmallVec<[u32; 16]>,
}

/// Room for the words of a usual command, so that they need one allocation.
const USUAL: usize = 320;

impl Words {
    pub(super) fn push(&mut self, word: &str) {
        self.push_parts([word].into_iter());
    }

    /// One word, of `parts`.
    pub(super) fn push_parts<'a>(&mut self, parts: impl Iterator<Item = &'a str>) {
        if self.ends.is_empty() {
            self.text.reserve(USUAL);
        }
        for part in parts {
            self.text.push_str(part);
        }
        self.ends.push(self.text.len() as u32);
    }

    pub(super) fn push_number(&mut self, number: u64) {
        self.push(itoa::Buffer::new().format(number));
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn get(&self, i: usize) -> &str {
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        &self.text[start as usize..self.ends[i] as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_back_as_they_were_added() {
        let mut words = Words::default();
        words.push("");
        words.push("käse");
        words.push_number(u64::MAX);
        words.push_parts(["a", "", "bc"].into_iter());
        assert_eq!(words.len(), 4);
        assert_eq!((words.get(0), words.get(1), words.get(3)), ("", "käse", "abc"));
        assert_eq!(words.get(2), u64::MAX.to_string());
    }
}
