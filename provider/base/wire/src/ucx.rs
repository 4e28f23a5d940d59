//! What the interfaces of the UCX transport exchange: frames through the ring, and the keys and addresses
//! that UCP carries for them. The transport has a protocol version; interfaces of different versions refuse
//! each other.
//!
//! A frame is a [`Head`], then what its [`Kind`] says:
//!
//! | kind | second byte | behind the head |
//! |---|---|---|
//! | `Am` | the active message's id | payload |
//! | `Request` | [`What`] | [`Request`], then the bytes to put, or the atomic operation's code in a byte |
//! | `Reply` | status, 0 for success | [`Reply`], then the requested bytes |
//! | `Coop` | 1: a put, 0: a get | [`CoopOffer`], the initiator's memory: [`Seg`](crate::Seg)s |

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// An active message.
    Am = 0,
    /// An access that the owner of the memory is to carry out.
    Request = 1,
    /// What came of it.
    Reply = 2,
    /// A put or get that both sides copy.
    Coop = 3,
}

impl Kind {
    /// The kind with this code.
    #[inline]
    pub fn from_u8(v: u8) -> Option<Kind> {
        Some(match v {
            0 => Kind::Am,
            1 => Kind::Request,
            2 => Kind::Reply,
            3 => Kind::Coop,
            _ => return None,
        })
    }
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum What {
    /// To write the bytes behind it.
    Put = 0,
    /// To read.
    Get = 1,
    /// An atomic operation on 4 bytes.
    Atomic32 = 2,
    /// An atomic operation on 8 bytes.
    Atomic64 = 3,
}

impl What {
    /// What has this code.
    pub fn from_u8(v: u8) -> Option<What> {
        Some(match v {
            0 => What::Put,
            1 => What::Get,
            2 => What::Atomic32,
            3 => What::Atomic64,
            _ => return None,
        })
    }
}

/// What every frame begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head;

impl Head {
    /// Bytes of a head: the kind, the second byte, and two zeros.
    pub const LEN: usize = 4;

    /// The head of a frame, made as one word: one that is stored by bytes and loaded as a word has the load
    /// wait for all stores before it, those to the ring among them.
    #[inline]
    pub const fn bytes(kind: Kind, second: u8) -> [u8; Head::LEN] {
        (kind as u32 | (second as u32) << 8).to_le_bytes()
    }
}

/// A place on a board of revocations, by which memory may be taken back. All zeros if there is none, since no
/// board has number 0.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Slot {
    /// The board.
    pub board: U32,
    /// Which of its places.
    pub index: U32,
    /// Which use of the place.
    pub generation: U32,
}

/// What a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Request {
    /// Comes back in the reply.
    pub token: U64,
    /// The memory, by its owner's virtual address.
    pub addr: U64,
    /// Bytes to get, or the operand of an atomic.
    pub a: U64,
    /// What an atomic compares with.
    pub b: U64,
    /// Of the memory's key: other memory may be registered at the address by now.
    pub slot: Slot,
    /// 0.
    pub zero: U32,
}

/// What a reply is to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Reply {
    /// The request's.
    pub token: U64,
}

/// A put or get as a cooperative copy, as its initiator announces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CoopOffer {
    /// The memory, by its owner's virtual address.
    pub addr: U64,
    /// Bytes.
    pub len: U64,
    /// Bytes of each piece but the last.
    pub piece: U64,
    /// See [`CoopOffer::counter`].
    pub counter: U64,
    /// Of the memory's key.
    pub slot: Slot,
    /// 0.
    pub zero: U32,
}

impl CoopOffer {
    /// Bits of a counter's name for the generation.
    const GENERATION: u32 = 48;

    /// The name of a counter: its slot, and its generation of 48 bits.
    pub fn name(slot: u16, generation: u64) -> U64 {
        debug_assert!(generation >> CoopOffer::GENERATION == 0);
        (u64::from(slot) << CoopOffer::GENERATION | generation).into()
    }

    /// Which of the link's counters hands the pieces out: its slot, and for which transfer.
    pub fn counter(&self) -> (u16, u64) {
        let name = self.counter.get();
        ((name >> CoopOffer::GENERATION) as u16, name & ((1 << CoopOffer::GENERATION) - 1))
    }
}

/// A key of host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct HostKey {
    /// The window that the memory is in: its maker, and its number there; 0 and 0 for memory in none.
    pub maker: U64,
    /// See `maker`.
    pub number: U64,
    /// First byte, by the owner's virtual address.
    pub base: U64,
    /// Bytes.
    pub len: U64,
    /// As in a [`Slot`].
    pub index: U32,
    /// As in a [`Slot`].
    pub board: U32,
    /// As in a [`Slot`].
    pub generation: U32,
    /// [`HostKey::TAG`].
    pub tag: [u8; 4],
}

impl HostKey {
    /// Bytes of a key.
    pub const LEN: usize = size_of::<HostKey>();
    /// What sort of key it is.
    pub const TAG: [u8; 4] = *b"st1h";
}

/// Where in every key the tag is; each is as long as a [`HostKey`] at least.
pub const TAG_AT: usize = std::mem::offset_of!(HostKey, tag);
const _: () = assert!(TAG_AT == std::mem::offset_of!(DeviceKey, tag));

/// A file of a process, and how to see that it is the one.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct FileId {
    /// Device and inode.
    pub file: [U64; 2],
}

/// A key of a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DeviceKey {
    /// Number and pid of the process that has the memory.
    pub owner: U64,
    /// See `owner`.
    pub pid: U32,
    /// Allocations that the memory is in. 0: it cannot be shared. 1: `handle` is its handle. More: it is a
    /// [`HandleList`].
    pub allocations: U32,
    /// First byte, by the owner's virtual address.
    pub base: U64,
    /// Bytes.
    pub len: U64,
    /// As in a [`Slot`].
    pub index: U32,
    /// As in a [`Slot`].
    pub generation: U32,
    /// The owner's descriptor of the board's file.
    pub board_fd: U32,
    /// [`DeviceKey::TAG`].
    pub tag: [u8; 4],
    /// The board's file.
    pub board_file: FileId,
    /// The maker of the board.
    pub maker: U64,
    /// As in a [`Slot`].
    pub board: U32,
    /// 0.
    pub zero: U32,
    /// See `allocations`.
    pub handle: [u8; size_of::<crate::Handle>()],
}

impl DeviceKey {
    /// Bytes of a key.
    pub const LEN: usize = size_of::<DeviceKey>();
    /// What sort of key it is.
    pub const TAG: [u8; 4] = *b"st1d";
}

/// A file with the handles of several allocations, in the place of one handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct HandleList {
    /// The owner's descriptor.
    pub fd: U32,
    /// 0.
    pub zero: U32,
    /// The file.
    pub file: FileId,
    /// 0.
    pub rest: [u8; 88],
}

/// Address of an interface for host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct HostAddr {
    /// The port at which its link is named.
    pub port: U16,
    /// 0.
    pub zero: U16,
    /// Its process.
    pub pid: U32,
}

/// Address of an interface for devices' memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DeviceAddr {
    /// Number of its process.
    pub id: U64,
    /// Its process.
    pub pid: U32,
    /// 0.
    pub zero: U32,
}

/// From where an interface is reached (UCT's device address): equal for two that reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Place {
    /// The running system; all bits inverted for devices' memory.
    pub host: U64,
    /// The network namespace, or for devices' memory the pid namespace.
    pub namespace: U32,
    /// The user.
    pub uid: U32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Seg, put, take};

    fn hex(part: &(impl IntoBytes + Immutable)) -> String {
        part.as_bytes().iter().map(|b| format!("{b:02x}")).collect()
    }

    fn slot() -> Slot {
        Slot { board: 1.into(), index: 0x22.into(), generation: 0x333.into() }
    }

    /// The bytes on the wire are a promise: a change here is a new version of the UCX door.
    #[test]
    fn golden_bytes_of_frames() {
        assert_eq!(Head::bytes(Kind::Am, 0x1f), [0, 0x1f, 0, 0]);
        assert_eq!(Head::bytes(Kind::Coop, 1), [3, 1, 0, 0]);
        let request = Request {
            token: 0x1_0000_0002.into(),
            addr: 0xabc.into(),
            a: 9.into(),
            b: u64::MAX.into(),
            slot: slot(),
            zero: 0.into(),
        };
        assert_eq!(
            hex(&request),
            concat!(
                "0200000001000000",
                "bc0a000000000000",
                "0900000000000000",
                "ffffffffffffffff",
                "010000002200000033030000",
                "00000000",
            )
        );
        assert_eq!(hex(&Reply { token: 0x102.into() }), "0201000000000000");
        let share = CoopOffer {
            addr: 0xabc.into(),
            len: 0x10_0000.into(),
            piece: 0x8_0000.into(),
            counter: CoopOffer::name(0x2f, 0x1234_5678_9abc),
            slot: slot(),
            zero: 0.into(),
        };
        assert_eq!(
            hex(&share),
            concat!(
                "bc0a000000000000",
                "0000100000000000",
                "0000080000000000",
                "bc9a785634122f00",
                "010000002200000033030000",
                "00000000",
            )
        );
        assert_eq!(share.counter(), (0x2f, 0x1234_5678_9abc));
        for (kind, code) in [(Kind::Am, 0), (Kind::Request, 1), (Kind::Reply, 2), (Kind::Coop, 3)] {
            assert_eq!((kind as u8, Kind::from_u8(code)), (code, Some(kind)));
        }
        for (what, code) in [(What::Put, 0), (What::Get, 1), (What::Atomic32, 2), (What::Atomic64, 3)] {
            assert_eq!((what as u8, What::from_u8(code)), (code, Some(what)));
        }
        assert_eq!((Kind::from_u8(4), What::from_u8(4)), (None, None));
    }

    #[test]
    fn golden_bytes_of_keys() {
        let key = HostKey {
            maker: 0x11.into(),
            number: 0x22.into(),
            base: 0x33.into(),
            len: 0x44.into(),
            index: 0x55.into(),
            board: 0x66.into(),
            generation: 0x77.into(),
            tag: HostKey::TAG,
        };
        assert_eq!(
            hex(&key),
            concat!(
                "1100000000000000",
                "2200000000000000",
                "3300000000000000",
                "4400000000000000",
                "5500000066000000",
                "7700000073743168",
            )
        );
        let list = HandleList {
            fd: 1.into(),
            zero: 0.into(),
            file: FileId { file: [2.into(), 3.into()] },
            rest: [0; 88],
        };
        assert_eq!(hex(&list)[..48], *"010000000000000002000000000000000300000000000000");
        let key = DeviceKey {
            owner: 0x11.into(),
            pid: 0x22.into(),
            allocations: 0x33.into(),
            base: 0x44.into(),
            len: 0x55.into(),
            index: 0x66.into(),
            generation: 0x77.into(),
            board_fd: 0x88.into(),
            tag: DeviceKey::TAG,
            board_file: FileId { file: [0x99.into(), 0xaa.into()] },
            maker: 0xbb.into(),
            board: 0xcc.into(),
            zero: 0.into(),
            handle: zerocopy::transmute!(list),
        };
        assert_eq!((HostKey::LEN, DeviceKey::LEN, TAG_AT), (48, 192, 44));
        assert_eq!(
            hex(&key)[..176],
            *concat!(
                "1100000000000000",
                "2200000033000000",
                "4400000000000000",
                "5500000000000000",
                "6600000077000000",
                "8800000073743164",
                "9900000000000000",
                "aa00000000000000",
                "bb00000000000000",
                "cc00000000000000",
                "0100000000000000",
            )
        );
    }

    #[test]
    fn golden_bytes_of_addresses() {
        let host = HostAddr { port: 0x1234.into(), zero: 0.into(), pid: 0x56.into() };
        assert_eq!(hex(&host), "3412000056000000");
        let device = DeviceAddr { id: 0x12.into(), pid: 0x34.into(), zero: 0.into() };
        assert_eq!(hex(&device), "12000000000000003400000000000000");
        let place = Place { host: 0x12.into(), namespace: 0x34.into(), uid: 0x56.into() };
        assert_eq!(hex(&place), "12000000000000003400000056000000");
    }

    #[test]
    fn what_was_put_is_taken_back() {
        let share = CoopOffer {
            addr: 1.into(),
            len: 2.into(),
            piece: 3.into(),
            counter: CoopOffer::name(4, 5),
            slot: Slot::default(),
            zero: 0.into(),
        };
        let segs = [Seg { addr: 6.into(), len: 7.into() }; 2];
        let mut frame = Vec::new();
        put(&mut frame, &Head::bytes(Kind::Coop, 1));
        put(&mut frame, &share);
        put(&mut frame, &segs[..]);
        let mut rest = &frame[Head::LEN..];
        assert_eq!(take::<CoopOffer>(&mut rest), Some(share));
        assert_eq!([take::<Seg>(&mut rest), take::<Seg>(&mut rest)], segs.map(Some));
        assert!(rest.is_empty() && take::<Reply>(&mut rest).is_none());
    }
}
