use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Most segments of either sort that a frame may name.
pub const MAX_SEGS: usize = 8;

/// Most bytes of a frame before a payload that travels in it.
pub const EAGER_HEAD: usize = Head::LEN + 8 + MAX_SEGS * size_of::<RmaSeg>();

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    /// A message with its payload.
    Eager = 1,
    /// A message whose payload stays with the sender until the receiver has a buffer for it.
    Rts = 2,
    /// The receiver of an `Rts`, the target of a `WriteRts`, or the initiator of a read that a `ReadRts`
    /// answered, asks for the payload in `Data` frames.
    Cts = 3,
    /// A piece of payload, for the request of the side that takes it.
    Data = 4,
    /// The other side is done with a request: delivered, pulled, pushed, or failed.
    Fin = 5,
    /// RMA write with its payload.
    Write = 6,
    /// RMA write whose payload the target fetches.
    WriteRts = 7,
    /// RMA read; answered by `Data` frames, a direct push and a `Fin`, or a `ReadRts`.
    Read = 8,
    /// Atomic of any sort; answered by `Result` if it fetches, by `Fin` if `ACK`.
    Atomic = 9,
    /// Values an `Atomic` fetched.
    Result = 10,
    /// The taker of an `Rts` or `WriteRts` has started to fetch the payload piece by piece, and the
    /// sender may put pieces too.
    CoopFetch = 11,
    /// The other side copied so many of them, and there are no more to take.
    CoopDone = 12,
    /// The initiator of a large read or write has begun to do it piece by piece, and its target may
    /// copy pieces too.
    CoopRma = 13,
    /// Memory of the sender's, a device's or the host's, and how the other side reaches it.
    Handle = 14,
    /// The receiver is short of room for unexpected messages, so that they are to be
    /// offered (`Rts`) and not sent; or it no longer is.
    Pause = 15,
    /// A `Write` or `Atomic` without [`Flags::ACK`] was refused.
    Refused = 16,
    /// Where the bytes of an `Rts` of a device's memory may be put, unless their taker gets them first.
    Invite = 17,
    /// The payload of an `Rts` to which no `Cts` came in time.
    Body = 18,
    /// The sender of an `Rts` has taken it back: its payload is not to be had any more.
    Withdrawn = 19,
    /// A part of the payload is in a bounce buffer of the sender's device, for the request of the side that
    /// takes it.
    Bounce = 20,
    /// The taker of that part has copied it, or cannot.
    BounceDone = 21,
    /// The target of a `Read` offers its memory, which the initiator gets.
    ReadRts = 22,
    /// The initiator of writes asks for a `Fin` once all writes in frames before it have taken effect.
    Flush = 23,
}

impl Op {
    fn from_u8(v: u8) -> Option<Op> {
        Some(match v {
            1 => Op::Eager,
            2 => Op::Rts,
            3 => Op::Cts,
            4 => Op::Data,
            5 => Op::Fin,
            6 => Op::Write,
            7 => Op::WriteRts,
            8 => Op::Read,
            9 => Op::Atomic,
            10 => Op::Result,
            11 => Op::CoopFetch,
            12 => Op::CoopDone,
            13 => Op::CoopRma,
            14 => Op::Handle,
            15 => Op::Pause,
            16 => Op::Refused,
            17 => Op::Invite,
            18 => Op::Body,
            19 => Op::Withdrawn,
            20 => Op::Bounce,
            21 => Op::BounceDone,
            22 => Op::ReadRts,
            23 => Op::Flush,
            _ => return None,
        })
    }
}

bitflags::bitflags! {
    /// Bits of [`Head::flags`]; an unknown bit makes the frame malformed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Flags: u8 {
        /// The message is for tagged receives.
        const TAGGED = 1;
        /// `data` carries remote CQ data.
        const CQ_DATA = 2;
        /// The sender waits for a `Fin` once the bytes are where the application wants them.
        const ACK = 4;
        /// The segments may be read or written directly (CMA); otherwise only frames will do.
        const DIRECT = 8;
        /// The atomic returns the values from before.
        const FETCH = 16;
        /// The atomic carries compare values.
        const COMPARE = 32;
        /// The segments are memory that `Handle` frames have exported, to be accessed by these handles.
        const HANDLES = 64;
        /// The message is a part of a collective operation, and no receive of the application's matches it.
        const COLLECTIVE = 128;
    }
}

/// How the other side fared. Codes are part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// No registration has that key.
    BadKey = 1,
    /// The registration does not allow this access.
    Access = 2,
    /// The range is not inside the registration.
    Range = 3,
    /// The datatype, operation or size is not one this side can do.
    Unsupported = 4,
    /// The bytes could not be moved.
    Io = 5,
    /// The receiver gave the message up.
    Discarded = 6,
    /// The frame made no sense.
    Malformed = 7,
    /// The registered memory is not mapped, or not for that.
    Fault = 8,
}

impl Status {
    /// The status with this code; codes of the future are `Malformed`.
    pub fn from_u16(v: u16) -> Status {
        match v {
            0 => Status::Ok,
            1 => Status::BadKey,
            2 => Status::Access,
            3 => Status::Range,
            4 => Status::Unsupported,
            5 => Status::Io,
            6 => Status::Discarded,
            8 => Status::Fault,
            _ => Status::Malformed,
        }
    }
}

/// What every frame begins with: 20 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Head {
    op: u8,
    flags: u8,
    /// See the table in the crate's documentation, and [`Aux`].
    pub aux: U16,
    /// See the table in the crate's documentation.
    pub tag: U64,
    /// See the table in the crate's documentation.
    pub data: U64,
}

impl Head {
    /// Bytes of a head.
    pub const LEN: usize = size_of::<Head>();

    /// A head of these parts.
    pub fn new(op: Op, flags: Flags, aux: u16, tag: u64, data: u64) -> Head {
        Head { op: op as u8, flags: flags.bits(), aux: aux.into(), tag: tag.into(), data: data.into() }
    }

    /// The head that these bytes begin with; `None` if they are too few.
    pub fn of(mut bytes: &[u8]) -> Option<Head> {
        take(&mut bytes)
    }

    /// What the frame is for; `None` if this version knows no such op.
    #[inline]
    pub fn op(&self) -> Option<Op> {
        Op::from_u8(self.op)
    }

    /// Whether that is this.
    #[inline(always)]
    pub fn is(&self, op: Op) -> bool {
        self.op == op as u8
    }

    /// Its flags; `None` if one is unknown.
    #[inline]
    pub fn flags(&self) -> Option<Flags> {
        Flags::from_bits(self.flags)
    }
}

/// What [`Head::aux`] says of frames that name memory: how many segments of either sort, and for
/// an atomic which operation on which datatype (codes of `hmem`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Aux {
    /// Number of [`RmaSeg`]s, at most [`MAX_SEGS`].
    pub rma: u8,
    /// Number of [`Seg`]s, at most [`MAX_SEGS`]; 0 in an atomic.
    pub segs: u8,
    /// Atomic operation, 0..64; 0 elsewhere.
    pub op: u8,
    /// Atomic datatype, 0..64; 0 elsewhere.
    pub datatype: u8,
}

impl Aux {
    /// For RMA: two counts.
    #[inline]
    pub const fn rma(rma: usize, segs: usize) -> u16 {
        debug_assert!(rma <= MAX_SEGS && segs <= MAX_SEGS);
        (rma as u16 & 15) | (segs as u16 & 15) << 4
    }

    /// For an atomic: a count, the operation and the datatype.
    pub fn atomic(rma: usize, op: u8, datatype: u8) -> u16 {
        debug_assert!(rma <= MAX_SEGS && op < 64 && datatype < 64);
        (rma as u16 & 15) | (u16::from(op) & 63) << 4 | (u16::from(datatype) & 63) << 10
    }

    /// Reads the two counts; `None` if one is too large or a spare bit is set.
    pub fn parse_rma(v: u16) -> Option<Aux> {
        let (rma, segs) = (v & 15, v >> 4);
        (usize::from(rma) <= MAX_SEGS && usize::from(segs) <= MAX_SEGS).then_some(Aux {
            rma: rma as u8,
            segs: segs as u8,
            ..Aux::default()
        })
    }

    /// Reads an atomic's; `None` if the count is too large.
    pub fn parse_atomic(v: u16) -> Option<Aux> {
        (usize::from(v & 15) <= MAX_SEGS).then_some(Aux {
            rma: (v & 15) as u8,
            segs: 0,
            op: (v >> 4 & 63) as u8,
            datatype: (v >> 10) as u8,
        })
    }
}

/// Memory of the frame's sender, by its own virtual address.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Seg {
    /// Virtual address in the sending process.
    pub addr: U64,
    /// Bytes.
    pub len: U64,
}

/// Memory of the frame's receiver, as `fi_rma_iov` names it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct RmaSeg {
    /// Offset into the registration, or virtual address with FI_MR_VIRT_ADDR.
    pub addr: U64,
    /// Bytes.
    pub len: U64,
    /// Key of the registration.
    pub key: U64,
}

/// What an `Rts` offers.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Offer {
    /// The sender's request, to be named in `Cts` and `Fin`.
    pub req: U64,
    /// Bytes of the message.
    pub len: U64,
}

/// What a `CoopFetch` is about.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Pieces {
    /// Bytes to be moved, from the front of both sides' segments.
    pub len: U64,
    /// Bytes of each piece but the last.
    pub piece: U64,
    /// Which of the link's counters hands the pieces out, and for which generation of transfers.
    pub slot: U16,
    /// See `slot`.
    pub generation: U64,
}

/// Exported memory of a device or of the host. What `how`, `fd` and `token` mean is between the two links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Handle {
    /// What kind of handle this is.
    pub how: u8,
    /// 0.
    pub zero: [u8; 3],
    /// A descriptor of the owner's, for kinds that have one.
    pub fd: U32,
    /// The allocation's number: no other of the owner's ever has it.
    pub id: U64,
    /// First byte, by the owner's own virtual address.
    pub base: U64,
    /// Bytes.
    pub len: U64,
    /// The device's UUID.
    pub device: [u8; 16],
    /// The driver's own handle.
    pub token: [u8; 64],
}

/// Appends the bytes of `part` to `frame`.
pub fn put<T: IntoBytes + Immutable + ?Sized>(frame: &mut Vec<u8>, part: &T) {
    frame.extend_from_slice(part.as_bytes());
}

/// Reads a `T` off the front of `bytes`; `None` if there are too few.
pub fn take<T: FromBytes>(bytes: &mut &[u8]) -> Option<T> {
    let (v, rest) = T::read_from_prefix(bytes).ok()?;
    *bytes = rest;
    Some(v)
}

/// Reads `n` of `T` off the front of `bytes`, as a view; `None` if there are too few.
pub fn take_many<'a, T: FromBytes + Immutable + KnownLayout + Unaligned>(
    bytes: &mut &'a [u8],
    n: usize,
) -> Option<&'a [T]> {
    let (v, rest) = <[T]>::ref_from_prefix_with_elems(bytes, n).ok()?;
    *bytes = rest;
    Some(v)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes on the wire are a promise: a change here is a new [`crate::VERSION`].
    #[test]
    fn golden_bytes() {
        let head = Head::new(Op::Rts, Flags::TAGGED | Flags::DIRECT, Aux::rma(0, 2), 0x1122, u64::MAX - 1);
        let mut frame = Vec::new();
        put(&mut frame, &head);
        put(&mut frame, &Offer { req: 7.into(), len: 70_000.into() });
        put(&mut frame, &Seg { addr: 0xabc.into(), len: 9.into() });
        put(&mut frame, &RmaSeg { addr: 1.into(), len: 2.into(), key: 3.into() });
        put(&mut frame, &Pieces { len: 5.into(), piece: 4.into(), slot: 3.into(), generation: 0x201.into() });
        let hex: String = frame.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            concat!(
                "020920002211000000000000feffffffffffffff",
                "07000000000000007011010000000000",
                "bc0a0000000000000900000000000000",
                "010000000000000002000000000000000300000000000000",
                "0500000000000000040000000000000003000102000000000000",
            )
        );
        let handle = Handle {
            how: 1,
            zero: [0; 3],
            fd: 2.into(),
            id: 3.into(),
            base: 4.into(),
            len: 5.into(),
            device: [6; 16],
            token: [7; 64],
        };
        assert_eq!(size_of_val(&handle), 112);
        let bytes = handle.as_bytes();
        assert_eq!((bytes[0], bytes[4], bytes[8], bytes[16], bytes[24]), (1, 2, 3, 4, 5));
        assert_eq!((bytes[32], bytes[48], bytes[111]), (6, 7, 7));
        assert_eq!(Aux::atomic(3, 18, 13), 0b0011_0101_0010_0011);
        for (op, code) in [
            (Op::Eager, 1),
            (Op::Rts, 2),
            (Op::Cts, 3),
            (Op::Data, 4),
            (Op::Fin, 5),
            (Op::Write, 6),
            (Op::WriteRts, 7),
            (Op::Read, 8),
            (Op::Atomic, 9),
            (Op::Result, 10),
            (Op::CoopFetch, 11),
            (Op::CoopDone, 12),
            (Op::CoopRma, 13),
            (Op::Handle, 14),
            (Op::Pause, 15),
            (Op::Refused, 16),
            (Op::Invite, 17),
            (Op::Body, 18),
            (Op::Withdrawn, 19),
            (Op::Bounce, 20),
            (Op::BounceDone, 21),
            (Op::ReadRts, 22),
            (Op::Flush, 23),
        ] {
            assert_eq!(op as u8, code);
            assert_eq!(Op::from_u8(code), Some(op));
        }
        for code in 0..8 {
            assert_eq!(Status::from_u16(code) as u16, code);
        }
    }

    #[test]
    fn what_was_put_is_taken_back() {
        let mut frame = Vec::new();
        put(&mut frame, &Head::new(Op::Write, Flags::ACK, Aux::rma(2, 0), 5, 6));
        let segs = [RmaSeg { addr: 1.into(), len: 2.into(), key: 3.into() }; 2];
        put(&mut frame, &segs[..]);
        put(&mut frame, b"payload");
        let mut rest = &frame[..];
        let head: Head = take(&mut rest).unwrap();
        assert_eq!(head.op(), Some(Op::Write));
        assert_eq!(head.flags(), Some(Flags::ACK));
        let aux = Aux::parse_rma(head.aux.get()).unwrap();
        let back: &[RmaSeg] = take_many(&mut rest, aux.rma.into()).unwrap();
        assert_eq!(back, segs);
        assert_eq!(rest, b"payload");
    }

    #[test]
    fn nonsense_is_refused() {
        let mut short = &[1u8; 19][..];
        assert!(take::<Head>(&mut short).is_none());
        let head = Head { op: 99, flags: 0x80, aux: 0.into(), tag: 0.into(), data: 0.into() };
        assert_eq!((head.op(), head.flags()), (None, Some(Flags::COLLECTIVE)));
        assert!(Aux::parse_rma(9).is_none() && Aux::parse_rma(9 << 4).is_none());
        assert!(Aux::parse_rma(1 << 8).is_none() && Aux::parse_atomic(15).is_none());
        assert!(take_many::<Seg>(&mut &[0u8; 31][..], 2).is_none());
        assert_eq!(Status::from_u16(999), Status::Malformed);
    }
}
