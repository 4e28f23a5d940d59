//! The key of a job, and what is derived from it.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::Hello;

/// Bytes of a MAC.
pub const MAC: usize = 32;

/// The key that all endpoints of a job have, and no others: as far as it is a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct JobKey {
    key: [u8; 32],
    /// It was made of a secret, or derived from one that was.
    secret: bool,
}

impl JobKey {
    /// From a text of any length that is a secret.
    pub fn from_secret(text: &[u8]) -> JobKey {
        let key = mac(b"strait job secret", &[text]).finalize().into_bytes().into();
        JobKey { key, secret: true }
    }

    /// A key from attributes of the job, such as its number. It is no secret and only keeps jobs apart.
    pub fn from_job(parts: &[&str]) -> JobKey {
        let mut whole = mac(b"strait job", &[]);
        for part in parts {
            whole.update(&(part.len() as u64).to_le_bytes());
            whole.update(part.as_bytes());
        }
        JobKey { key: whole.finalize().into_bytes().into(), secret: false }
    }

    /// 16 bits that processes of the same key have in common. They are too few to find the key by.
    pub fn tag(&self) -> [u8; 2] {
        let [a, b, ..] = self.sign_parts(b"strait same key", &[]);
        [a, b]
    }

    /// One that was derived from this one.
    pub(super) fn derived(&self, mac: [u8; MAC]) -> JobKey {
        JobKey { key: mac, secret: self.secret }
    }

    /// Whether records are to be protected from others than the job's processes.
    pub(super) fn is_secret(&self) -> bool {
        self.secret
    }

    fn over(&self, what: &str, hellos: &Hellos, text: &[u8]) -> Hmac<Sha256> {
        mac(&self.key, &[what.as_bytes(), &hellos.caller, &hellos.answerer, text])
    }

    /// The MAC of a text of its own, and both hellos.
    pub(super) fn sign(&self, what: &str, hellos: &Hellos, text: &[u8]) -> [u8; MAC] {
        self.over(what, hellos, text).finalize().into_bytes().into()
    }

    /// The MAC of `what` and these parts. The caller makes their lengths unambiguous.
    pub(super) fn sign_parts(&self, what: &[u8], parts: &[&[u8]]) -> [u8; MAC] {
        let mut whole = mac(&self.key, &[what]);
        parts.iter().for_each(|part| whole.update(part));
        whole.finalize().into_bytes().into()
    }

    /// Whether it is this MAC; takes the same time wherever they differ.
    pub(super) fn verify(&self, what: &str, hellos: &Hellos, text: &[u8], mac: &[u8]) -> bool {
        self.over(what, hellos, text).verify_slice(mac).is_ok()
    }
}

impl fmt::Debug for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobKey(..)")
    }
}

fn mac(key: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap_or_else(|_| unreachable!("any length will do"));
    parts.iter().for_each(|part| mac.update(part));
    mac
}

/// What both sides have said first.
#[derive(Clone, Debug)]
pub(super) struct Hellos {
    pub(super) caller: [u8; Hello::LEN],
    pub(super) answerer: [u8; Hello::LEN],
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// RFC 4231, test case 2, so that it is HMAC-SHA256 and not something else.
    #[test]
    fn macs_are_those_of_the_standard() {
        let mac = mac(b"Jefe", &[b"what do ya want ", b"for nothing?"]).finalize().into_bytes();
        assert_eq!(hex(&mac), "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    }

    #[test]
    fn keys_differ_by_all_that_they_are_made_of() {
        let keys = [
            JobKey::from_secret(b"ab"),
            JobKey::from_secret(b"abc"),
            JobKey::from_job(&["ab"]),
            JobKey::from_job(&["a", "b"]),
            JobKey::from_job(&["b", "a"]),
            JobKey::from_job(&["ab", ""]),
        ];
        for (i, key) in keys.iter().enumerate() {
            assert!(!keys[..i].contains(key), "{i}");
        }
        assert_eq!(JobKey::from_job(&["a", "b"]), keys[3]);
        assert_eq!(format!("{:?}", keys[0]), "JobKey(..)");
    }
}
