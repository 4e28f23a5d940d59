//! What the two ends of a channel say on its socket: packets, each read as a whole.
//!
//! The sender connects and sends one [`Hello`], with the descriptor of the ring's segment beside it. All
//! packets after it, in both directions, are a [`Packet`]: a code in the first byte, then what the code says.
//!
//! | code | packet | from | behind the code | descriptor |
//! |---|---|---|---|---|
//! | 0 | `Wake` | both | – | – |
//! | 1 | `Welcome` | receiver | incarnation u64, [`Space`] | the published MR table |
//! | 2 | `Refused` | receiver | – | – |
//! | 3 | `Want` | sender | [`WindowId`] | – |
//! | 4 | `Grant` | receiver | [`WindowId`] | the window |
//! | 5 | `Deny` | receiver | [`WindowId`] | – |
//! | 6 | `Exhausted` | receiver | – | – |

use std::ops::Deref;

use zerocopy::byteorder::little_endian::{I32, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Addr;

/// Which address space a process has, as the process itself says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Address of a page that no other program has.
    pub guard: u64,
    /// What that page begins with.
    pub token: u64,
    /// Its pid, by its own pid namespace.
    pub pid: i32,
    /// The tid of a thread that lives as long as the address space; 0 if there is none.
    pub keeper: i32,
}

/// The name of a window: memory that one process makes and others map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WindowId {
    /// The number of the process that made it.
    pub maker: u64,
    /// Which of the maker's windows it is.
    pub number: u64,
}

/// What the sender says of itself and of the segment it made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// [`crate::VERSION`], or that of another protocol over the same channels.
    pub version: u16,
    /// Bytes of the ring.
    pub ring: u32,
    /// Random: earlier endpoints of the same name have others.
    pub incarnation: u64,
    /// The sender's name.
    pub from: Addr,
    /// The name that the sender knows the receiver by. An endpoint that serves every address has several
    /// names, and answers under the one it was called by.
    pub to: Addr,
    /// The sender's address space.
    pub space: Space,
}

/// What the receiver says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// As in a [`Hello`].
    pub incarnation: u64,
    /// Its address space.
    pub space: Space,
}

/// A packet after the hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet {
    /// There are frames, or there is room for them.
    Wake,
    /// The channel is accepted.
    Welcome(Welcome),
    /// The channel is refused; the connection ends.
    Refused,
    /// The sender asks for a window.
    Want(WindowId),
    /// The window comes with this packet.
    Grant(WindowId),
    /// There is no such window.
    Deny(WindowId),
    /// The channel is refused for want of descriptors or memory; the connection ends.
    Exhausted,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct SpaceBytes {
    guard: U64,
    token: U64,
    pid: I32,
    keeper: I32,
}

impl From<Space> for SpaceBytes {
    fn from(s: Space) -> SpaceBytes {
        SpaceBytes {
            guard: s.guard.into(),
            token: s.token.into(),
            pid: s.pid.into(),
            keeper: s.keeper.into(),
        }
    }
}

impl From<SpaceBytes> for Space {
    fn from(s: SpaceBytes) -> Space {
        Space { guard: s.guard.get(), token: s.token.get(), pid: s.pid.get(), keeper: s.keeper.get() }
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct HelloBytes {
    magic: [u8; 8],
    incarnation: U64,
    ring: U32,
    version: U16,
    zero: U16,
    from: [u8; Addr::LEN],
    to: [u8; Addr::LEN],
    space: SpaceBytes,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct WelcomeBytes {
    code: u8,
    incarnation: U64,
    space: SpaceBytes,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct WindowBytes {
    code: u8,
    maker: U64,
    number: U64,
}

impl Hello {
    /// Bytes of a hello.
    pub const LEN: usize = size_of::<HelloBytes>();
    /// The last byte says how a segment is laid out, and what the words in it mean.
    const MAGIC: [u8; 8] = *b"straitS\x02";

    /// The packet.
    pub fn encode(&self) -> [u8; Hello::LEN] {
        zerocopy::transmute!(HelloBytes {
            magic: Hello::MAGIC,
            incarnation: self.incarnation.into(),
            ring: self.ring.into(),
            version: self.version.into(),
            zero: 0.into(),
            from: self.from.encode(),
            to: self.to.encode(),
            space: self.space.into(),
        })
    }

    /// The hello that this packet is; `None` if it is none. The version may be any.
    pub fn decode(packet: &[u8]) -> Option<Hello> {
        let b = HelloBytes::read_from_bytes(packet).ok()?;
        if b.magic != Hello::MAGIC || b.zero.get() != 0 {
            return None;
        }
        Some(Hello {
            version: b.version.get(),
            ring: b.ring.get(),
            incarnation: b.incarnation.get(),
            from: Addr::decode(&b.from)?,
            to: Addr::decode(&b.to)?,
            space: b.space.into(),
        })
    }
}

impl Packet {
    /// Bytes of the longest packet.
    pub const MOST: usize = size_of::<WelcomeBytes>();
    /// Bytes of a buffer to read packets into: one that is longer than all is none, and is to be seen.
    pub const BUFFER: usize = Packet::MOST + 1;

    const WAKE: u8 = 0;
    const WELCOME: u8 = 1;
    const REFUSED: u8 = 2;
    const WANT: u8 = 3;
    const GRANT: u8 = 4;
    const DENY: u8 = 5;
    const EXHAUSTED: u8 = 6;

    /// The bytes to send.
    pub fn encode(&self) -> PacketBytes {
        let window = |code: u8, id: WindowId| {
            PacketBytes::of(&WindowBytes { code, maker: id.maker.into(), number: id.number.into() })
        };
        match *self {
            Packet::Wake => PacketBytes::of(&Packet::WAKE),
            Packet::Welcome(w) => PacketBytes::of(&WelcomeBytes {
                code: Packet::WELCOME,
                incarnation: w.incarnation.into(),
                space: w.space.into(),
            }),
            Packet::Refused => PacketBytes::of(&Packet::REFUSED),
            Packet::Want(id) => window(Packet::WANT, id),
            Packet::Grant(id) => window(Packet::GRANT, id),
            Packet::Deny(id) => window(Packet::DENY, id),
            Packet::Exhausted => PacketBytes::of(&Packet::EXHAUSTED),
        }
    }

    /// The packet that these bytes are; `None` if this version knows no such packet.
    pub fn decode(bytes: &[u8]) -> Option<Packet> {
        let bare = |packet: Packet| (bytes.len() == 1).then_some(packet);
        let window = || {
            let b = WindowBytes::read_from_bytes(bytes).ok()?;
            Some(WindowId { maker: b.maker.get(), number: b.number.get() })
        };
        match *bytes.first()? {
            Packet::WAKE => bare(Packet::Wake),
            Packet::WELCOME => {
                let b = WelcomeBytes::read_from_bytes(bytes).ok()?;
                Some(Packet::Welcome(Welcome { incarnation: b.incarnation.get(), space: b.space.into() }))
            }
            Packet::REFUSED => bare(Packet::Refused),
            Packet::WANT => window().map(Packet::Want),
            Packet::GRANT => window().map(Packet::Grant),
            Packet::DENY => window().map(Packet::Deny),
            Packet::EXHAUSTED => bare(Packet::Exhausted),
            _ => None,
        }
    }
}

/// An encoded [`Packet`].
#[derive(Clone, Copy, Debug)]
pub struct PacketBytes {
    bytes: [u8; Packet::MOST],
    len: usize,
}

impl PacketBytes {
    fn of<T: IntoBytes + Immutable>(part: &T) -> PacketBytes {
        const { assert!(size_of::<T>() <= Packet::MOST) };
        let (mut bytes, len) = ([0; Packet::MOST], size_of::<T>());
        bytes[..len].copy_from_slice(part.as_bytes());
        PacketBytes { bytes, len }
    }
}

impl Deref for PacketBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPACE: Space = Space { guard: 0x1122, token: u64::MAX - 1, pid: 0x33, keeper: -1 };
    const SPACE_HEX: &str = "2211000000000000feffffffffffffff33000000ffffffff";
    const WINDOW: WindowId = WindowId { maker: 0x44, number: 0x1_0000_0055 };

    fn hello() -> Hello {
        Hello {
            version: 8,
            ring: 0x6000,
            incarnation: 0x1234_5678_9abc,
            from: Addr::new("10.1.2.3:258".parse().unwrap()),
            to: Addr::new("[fe80::1%3]:9".parse().unwrap()),
            space: SPACE,
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// The bytes on the wire are a promise: a change here is a new [`crate::VERSION`].
    #[test]
    fn golden_bytes_of_a_hello() {
        let golden = [
            "7374726169745302",
            "bc9a785634120000",
            "0060000008000000",
            "04000201000000000a010203000000000000000000000000",
            "0600090003000000fe800000000000000000000000000001",
            SPACE_HEX,
        ]
        .concat();
        assert_eq!(hex(&hello().encode()), golden);
        assert_eq!(Hello::LEN, 96);
        assert_eq!(Hello::decode(&hello().encode()), Some(hello()));
    }

    #[test]
    fn golden_bytes_of_packets() {
        let welcome = Packet::Welcome(Welcome { incarnation: 0x0102, space: SPACE });
        let window = "44000000000000005500000001000000";
        for (packet, golden) in [
            (Packet::Wake, "00".to_owned()),
            (welcome, format!("010201000000000000{SPACE_HEX}")),
            (Packet::Refused, "02".to_owned()),
            (Packet::Want(WINDOW), format!("03{window}")),
            (Packet::Grant(WINDOW), format!("04{window}")),
            (Packet::Deny(WINDOW), format!("05{window}")),
            (Packet::Exhausted, "06".to_owned()),
        ] {
            let bytes = packet.encode();
            assert_eq!(hex(&bytes), golden);
            assert_eq!(Packet::decode(&bytes), Some(packet));
        }
        assert_eq!((Packet::MOST, Packet::BUFFER), (33, 34));
    }

    #[test]
    fn nonsense_is_no_hello() {
        let good = hello().encode();
        // The magic, the zero behind the version, the families of both names.
        for at in [0, 7, 22, 23, 24, 48] {
            let mut bytes = good;
            bytes[at] ^= 1;
            assert_eq!(Hello::decode(&bytes), None, "byte {at}");
        }
        assert_eq!(Hello::decode(&good[1..]), None);
        assert_eq!(Hello::decode(&[&good[..], &[0]].concat()), None);
    }

    #[test]
    fn a_packet_of_another_length_or_code_is_none() {
        for code in 0..=u8::MAX {
            for len in 1..=Packet::BUFFER {
                let mut bytes = [0; Packet::BUFFER];
                bytes[0] = code;
                let known = matches!((code, len), (0 | 2 | 6, 1) | (1, 33) | (3..=5, 17));
                assert_eq!(Packet::decode(&bytes[..len]).is_some(), known, "code {code}, {len} bytes");
            }
        }
        assert_eq!(Packet::decode(&[]), None);
    }
}
