//! What devices send to each other.

/// Where a device of a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Address {
    pub host: u8,
    pub device: u8,
    /// Of the processes that have the device: the high bits of its queue pairs' numbers.
    pub instance: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Kind {
    #[default]
    Send,
    Write,
    Read,
    FetchAdd,
    CompareSwap,
    Ack,
    Nak,
    NotReady,
    ReadData,
    AtomicData,
    /// A request without a message, which takes a number of the sequence here, though not of real devices.
    Nothing,
}

const KINDS: [Kind; 11] = [
    Kind::Send,
    Kind::Write,
    Kind::Read,
    Kind::FetchAdd,
    Kind::CompareSwap,
    Kind::Ack,
    Kind::Nak,
    Kind::NotReady,
    Kind::ReadData,
    Kind::AtomicData,
    Kind::Nothing,
];

impl Kind {
    pub fn is_answer(self) -> bool {
        matches!(self, Kind::Ack | Kind::Nak | Kind::NotReady | Kind::ReadData | Kind::AtomicData)
    }
}

/// A piece of a message, or an answer. One number of the sequence is one message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packet {
    pub kind: Kind,
    pub from: Address,
    pub from_qpn: u32,
    pub to_qpn: u32,
    pub to_port: u8,
    pub psn: u32,
    pub offset: u32,
    pub total: u32,
    pub imm: Option<u32>,
    pub solicited: bool,
    /// A status of `enum ibv_wc_status`, or the code of a timer.
    pub code: u32,
    pub remote: u64,
    pub rkey: u32,
    pub operands: [u64; 2],
    pub data: Vec<u8>,
}

/// Bytes of payload in one packet.
pub const PIECE: usize = 32 << 10;
const HEAD: usize = 64;
pub const LARGEST: usize = HEAD + PIECE;

impl Packet {
    pub fn encode(&self) -> Vec<u8> {
        let kind = KINDS.iter().position(|k| *k == self.kind).unwrap_or(0) as u8;
        let flags = u8::from(self.imm.is_some()) | u8::from(self.solicited) << 1;
        let mut bytes =
            vec![kind, flags, 0, 0, self.from.host, self.from.device, self.from.instance, self.to_port];
        let words = [
            self.from_qpn,
            self.to_qpn,
            self.psn,
            self.offset,
            self.total,
            self.imm.unwrap_or(0),
            self.code,
            self.rkey,
        ];
        words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        [self.remote, self.operands[0], self.operands[1]].iter().for_each(|w| bytes.extend(w.to_le_bytes()));
        debug_assert_eq!(bytes.len(), HEAD);
        bytes.extend(&self.data);
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Option<Packet> {
        let (head, data) = bytes.split_at_checked(HEAD)?;
        let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("4 bytes"));
        let long = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
        Some(Packet {
            kind: *KINDS.get(usize::from(head[0]))?,
            from: Address { host: head[4], device: head[5], instance: head[6] },
            from_qpn: word(8),
            to_qpn: word(12),
            to_port: head[7],
            psn: word(16),
            offset: word(20),
            total: word(24),
            imm: (head[1] & 1 != 0).then(|| word(28)),
            solicited: head[1] & 2 != 0,
            code: word(32),
            rkey: word(36),
            remote: long(40),
            operands: [long(48), long(56)],
            data: data.to_vec(),
        })
    }
}
