//! Commands: eight words that a device wrote, and what is left of them once every field has been looked at.
//!
//! A device's words are a peer's: any of them may be anything. [`Raw::of`] takes them apart, [`Raw::check`]
//! answers with work that is inside of what the ring may do, or with the errno that the command ends with.
//! Remote addresses and keys go on to the target as they are, which checks them as it does any peer's.

use hmem::{AtomicOp, Class, Datatype, Span};

use crate::error::code;
use crate::layout::{
    ANY, FLAGS_SHIFT, HIGH_SHIFT, INLINE_MAX, LAP_BIT, NO_REGION, OP_SHIFT, REGION_SHIFT, SLOT_WORDS, flag,
};

/// What a command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs, reason = "the header has them")]
pub enum Op {
    Nop = 1,
    Put = 2,
    Get = 3,
    PutSignal = 4,
    Signal = 5,
    Atomic = 6,
    Fetch = 7,
    Compare = 8,
    Send = 9,
    Tsend = 10,
    Recv = 11,
    Trecv = 12,
}

impl Op {
    /// All there are.
    pub const ALL: [Op; 12] = [
        Op::Nop,
        Op::Put,
        Op::Get,
        Op::PutSignal,
        Op::Signal,
        Op::Atomic,
        Op::Fetch,
        Op::Compare,
        Op::Send,
        Op::Tsend,
        Op::Recv,
        Op::Trecv,
    ];

    /// Flags that mean something with it.
    fn flags(self) -> u16 {
        use flag::{COMPLETION, CQ_DATA, FENCE, INLINE_DATA, MORE, SIGNAL_32, SIGNAL_ADD, SIGNAL_WEAK};
        let own = match self {
            Op::Nop | Op::Get | Op::Atomic | Op::Fetch | Op::Compare | Op::Recv | Op::Trecv => 0,
            Op::Put | Op::Send | Op::Tsend => INLINE_DATA | CQ_DATA,
            Op::PutSignal => INLINE_DATA | SIGNAL_ADD | SIGNAL_32 | SIGNAL_WEAK,
            Op::Signal => SIGNAL_ADD | SIGNAL_32 | SIGNAL_WEAK,
        };
        // A receive and a nop are after nothing of one peer.
        let fence = if matches!(self, Op::Nop | Op::Recv | Op::Trecv) { 0 } else { FENCE };
        own | COMPLETION | fence | MORE
    }
}

/// A command as a device describes it. Of the host's, only tests and programs that play a device make one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the header has them")]
pub struct Raw {
    pub op: u8,
    pub flags: u16,
    pub peer: u32,
    pub region: u32,
    pub local: u64,
    pub remote: u64,
    pub key: u64,
    pub length: u64,
    pub operand: u64,
    pub value: u64,
    pub context: u64,
}

impl Raw {
    /// The words of the slot, with this lap bit.
    pub fn pack(&self, lap: u64) -> [u64; SLOT_WORDS] {
        let length = self.length & ((1 << REGION_SHIFT) - 1) | u64::from(self.region) << REGION_SHIFT;
        let mut words =
            [0, self.local, self.remote, self.key, length, self.operand, self.value, self.context];
        words[0] =
            u64::from(self.op) << OP_SHIFT | u64::from(self.flags) << FLAGS_SHIFT | u64::from(self.peer);
        for i in 1..SLOT_WORDS {
            words[0] |= (words[i] >> 63) << (HIGH_SHIFT + i as u32 - 1);
        }
        words.map(|w| w & !(1 << LAP_BIT) | lap << LAP_BIT)
    }

    /// Whether these words are a command that does nothing and asks for nothing.
    #[inline]
    pub(crate) fn is_idle(words: &[u64; SLOT_WORDS]) -> bool {
        let (op, flags) = ((words[0] >> OP_SHIFT) as u8, (words[0] >> FLAGS_SHIFT) as u16);
        op == Op::Nop as u8 && flags & !flag::MORE == 0
    }

    /// What these words say.
    pub fn of(words: &[u64; SLOT_WORDS]) -> Raw {
        let [head, ..] = *words;
        let word =
            |i: usize| words[i] & !(1 << LAP_BIT) | (head >> (HIGH_SHIFT + i as u32 - 1) & 1) << LAP_BIT;
        Raw {
            op: (head >> OP_SHIFT) as u8,
            flags: (head >> FLAGS_SHIFT) as u16,
            peer: head as u32,
            region: (word(4) >> REGION_SHIFT) as u32,
            local: word(1),
            remote: word(2),
            key: word(3),
            length: word(4) & ((1 << REGION_SHIFT) - 1),
            operand: word(5),
            value: word(6),
            context: word(7),
        }
    }
}

/// What commands of a ring may name.
#[derive(Clone, Copy, Debug)]
pub struct Limits<'a> {
    /// Peers have numbers below this.
    pub peers: u32,
    /// Memory of this process, by its number; `None`: closed.
    pub regions: &'a [Option<Span>],
    /// Most bytes of a message; `None`: the ring has no messages, nor data for a peer's queue.
    pub message: Option<u64>,
}

/// A checked command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// What it is.
    pub op: Op,
    /// As the device gave them.
    pub flags: u16,
    /// The peer's number, or [`ANY`].
    pub peer: u32,
    /// What its completion carries.
    pub context: u64,
    /// What is to be done.
    pub work: Work,
}

impl Command {
    /// Whether it has this flag.
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// Memory of this process that a command names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Local {
    /// A part of a region.
    Memory(Span),
    /// So many bytes that the command has in itself.
    Inline(u64, usize),
}

impl Local {
    /// Bytes.
    pub fn len(&self) -> usize {
        match self {
            Local::Memory(span) => span.len(),
            Local::Inline(_, len) => *len,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Memory of a peer, which the target checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "as the words")]
pub struct Remote {
    pub addr: u64,
    pub key: u64,
}

/// A word of a peer's that is set or added to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "as the words")]
pub struct Signal {
    pub at: Remote,
    pub value: u64,
    pub add: bool,
    pub datatype: Datatype,
    /// Comes after its own put only.
    pub weak: bool,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "as the words")]
pub enum Work {
    Nop,
    Put {
        local: Local,
        remote: Remote,
        data: Option<u64>,
        signal: Option<Signal>,
    },
    Get {
        local: Span,
        remote: Remote,
    },
    Signal(Signal),
    Atomic {
        op: AtomicOp,
        datatype: Datatype,
        operand: u64,
        compare: Option<u64>,
        result: Option<Span>,
        remote: Remote,
    },
    Send {
        local: Local,
        tag: Option<u64>,
        data: Option<u64>,
    },
    Recv {
        local: Span,
        tag: Option<(u64, u64)>,
    },
}

/// Why a command is refused, as an errno.
pub type Errno = i32;

impl Raw {
    /// The command, if each of its fields is one that its ring may use.
    pub fn check(&self, limits: &Limits<'_>) -> Result<Command, Errno> {
        let op = Op::ALL.into_iter().find(|op| *op as u8 == self.op).ok_or(code::NOSYS)?;
        if self.flags & !op.flags() != 0 {
            return Err(code::BADFLAGS);
        }
        let receives = matches!(op, Op::Recv | Op::Trecv);
        if self.peer >= limits.peers && op != Op::Nop && !(receives && self.peer == ANY) {
            return Err(code::ADDRNOTAVAIL);
        }
        let messages = matches!(op, Op::Send | Op::Tsend | Op::Recv | Op::Trecv);
        if limits.message.is_none() && (messages || self.has(flag::CQ_DATA)) {
            return Err(code::OPNOTSUPP);
        }
        let work = self.work(op, limits)?;
        let signals = matches!(op, Op::PutSignal | Op::Signal);
        let context = if signals { 0 } else { self.context };
        Ok(Command { op, flags: self.flags, peer: self.peer, context, work })
    }

    /// The peer that it is to, if it is to one: of a command that is refused.
    pub(crate) fn names(&self, peers: u32) -> Option<u32> {
        let none = [Op::Nop, Op::Recv, Op::Trecv].into_iter().any(|op| op as u8 == self.op);
        (!none && self.peer < peers).then_some(self.peer)
    }

    fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    fn work(&self, op: Op, limits: &Limits<'_>) -> Result<Work, Errno> {
        let remote = Remote { addr: self.remote, key: self.key };
        let data = self.has(flag::CQ_DATA).then_some(self.operand);
        Ok(match op {
            Op::Nop => Work::Nop,
            Op::Put => Work::Put { local: self.source(limits)?, remote, data, signal: None },
            Op::Get => Work::Get { local: self.memory(self.length, limits)?, remote },
            Op::PutSignal => {
                let signal = Some(self.signal()?);
                Work::Put { local: self.source(limits)?, remote, data: None, signal }
            }
            Op::Signal => Work::Signal(self.signal()?),
            Op::Atomic | Op::Fetch | Op::Compare => self.atomic(op, limits)?,
            Op::Send | Op::Tsend => {
                let local = self.source(limits)?;
                if limits.message.is_none_or(|most| local.len() as u64 > most) {
                    return Err(code::MSGSIZE);
                }
                Work::Send { local, tag: (op == Op::Tsend).then_some(self.remote), data }
            }
            Op::Recv | Op::Trecv => {
                let tag = (op == Op::Trecv).then_some((self.remote, self.key));
                Work::Recv { local: self.memory(self.length, limits)?, tag }
            }
        })
    }

    /// Where the bytes come from.
    fn source(&self, limits: &Limits<'_>) -> Result<Local, Errno> {
        if !self.has(flag::INLINE_DATA) {
            return Ok(Local::Memory(self.memory(self.length, limits)?));
        }
        if self.length > INLINE_MAX || self.region != NO_REGION {
            return Err(code::INVAL);
        }
        Ok(Local::Inline(self.local, self.length as usize))
    }

    /// `length` bytes at the local address.
    fn memory(&self, length: u64, limits: &Limits<'_>) -> Result<Span, Errno> {
        if length == 0 {
            return Ok(Span::EMPTY);
        }
        let of = limits.regions.get(self.region as usize).copied().flatten().ok_or(code::NOMR)?;
        let off = self.local.checked_sub(of.addr()).and_then(|off| usize::try_from(off).ok());
        let part = off.and_then(|off| of.part(off, usize::try_from(length).ok()?));
        part.ok_or(code::FAULT)
    }

    fn signal(&self) -> Result<Signal, Errno> {
        let narrow = self.has(flag::SIGNAL_32);
        let (datatype, size) = if narrow { (Datatype::Uint32, 4) } else { (Datatype::Uint64, 8) };
        if self.operand % size != 0 || narrow && self.value > u64::from(u32::MAX) {
            return Err(code::INVAL);
        }
        let at = Remote { addr: self.operand, key: self.context };
        let (add, weak) = (self.has(flag::SIGNAL_ADD), self.has(flag::SIGNAL_WEAK));
        Ok(Signal { at, value: self.value, add, datatype, weak })
    }

    fn atomic(&self, op: Op, limits: &Limits<'_>) -> Result<Work, Errno> {
        if self.length >> 16 != 0 {
            return Err(code::INVAL);
        }
        let datatype = Datatype::from_code(self.length as u8).ok_or(code::OPNOTSUPP)?;
        let what = AtomicOp::from_code((self.length >> 8) as u8).ok_or(code::OPNOTSUPP)?;
        let class = match op {
            Op::Atomic => Class::Base,
            Op::Fetch => Class::Fetch,
            _ => Class::Compare,
        };
        let size = datatype.size();
        if size > INLINE_MAX as usize || !hmem::valid(what, datatype, class) {
            return Err(code::OPNOTSUPP);
        }
        let result = if op == Op::Atomic { None } else { Some(self.memory(size as u64, limits)?) };
        let compare = (op == Op::Compare).then_some(self.value);
        let remote = Remote { addr: self.remote, key: self.key };
        Ok(Work::Atomic { op: what, datatype, operand: self.operand, compare, result, remote })
    }
}
