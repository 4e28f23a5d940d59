//! The first thing that either side says.

use crate::Addr;

use super::VERSION;
use super::rails::is_rail;

/// What every hello of any version begins with: magic, version of the connection, version of the frames.
pub const PREFIX: usize = 12;

const MAGIC: [u8; 8] = *b"\x93STRAIT\n";

/// Which side says a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The side that connects.
    Caller,
    /// The other one.
    Answerer,
    /// The side that connects a rail of this number, from 1 to [`MOST_RAILS`] - 1: a further connection of
    /// two endpoints that are connected.
    Rail(u8),
}

impl Role {
    /// The role, and the number of the rail.
    fn encode(self) -> [u8; 2] {
        match self {
            Role::Caller => [1, 0],
            Role::Answerer => [2, 0],
            Role::Rail(number) => [3, number],
        }
    }

    fn decode(bytes: [u8; 2]) -> Option<Role> {
        match bytes {
            [1, 0] => Some(Role::Caller),
            [2, 0] => Some(Role::Answerer),
            [3, number] if is_rail(number) => Some(Role::Rail(number)),
            _ => None,
        }
    }
}

/// Why bytes are no hello that can be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stranger {
    /// They are no hello at all.
    Nonsense,
    /// They are one of another version: of the connection, and of the frames.
    Version {
        /// The version of the connection that the other side speaks.
        session: u16,
        /// The version of the frames that it speaks.
        frames: u16,
    },
}

/// A hello.
///
/// | bytes | what |
/// |---|---|
/// | 0..8 | magic |
/// | 8..10 | version of the connection |
/// | 10..12 | version of the frames |
/// | 12 | [`Role`]: 1 caller, 2 answerer, 3 caller of a rail |
/// | 13 | the rail's number, else 0 |
/// | 14..16 | 0 |
/// | 16..24 | `instance` |
/// | 24..32 | 0 |
/// | 32..56 | `name`, as [`Addr::encode`] has it |
/// | 56..80 | `other`, as [`Addr::encode`] has it |
/// | 80..112 | `nonce` |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Which side says it.
    pub role: Role,
    /// A random number of the endpoint that says it: another one under the same name has another.
    pub instance: u64,
    /// That endpoint's name.
    pub name: Addr,
    /// What it calls the other side.
    pub other: Addr,
    /// Random bytes.
    pub nonce: [u8; 32],
}

impl Hello {
    /// Bytes of one.
    pub const LEN: usize = 112;

    /// Its bytes.
    pub fn encode(&self) -> [u8; Hello::LEN] {
        let mut out = [0; Hello::LEN];
        out[..8].copy_from_slice(&MAGIC);
        out[8..10].copy_from_slice(&VERSION.to_le_bytes());
        out[10..12].copy_from_slice(&crate::VERSION.to_le_bytes());
        out[12..14].copy_from_slice(&self.role.encode());
        out[16..24].copy_from_slice(&self.instance.to_le_bytes());
        out[32..56].copy_from_slice(&self.name.encode());
        out[56..80].copy_from_slice(&self.other.encode());
        out[80..].copy_from_slice(&self.nonce);
        out
    }

    /// What these bytes say.
    pub fn decode(b: &[u8; Hello::LEN]) -> Result<Hello, Stranger> {
        Hello::check(b)?;
        let field = |at: usize| -> [u8; 8] { std::array::from_fn(|i| b[at + i]) };
        let addr = |at: usize| Addr::decode(&std::array::from_fn(|i| b[at + i]));
        let role = Role::decode([b[12], b[13]]);
        let (Some(role), Some(name), Some(other), [0, 0], [0, 0, 0, 0, 0, 0, 0, 0]) =
            (role, addr(32), addr(56), [b[14], b[15]], field(24))
        else {
            return Err(Stranger::Nonsense);
        };
        Ok(Hello {
            role,
            instance: u64::from_le_bytes(field(16)),
            name,
            other,
            nonce: std::array::from_fn(|i| b[80 + i]),
        })
    }

    /// Whether bytes that may be the front of a hello are that of one of this version.
    pub fn check(front: &[u8]) -> Result<(), Stranger> {
        let magic = front.len().min(MAGIC.len());
        if front[..magic] != MAGIC[..magic] {
            return Err(Stranger::Nonsense);
        }
        let Some(v) = front.get(8..PREFIX) else { return Ok(()) };
        let (session, frames) = (u16::from_le_bytes([v[0], v[1]]), u16::from_le_bytes([v[2], v[3]]));
        let same = (session, frames) == (VERSION, crate::VERSION);
        if same { Ok(()) } else { Err(Stranger::Version { session, frames }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn one() -> Hello {
        Hello {
            role: Role::Caller,
            instance: 0x1122,
            name: Addr::new("10.1.2.3:258".parse().unwrap()),
            other: Addr::new("[2001:db8::7]:80".parse().unwrap()),
            nonce: [0xab; 32],
        }
    }

    /// The bytes on the wire are a promise: a change here is a new [`VERSION`].
    #[test]
    fn golden_bytes() {
        let hex: String = one().encode().iter().map(|b| format!("{b:02x}")).collect();
        let versions = format!("{:04x}", crate::VERSION.swap_bytes());
        let golden = [
            "9353545241495 40a0500",
            &versions,
            "01000000",
            "2211000000000000",
            "0000000000000000",
            "0400020100000000 0a010203 000000000000000000000000",
            "0600500000000000 20010db8000000000000000000000007",
            &"ab".repeat(32),
        ];
        assert_eq!(hex, golden.concat().replace(' ', ""));
        assert_eq!(Hello::decode(&one().encode()), Ok(one()));
        let rail = Hello { role: Role::Rail(7), ..one() };
        assert_eq!(rail.encode()[12..16], [3, 7, 0, 0]);
        assert_eq!(Hello::decode(&rail.encode()), Ok(rail));
    }

    #[test]
    fn nonsense_and_other_versions_are_distinguished() {
        let good = one().encode();
        let with = |at: usize, byte: u8| {
            let mut bytes = good;
            bytes[at] = byte;
            Hello::decode(&bytes)
        };
        for at in [0, 7, 13, 15, 24, 31, 33] {
            assert_eq!(with(at, 0xee), Err(Stranger::Nonsense), "byte {at}");
        }
        // A rail without a number is none, and nothing else has one.
        for role in [0, 3, 4] {
            assert_eq!(with(12, role), Err(Stranger::Nonsense));
        }
        for number in [1, 8] {
            assert_eq!(with(13, number), Err(Stranger::Nonsense));
        }
        let frames = crate::VERSION;
        assert_eq!(with(8, 1), Err(Stranger::Version { session: 1, frames }));
        let session = VERSION;
        assert_eq!(with(10, 99), Err(Stranger::Version { session, frames: 99 | frames & 0xff00 }));
        for len in 0..Hello::LEN {
            assert_eq!(Hello::check(&good[..len]), Ok(()));
        }
        assert_eq!(Hello::check(b"GET / HTTP/1.1"), Err(Stranger::Nonsense));
        assert_eq!(Hello::check(b"\x93S"), Ok(()));
    }
}
