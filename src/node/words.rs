//! Many short strings in one allocation, each as Redis wants to read it.
//!
//! One command goes to every node. Its words are written as RESP bulk strings
//! (`$4\r\nword\r\n`) once, when it is built, and each Redis node copies them as a
//! whole, instead of writing each word again for each node.

use smallvec::SmallVec;

/// Strings in the order of their addition.
#[derive(Debug, Clone, Default)]
pub(super) struct Words {
    resp: String,
    /// Where each word itself begins and ends.
    spans: SmallVec<[(u32, u32); 16]>,
}

/// Room for the words of a usual command, so that they need one allocation.
const USUAL: usize = 448;

impl Words {
    pub(super) fn push(&mut self, word: &str) {
        self.push_parts([word].into_iter());
    }

    /// One word, of `parts`.
    pub(super) fn push_parts<'a>(&mut self, parts: impl Iterator<Item = &'a str> + Clone) {
        if self.spans.is_empty() {
            self.resp.reserve(USUAL);
        }
        self.resp.push('$');
        // Nearly all words are shorter than a hundred bytes.
        let length = parts.clone().map(str::len).sum::<usize>();
        if length < 100 {
            if length >= 10 {
                self.resp.push(char::from(b'0' + (length / 10) as u8));
            }
            self.resp.push(char::from(b'0' + (length % 10) as u8));
        } else {
            self.resp.push_str(itoa::Buffer::new().format(length));
        }
        self.resp.push_str("\r\n");
        let start = self.resp.len() as u32;
        for part in parts {
            self.resp.push_str(part);
        }
        self.spans.push((start, self.resp.len() as u32));
        self.resp.push_str("\r\n");
    }

    pub(super) fn push_number(&mut self, number: u64) {
        self.push(itoa::Buffer::new().format(number));
    }

    pub(super) fn len(&self) -> usize {
        self.spans.len()
    }

    pub(super) fn get(&self, i: usize) -> &str {
        let (start, end) = self.spans[i];
        &self.resp[start as usize..end as usize]
    }

    /// The first `count` words and the others, as RESP.
    pub(super) fn split_resp(&self, count: usize) -> (&str, &str) {
        let end = match count {
            0 => 0,
            count => self.spans[count - 1].1 as usize + 2,
        };
        self.resp.split_at(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_back_and_stand_on_the_wire_as_bulk_strings() {
        let mut words = Words::default();
        words.push("");
        words.push("käse");
        words.push_number(u64::MAX);
        words.push(&"x".repeat(100));
        words.push_parts(["a", "", "bc"].into_iter());
        assert_eq!((words.len(), words.get(0), words.get(1)), (5, "", "käse"));
        assert_eq!(words.get(4), "abc");
        assert_eq!(words.get(2), u64::MAX.to_string());
        let (first, rest) = words.split_resp(2);
        assert_eq!(first, "$0\r\n\r\n$5\r\nkäse\r\n");
        assert_eq!(rest, format!("$20\r\n{}\r\n$100\r\n{}\r\n$3\r\nabc\r\n", u64::MAX, "x".repeat(100)));
        assert_eq!(words.split_resp(0).0, "");
        assert_eq!(words.split_resp(5).1, "");
    }
}
