//! Lease ids and fencing tokens.

use std::fmt;

use super::Invalid;

/// A fencing token: a positive integer below 2^53, so that every JSON client
/// and every Redis Lua number holds it exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(u64);

impl Token {
    /// The greatest token, 2^53 − 1.
    pub const MAX: u64 = (1 << 53) - 1;

    /// Checks and takes a token.
    ///
    /// # Errors
    /// When the number is 0 or above [`Token::MAX`].
    pub fn new(number: u64) -> Result<Self, Invalid> {
        if number == 0 || number > Self::MAX {
            return Err(Invalid::new("must be between 1 and 9007199254740991"));
        }
        Ok(Self(number))
    }

    /// The token as a number.
    pub fn get(self) -> u64 {
        self.0
    }
}

/// The secret of one granting attempt: 128 random bits as 32 lowercase hex digits.
///
/// Fresh for each attempt: with a reused id, the late release of an undone
/// attempt would delete the grant of the next one. `Debug` shows no digit of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseId([u8; 32]);

impl LeaseId {
    /// Length in characters.
    pub const LEN: usize = 32;

    /// An id from 128 random bits.
    pub fn from_bits(bits: u128) -> Self {
        let mut text = [0; 32];
        // The buffer has exactly the room that 16 bytes need, so this cannot fail.
        let _ = hex::encode_to_slice(bits.to_be_bytes(), &mut text);
        Self(text)
    }

    /// The id of an attempt that proposes this token. A cloned process draws the same random bits, but not at the same
    /// moment.
    pub fn drawn(random: u128, proposed: u64) -> Self {
        Self::from_bits(random ^ mask_of(proposed))
    }

    fn bits(&self) -> u128 {
        // Only hex digits are ever stored.
        number_of(&self.0).unwrap_or_default()
    }

    /// Reads the stored form back.
    ///
    /// # Errors
    /// When the text is not 32 lowercase hex digits.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let bytes: [u8; 32] = text.as_bytes().try_into().map_err(|_| Invalid::new("is not a lease id"))?;
        number_of(&bytes).ok_or_else(|| Invalid::new("is not a lease id"))?;
        Ok(Self(bytes))
    }

    /// The id as text. A secret: it goes to the nodes and to the holder, nowhere else.
    pub fn expose(&self) -> &str {
        // Only ASCII hex digits are ever stored.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Debug for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseId(…)")
    }
}

/// What a holder keeps: the lease id together with the lease's fencing token.
///
/// Its text form is the `lease_id` of the API, 46 hex digits: the [`LeaseId`] and 14 of the
/// [`Token`]. The token travels with the secret because extending and healing must carry the
/// token that was *reported* (docs/protocol.md §2.2), and a node that answered late may have stored a
/// higher one. So that it is believed to no one but who got it, the id is masked with what the
/// token mixes to: with another token it is another id, which nobody holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseHandle {
    /// The secret.
    pub id: LeaseId,
    /// The token that was reported with the grant.
    pub token: Token,
}

impl LeaseHandle {
    /// Length of the text form in characters.
    pub const LEN: usize = LeaseId::LEN + 14;

    /// Reads the text form.
    ///
    /// # Errors
    /// When the text has an impossible shape.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        const WHY: Invalid = Invalid::new("is not a lease id: 46 lowercase hex digits are");
        let digits: &[u8; Self::LEN] = text.as_bytes().try_into().map_err(|_| WHY)?;
        let (shown, token) = digits.split_at(LeaseId::LEN);
        let shown = number_of(shown).ok_or(WHY)?;
        // 14 digits have 56 bits.
        let token = number_of(token).ok_or(WHY)? as u64;
        // No lease has a token that is none, and with any in its place nobody holds the id.
        let id = LeaseId::from_bits(shown ^ mask_of(token));
        Ok(Self { id, token: Token::new(token).unwrap_or(Token(1)) })
    }

    /// The text form. A secret like the id in it.
    pub fn expose(&self) -> String {
        let (mut digits, token) = ([0; Self::LEN], self.token.get());
        let (shown, last) = digits.split_at_mut(LeaseId::LEN);
        // Both have two places for each byte, so neither can fail.
        let _ = hex::encode_to_slice((self.id.bits() ^ mask_of(token)).to_be_bytes(), shown);
        let _ = hex::encode_to_slice(&token.to_be_bytes()[1..], last);
        String::from_utf8_lossy(&digits).into_owned()
    }
}

/// What 32 lowercase hex digits say, or up to 16; `None` where there is any other character.
fn number_of(digits: &[u8]) -> Option<u128> {
    const NONE: u8 = 0xff;
    const VALUES: [u8; 256] = {
        let (mut values, mut value) = ([NONE; 256], 0);
        while value < 16 {
            values[b"0123456789abcdef"[value as usize] as usize] = value;
            value += 1;
        }
        values
    };
    let (mut number, mut seen) = (0, 0);
    // Halves, as shifting what is longer than a register costs more than the rest of it.
    for half in digits.chunks(16) {
        let half = half.iter().fold(0, |half, &digit| {
            let value = VALUES[usize::from(digit)];
            seen |= value;
            half << 4 | u64::from(value & 0xf)
        });
        number = number << 64 | u128::from(half);
    }
    (seen != NONE).then_some(number)
}

/// What an id is masked with beside a token, and, as twice is never, what takes the mask off.
fn mask_of(token: u64) -> u128 {
    // The finalizer of SplitMix64 (Steele, Lea, Flood 2014): no two numbers mix to the same.
    let mix = |number: u64| {
        let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        number ^ (number >> 31)
    };
    let high = mix(token);
    u128::from(high) << 64 | u128::from(mix(!high))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_handle_survives_its_text_form() {
        for token in [1, 1_790_000_000_000_000, Token::MAX] {
            let handle = LeaseHandle {
                id: LeaseId::from_bits(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef),
                token: Token::new(token).unwrap(),
            };
            assert_eq!(LeaseHandle::parse(&handle.expose()), Ok(handle));
        }
    }

    #[test]
    fn the_same_random_bits_make_another_id_at_another_moment() {
        let ids = [1, 2, 1_790_000_000_000_000, 1_790_000_000_000_001].map(|token| LeaseId::drawn(7, token));
        assert!((1..ids.len()).all(|i| !ids[..i].contains(&ids[i])));
        assert_eq!(LeaseId::drawn(7, 1), ids[0]);
    }

    #[test]
    fn impossible_lease_ids_are_refused() {
        let good = "0123456789abcdef0123456789abcdef0000000000002a";
        assert!(LeaseHandle::parse(good).is_ok());
        for bad in [
            "",
            "x",
            &good[1..],
            &good.to_uppercase(),
            &good.replace("0000000000002a", "+000000000002a"),
            &"ü".repeat(23),
        ] {
            assert!(LeaseHandle::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_lease_handle_with_another_token_is_of_another_lease() {
        let good = LeaseHandle { id: LeaseId::from_bits(7 << 90), token: Token::new(1 << 50).unwrap() };
        let text = good.expose();
        for at in 0..LeaseHandle::LEN {
            for digit in "0123456789abcdef".chars().filter(|&digit| !text[at..].starts_with(digit)) {
                let other = format!("{}{digit}{}", &text[..at], &text[at + 1..]);
                assert_ne!(LeaseHandle::parse(&other).unwrap().id, good.id, "{other}");
            }
        }
    }

    #[test]
    fn debug_shows_no_digit_of_a_lease_id() {
        let shown = format!("{:?}", LeaseId::from_bits(0xabcd_ef01));
        assert!(!shown.contains("abcd"), "{shown}");
    }
}
