//! What a queue pair announces to the one that it is to be connected to.

/// Numbers of queue pairs and of packets have so many bits.
const BITS_24: u32 = 0x00ff_ffff;

/// A queue pair that is to be connected.
///
/// | bytes | what |
/// |---|---|
/// | 0..16 | GID |
/// | 16..18 | LID (u16, little endian as all that follows) |
/// | 18 | path MTU, as in `enum ibv_mtu` |
/// | 19 | how many reads of the peer's the device serves at once; 0: none |
/// | 20..24, 24..28 | number of the queue pair, and of its first packet |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) gid: [u8; 16],
    pub(crate) lid: u16,
    pub(crate) mtu: u8,
    pub(crate) reads: u8,
    pub(crate) qpn: u32,
    pub(crate) psn: u32,
}

impl Address {
    /// Bytes of one.
    pub(crate) const LEN: usize = 28;

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Address::LEN);
        out.extend(self.gid);
        out.extend(self.lid.to_le_bytes());
        out.extend([self.mtu, self.reads]);
        out.extend(self.qpn.to_le_bytes());
        out.extend(self.psn.to_le_bytes());
        out
    }

    /// Of what a peer has announced; `None` if it is no address.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Address> {
        let bytes: &[u8; Address::LEN] = bytes.try_into().ok()?;
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let found = Address {
            gid: std::array::from_fn(|i| bytes[i]),
            lid: u16::from_le_bytes([bytes[16], bytes[17]]),
            mtu: bytes[18],
            reads: bytes[19],
            qpn: word(20),
            psn: word(24),
        };
        let is_one =
            (1..=5).contains(&found.mtu) && (1..=BITS_24).contains(&found.qpn) && found.psn <= BITS_24;
        is_one.then_some(found)
    }

    /// A number for the first packet.
    pub(crate) fn draw_psn() -> Result<u32, String> {
        ipc::random().map(|bytes| u32::from_le_bytes(bytes) & BITS_24).map_err(|e| format!("getrandom: {e}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Address = Address { gid: [9; 16], lid: 0x1234, mtu: 3, reads: 16, qpn: 17, psn: 0xff_ffff };

    #[test]
    fn an_address_is_read_as_it_was_written() {
        assert_eq!(Address::decode(&ONE.encode()), Some(ONE));
    }

    #[test]
    fn what_is_no_address_is_refused() {
        let of = |change: fn(&mut Vec<u8>)| {
            let mut bytes = ONE.encode();
            change(&mut bytes);
            Address::decode(&bytes)
        };
        let changes: [fn(&mut Vec<u8>); 6] = [
            |b| b.truncate(27),
            |b| b.push(0),
            |b| b[18] = 0,
            |b| b[18] = 6,
            |b| b[20..24].fill(0),
            |b| b[27] = 1,
        ];
        for (n, change) in changes.into_iter().enumerate() {
            assert_eq!(of(change), None, "change {n}");
        }
        assert_eq!(of(|b| b[23] = 1), None, "a number of more than 24 bits");
    }
}
