//! The description of a process that its peers need before kernels run: bytes that the program exchanges by
//! means of its own. A peer's blob is not trusted; all fields are checked.

use hmem::share::Export;
use ipc::process::Name;
use wire::Addr;

use crate::error::Error;

const MAGIC: [u8; 8] = *b"straitXB";
const VERSION: u32 = 1;
const HEAD: usize = 8 + 4 + 4 + 4 + 4 + 16 + Addr::LEN;
const REGION: usize = 8 + 8 + 8 + 8 + Export::LEN;
/// Most regions of a process.
pub(crate) const REGIONS: usize = 4096;

/// A region of memory, as its owner describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) base: u64,
    pub(crate) len: u64,
    pub(crate) key: u64,
    pub(crate) export: Option<Export>,
}

/// A process, as it describes itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blob {
    pub(crate) addr: Addr,
    pub(crate) process: Name,
    /// Which boot of which host.
    pub(crate) boot: [u8; 16],
    pub(crate) regions: Vec<Region>,
}

/// Takes fixed numbers of bytes off the front.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_at_checked(N)?;
        self.0 = rest;
        head.try_into().ok()
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

impl Blob {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD + self.regions.len() * REGION);
        out.extend(MAGIC);
        let count = self.regions.len() as u32;
        for word in [VERSION, count, self.process.process, self.process.namespace] {
            out.extend(word.to_le_bytes());
        }
        out.extend(self.boot);
        out.extend(self.addr.encode());
        for r in &self.regions {
            for word in [r.base, r.len, r.key, r.export.is_some().into()] {
                out.extend(word.to_le_bytes());
            }
            out.extend(r.export.map_or([0; Export::LEN], |e| e.to_bytes()));
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Blob, Error> {
        let short = Error::Blob("it is shorter than it says, or longer");
        if bytes.get(..8) != Some(&MAGIC[..]) {
            return Err(Error::Blob("it is none"));
        }
        let mut from = Reader(&bytes[8..]);
        let mut words = [0; 4];
        for w in &mut words {
            *w = from.u32().ok_or(Error::Blob("it is shorter than it says, or longer"))?;
        }
        let [version, count, process, namespace] = words;
        if version != VERSION {
            return Err(Error::Blob("it is of another version of Strait: use one version in all processes"));
        }
        let count = count as usize;
        if count > REGIONS || bytes.len() != HEAD + count * REGION {
            return Err(short);
        }
        let read = |from: &mut Reader<'_>| Some((from.take()?, from.take()?));
        let (boot, addr) = read(&mut from).ok_or(short)?;
        let addr = Addr::decode(&addr).ok_or(Error::Blob("its address is none"))?;
        let region = |from: &mut Reader<'_>| {
            let (base, len, key) = (from.u64()?, from.u64()?, from.u64()?);
            let (has, bytes) = (from.u64()?, from.take()?);
            base.checked_add(len)?;
            let export = match has {
                0 => None,
                1 => Some(Export::from_bytes(&bytes)?),
                _ => return None,
            };
            Some(Region { base, len, key, export })
        };
        let regions = (0..count).map(|_| region(&mut from)).collect::<Option<Vec<_>>>();
        let regions = regions.ok_or(Error::Blob("a region of it cannot be"))?;
        Ok(Blob { addr, process: Name { process, namespace }, boot, regions })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn blob() -> Blob {
        let export = Export {
            handle_type: hmem::share::HandleType::File,
            id: 1,
            base: 4096,
            len: 8192,
            fd: 3,
            device: [0; 16],
            token: [7; 64],
        };
        let regions = vec![
            Region { base: 4096, len: 8192, key: 9, export: Some(export) },
            Region { base: 0, len: u64::MAX, key: u64::MAX, export: None },
        ];
        let addr = Addr::new(([127, 0, 0, 1], 77).into());
        Blob { addr, process: Name::own(), boot: ipc::host::boot(), regions }
    }

    #[test]
    fn a_blob_comes_back_as_it_was() {
        assert_eq!(Blob::decode(&blob().encode()).unwrap(), blob());
        assert_ne!(ipc::host::boot(), [0; 16], "no /proc");
    }

    #[test]
    fn a_blob_that_was_tampered_with_is_refused_or_another_one() {
        let good = blob().encode();
        for cut in 0..good.len() {
            assert!(Blob::decode(&good[..cut]).is_err(), "cut at {cut}");
        }
        assert!(Blob::decode(&[&good[..], &[0]].concat()).is_err());
        bolero::check!().with_type::<Vec<(u16, u8)>>().for_each(|edits| {
            let mut bytes = blob().encode();
            for (at, value) in edits {
                let at = *at as usize % bytes.len();
                bytes[at] = *value;
            }
            if let Ok(read) = Blob::decode(&bytes) {
                assert!(read.regions.iter().all(|r| r.base.checked_add(r.len).is_some()));
            }
        });
    }
}
