//! What a process says of its endpoint: bytes that the program brings to the peer. All fields are checked.

use hmem::share::Export;
use ipc::process::Name;

use crate::error::Error;
use crate::layout::Layout;

const MAGIC: [u8; 8] = *b"straitS4";
const BOOT: usize = 16;
/// Memory, as its owner describes it.
const REGION: usize = 8 + 8 + Export::LEN;
const HEAD: usize = 8 + BOOT + 4 * 10;
/// The bits of an endpoint's number.
pub(crate) const NUMBER: u32 = (1 << 30) - 1;
/// Most regions of an endpoint.
pub(crate) const REGIONS: usize = 64;

/// Memory that the peer may map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) base: u64,
    pub(crate) len: u64,
    pub(crate) export: Export,
}

/// A process's endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blob {
    pub(crate) boot: [u8; BOOT],
    pub(crate) process: Name,
    /// Its number there.
    pub(crate) pid: u32,
    /// Its user, as far as it says so.
    pub(crate) user: u32,
    /// The number of the endpoint, of 30 bits, which another one hardly has.
    pub(crate) number: u32,
    pub(crate) layout: Layout,
    /// Words and slots in host memory.
    pub(crate) words: Region,
    /// Slots in a device's memory.
    pub(crate) slots: Option<Region>,
    pub(crate) regions: Vec<Region>,
    /// How an agent reaches it; empty: none does.
    pub(crate) agent: Vec<u8>,
    /// An agent carries even where memory can be mapped.
    pub(crate) by_agent: bool,
}

impl Blob {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD + (2 + self.regions.len()) * REGION);
        out.extend(MAGIC);
        out.extend(self.boot);
        let (of, layout) = (self.process, self.layout);
        // The number of regions, and bit 31: there are slots in a device's memory.
        let count = self.regions.len() as u32 | u32::from(self.slots.is_some()) << 31;
        // Bytes for the agent, and bit 31: it carries in any case.
        let agent = self.agent.len() as u32 | u32::from(self.by_agent) << 31;
        for word in [
            of.process,
            of.namespace,
            layout.slots,
            layout.slot_bytes,
            layout.signals,
            count,
            agent,
            self.pid,
            self.user,
            self.number,
        ] {
            out.extend(word.to_le_bytes());
        }
        for r in [self.words].iter().chain(&self.slots).chain(&self.regions) {
            out.extend(r.base.to_le_bytes());
            out.extend(r.len.to_le_bytes());
            out.extend(r.export.to_bytes());
        }
        out.extend(&self.agent);
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Blob, Error> {
        let short = Error::Blob("it is cut short, or none of this version");
        let (head, mut rest) = bytes.split_at_checked(HEAD).ok_or(short)?;
        if head[..8] != MAGIC {
            return Err(Error::Blob("it is none of this version: use one version of the library"));
        }
        let word = |n: usize| {
            let at = 8 + BOOT + 4 * n;
            u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])
        };
        let (count, with_slots) = ((word(5) & !(1 << 31)) as usize, word(5) >> 31 == 1);
        let layout = Layout { slots: word(2), slot_bytes: word(3), signals: word(4) };
        if count > REGIONS || !layout.is_valid() {
            return Err(Error::Blob("its numbers cannot be"));
        }
        let mut region = || {
            let (one, others) = rest.split_at_checked(REGION)?;
            rest = others;
            let long = |at: usize| one[at..at + 8].try_into().ok().map(u64::from_le_bytes);
            let export = Export::from_bytes(one[16..].try_into().ok()?)?;
            let region = Region { base: long(0)?, len: long(8)?, export };
            region.base.checked_add(region.len).map(|_| region)
        };
        let bad = || Error::Blob("it is cut short, or a handle in it is of no kind");
        let words = region().ok_or_else(bad)?;
        let slots = if with_slots { Some(region().ok_or_else(bad)?) } else { None };
        let regions = (0..count).map(|_| region()).collect::<Option<Vec<_>>>().ok_or_else(bad)?;
        let (agent, by_agent) = ((word(6) & !(1 << 31)) as usize, word(6) >> 31 == 1);
        if rest.len() != agent {
            return Err(Error::Blob("it is cut short, or longer than it says"));
        }
        let agent = rest.to_vec();
        let boot = head[8..8 + BOOT].try_into().unwrap_or([0; BOOT]);
        let process = Name { process: word(0), namespace: word(1) };
        let (pid, user, number) = (word(7), word(8), word(9) & NUMBER);
        Ok(Blob { boot, process, pid, user, number, layout, words, slots, regions, agent, by_agent })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use hmem::share::HandleType;

    use super::*;

    pub(crate) fn blob() -> Blob {
        let export = Export {
            handle_type: HandleType::File,
            id: 3,
            base: 0x1000,
            len: 0x4000,
            fd: 7,
            device: [1; 16],
            token: [2; 64],
        };
        let region = Region { base: 0x1000, len: 0x4000, export };
        Blob {
            boot: ipc::host::boot(),
            process: Name::own(),
            pid: std::process::id(),
            user: 7,
            number: NUMBER - 5,
            layout: Layout { slots: 4, slot_bytes: 64, signals: 2 },
            words: region,
            slots: Some(Region { base: 0x2000, ..region }),
            regions: vec![region; 3],
            agent: vec![5; 33],
            by_agent: true,
        }
    }

    #[test]
    fn what_a_process_says_is_read_as_it_was_said() {
        let (all, none) =
            (blob(), Blob { slots: None, regions: Vec::new(), agent: Vec::new(), by_agent: false, ..blob() });
        for of in [all, none] {
            assert_eq!(Blob::decode(&of.encode()).unwrap(), of);
        }
    }

    #[test]
    fn bytes_that_no_process_says_are_refused() {
        let good = blob().encode();
        for len in 0..good.len() {
            assert!(Blob::decode(&good[..len]).is_err(), "{len} bytes");
        }
        assert!(Blob::decode(&[&good[..], &[0]].concat()).is_err());
        let with = |at: usize, bytes: &[u8]| {
            let mut other = good.clone();
            other[at..at + bytes.len()].copy_from_slice(bytes);
            Blob::decode(&other)
        };
        let numbers = 8 + BOOT;
        // Another version; no slots; slots of no size, of an odd one, of too many bytes; too many regions; a
        // region beyond the end of all addresses.
        assert!(with(0, b"x").is_err());
        assert!(with(numbers + 8, &0u32.to_le_bytes()).is_err());
        for bytes in [0u32, 24, 1 << 25] {
            assert!(with(numbers + 12, &bytes.to_le_bytes()).is_err(), "{bytes}");
        }
        assert!(with(numbers + 20, &65u32.to_le_bytes()).is_err());
        assert!(with(HEAD, &u64::MAX.to_le_bytes()).is_err());
    }
}
