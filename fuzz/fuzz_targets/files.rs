//! What stands in a key file, in the place of a marker, in the register of members, in an id.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quorate::access::KeyRing;
use quorate::config::RedisUrl;
use quorate::domain::{LeaseHandle, LeaseId, Membership, Name, RequestId, Token};
use quorate::node::marker::Mark;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(keys) = KeyRing::parse(text) {
        assert!(keys.find("no secret of any key").is_none());
    }
    let mark = Mark::read(Some(text));
    let _ = (mark.process(), mark.nonce());
    if let Ok(membership) = text.parse::<Membership>() {
        assert!(membership.quorum() <= membership.total().max(1));
        assert_eq!(membership.to_string().parse::<Membership>().as_ref().ok(), Some(&membership));
    }
    if let Ok(name) = Name::new(text) {
        assert_eq!(name.as_str(), text);
    }
    if let Ok(id) = RequestId::new(text) {
        assert_eq!(id.as_str(), text);
    }
    if let Ok(id) = LeaseId::parse(text) {
        assert_eq!(id.expose(), text);
    }
    // A token that is none is read as another, and with it the id as one that nobody holds.
    if let Ok(handle) = LeaseHandle::parse(text)
        && u64::from_str_radix(&text[LeaseId::LEN..], 16).is_ok_and(|token| Token::new(token).is_ok())
    {
        assert_eq!(handle.expose(), text);
    }
    if let Ok(url) = text.parse::<RedisUrl>() {
        let _ = url.to_string();
    }
});
