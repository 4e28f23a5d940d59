//! Memory of devices in pipes: what is made here, what a peer has made and passed, and the copies there. What
//! a driver has to do with it is the crate hmem's.

use std::fmt;
use std::mem::ManuallyDrop;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::str::FromStr;
use std::sync::Arc;

use hmem::pending::{self, Part, PendingCopy};
use hmem::share::{Export, Passed};
use hmem::{Kind, Span, cuda, registry};

use crate::Error;
use crate::core::forked;

/// Which device: of those that CUDA's driver shows to this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// That of the calling thread's context.
    #[default]
    Current,
    /// The one of this number.
    Number(u16),
}

impl FromStr for Device {
    type Err = Error;

    fn from_str(text: &str) -> Result<Device, Error> {
        match text {
            "current" => Ok(Device::Current),
            _ => text
                .parse()
                .map(Device::Number)
                .map_err(|_| Error::Invalid("it takes the number of a device, or current".into())),
        }
    }
}

impl Device {
    /// The number of the device, of which this process has a context.
    pub(crate) fn find(self) -> Result<i32, Error> {
        let wanted = match self {
            Device::Current => None,
            Device::Number(number) => Some(i32::from(number)),
        };
        cuda::find_driver();
        cuda::device(wanted).map_err(|e| {
            let name = wanted.map_or("a device".into(), |number| format!("device {number}"));
            let what = match cuda::describe() {
                Err(none) => format!("{none}: the program loads CUDA, and makes a context (cudaFree(0))"),
                Ok(there) => format!("{e}; {there}: make a context of it first (cudaSetDevice, cudaFree(0))"),
            };
            Error::Unsupported(format!("memory of {name}: {what}"))
        })
    }
}

/// What is wrong with a device, or with a copy there.
fn failed(what: &str, e: hmem::Error) -> Error {
    match e.errno() {
        libc::ENOMEM => Error::Exhausted(format!("{what}: {e}; make heaps smaller (STRAIT_RPIPE_HEAP)")),
        libc::EOPNOTSUPP | libc::EPERM | libc::ENOENT => Error::Unsupported(format!("{what}: {e}")),
        _ => Error::System(format!("{what}: {e}")),
    }
}

/// Memory of a device that this process has made.
pub struct DeviceMemory(ManuallyDrop<cuda::Made>);

impl DeviceMemory {
    pub(crate) fn new(device: i32, len: usize) -> Result<Arc<DeviceMemory>, Error> {
        let what = || format!("{len} bytes of device {device}, which other processes can map");
        let made = cuda::Made::new(device, len).map_err(|e| failed(&what(), e.into()))?;
        Ok(Arc::new(DeviceMemory(ManuallyDrop::new(made))))
    }

    /// Where it is.
    pub(crate) fn addr(&self) -> usize {
        self.0.addr()
    }

    pub(crate) fn device(&self) -> i32 {
        self.0.device()
    }

    /// What a peer gets of it, beside a copy of the descriptor.
    pub(crate) fn export(&self) -> [u8; Export::LEN] {
        self.0.export().to_bytes()
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }

    /// A part of it.
    pub(crate) fn span(&self, at: usize, len: usize) -> Result<Span, Error> {
        let inside = at <= self.0.len() && len <= self.0.len() - at;
        if !inside {
            return Err(Error::Invalid("outside of the device's memory".into()));
        }
        // SAFETY: of the mapping, which is there as long as `self`; copies are waited for within the call
        // that gets this.
        Ok(unsafe { Span::new(self.0.addr() + at, len, Kind::Cuda) })
    }

    /// Zeros.
    pub(crate) fn clear(&self, at: usize, len: usize) -> Result<(), Error> {
        let zeros = vec![0u8; len];
        copy(self.span(at, len)?, host(zeros.as_ptr(), len))
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // A driver does nothing in a forked child.
        if !forked::is_child() {
            // SAFETY: it is not used any more.
            unsafe { ManuallyDrop::drop(&mut self.0) };
        }
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Memory of a device that a peer has made.
pub struct PeerMemory(ManuallyDrop<Passed>);

impl PeerMemory {
    /// What a peer says of it, and the descriptor.
    pub(crate) fn adopt(export: &[u8], fd: OwnedFd) -> Result<Arc<PeerMemory>, Error> {
        let export = export.try_into().ok().and_then(Export::from_bytes);
        let passed = export.and_then(|export| Passed::new(&export, fd).ok());
        let passed = passed.ok_or_else(|| Error::Broken("a device's memory that is none".into()))?;
        Ok(Arc::new(PeerMemory(ManuallyDrop::new(passed))))
    }

    /// Bytes, as the peer says; the driver finds out when they are mapped.
    pub(crate) fn len(&self) -> usize {
        usize::try_from(self.0.export().len).unwrap_or(0)
    }

    /// Maps it for copies from `from`, or says why that is not possible.
    pub(crate) fn open(&self, from: Span) -> Result<(), Error> {
        self.opened(from).map(drop)
    }

    fn opened(&self, from: Span) -> Result<hmem::share::Opened, Error> {
        cuda::find_driver();
        let local = if from.kind() == Kind::Cuda { from.addr() as usize } else { 0 };
        self.0.open(local).map_err(|e| {
            let mut why =
                "the reader's heap is in memory of a device, which cannot be mapped here".to_owned();
            if let Err(none) = cuda::describe() {
                why.push_str(&format!(" ({none}: load CUDA, and make a context)"));
            }
            failed(&why, e)
        })
    }

    /// Copies to it, and waits until the bytes are visible there.
    pub(crate) fn put(&self, at: usize, from: Span) -> Result<(), Error> {
        if from.is_empty() {
            return Ok(());
        }
        let opened = self.opened(from)?;
        let place = (self.0.export().base).checked_add(at as u64).and_then(|addr| opened.place(addr));
        let Some((dst, _)) = place.filter(|(_, room)| *room >= from.len()) else {
            return Err(Error::Broken("the reader's heap is shorter than it said".into()));
        };
        let part = Part { dst, src: from.addr() as usize, len: from.len() };
        // SAFETY: `opened` keeps the one side, the caller's span is valid until this returns.
        let flight = unsafe { pending::start(&[part], vec![opened], &[from], true) };
        wait(flight.map_err(|e| failed("a copy to the reader's heap", e))?)
    }
}

impl Drop for PeerMemory {
    fn drop(&mut self) {
        if !forked::is_child() {
            // SAFETY: as in `DeviceMemory`.
            unsafe { ManuallyDrop::drop(&mut self.0) };
        }
    }
}

impl fmt::Debug for PeerMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Host memory that is valid as long as the call that this is given to.
pub(crate) fn host(at: *const u8, len: usize) -> Span {
    // SAFETY: of this process's memory, of which each caller has so much; copies end within their call.
    unsafe { Span::new(at.expose_provenance(), len, Kind::System) }
}

/// Memory of whatever kind a program names it by.
pub(crate) fn named(at: *const u8, len: usize) -> Span {
    let addr = at.expose_provenance();
    // SAFETY: the program's promise, which the caller has, for as long as the call takes.
    unsafe { Span::new(addr, len, hmem::classify(addr, len)) }
}

/// The span of the same memory, once what the program copied there by CUDA's synchronous calls is in it.
pub(crate) fn written(at: *const u8, len: usize) -> Span {
    let span = named(at, len);
    if span.kind() == Kind::Cuda && len > 0 {
        cuda::settle(at.addr());
    }
    span
}

/// Copies between memory of this process, all of `src`, and waits for that.
pub(crate) fn copy(dst: Span, src: Span) -> Result<(), Error> {
    match hmem::copy(&[dst], 0, &[src], 0, src.len()) == src.len() {
        true => Ok(()),
        false => {
            Err(Error::System(format!("a copy of {} bytes from {src:?} to {dst:?} has failed", src.len())))
        }
    }
}

/// Page-locks host memory for a device, if there is one that does.
pub(crate) fn lock(at: *mut u8, len: usize) -> Option<Locked> {
    // SAFETY: what is returned is dropped before the memory, by the caller.
    unsafe { registry::of(Kind::Cuda).lock_host(at.expose_provenance(), len) }
        .map(|pages| Locked(ManuallyDrop::new(pages)))
}

/// Page-locked memory.
pub(crate) struct Locked(ManuallyDrop<registry::Pages>);

impl Drop for Locked {
    fn drop(&mut self) {
        if !forked::is_child() {
            // SAFETY: as in `DeviceMemory`.
            unsafe { ManuallyDrop::drop(&mut self.0) };
        }
    }
}

impl fmt::Debug for Locked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Locked")
    }
}

/// Looks at a copy so often before it yields.
const LOOKS: u32 = 1000;

fn wait(mut flight: Box<dyn PendingCopy>) -> Result<(), Error> {
    let mut looks = 0;
    while !flight.poll().map_err(|e| failed("a copy to the reader's heap", e))? {
        looks += 1;
        if looks > LOOKS {
            std::thread::yield_now();
        }
    }
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use cuda_stand_in::driver::Driver;
    use hmem::share::HandleType;

    use super::*;

    #[test]
    #[cfg_attr(tsan, ignore = "the stand-in needs ThreadSanitizer's functions, which programs do not export")]
    fn what_a_peer_says_of_its_memory_is_not_believed() {
        let cu = Driver::start();
        let made = DeviceMemory::new(Device::Current.find().unwrap(), 1 << 20).unwrap();
        let fd = || made.fd().try_clone_to_owned().unwrap();
        let (bytes, said) = ([7u8; 64], made.0.export());
        let span = host(bytes.as_ptr(), bytes.len());
        let right = PeerMemory::adopt(&made.export(), fd()).unwrap();
        right.put(100, span).unwrap();
        assert_eq!(cu.read(made.addr() + 100, 64), bytes);
        for at in [right.len() - 63, right.len(), usize::MAX] {
            assert!(matches!(right.put(at, span), Err(Error::Broken(_))), "{at}");
        }
        // Longer than it is; and a descriptor of something else.
        let longer = PeerMemory::adopt(&Export { len: 1 << 40, ..said }.to_bytes(), fd()).unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        let other = PeerMemory::adopt(&made.export(), null.into()).unwrap();
        for memory in [longer, other] {
            assert!(matches!(memory.open(span), Err(Error::System(_))));
            assert!(matches!(memory.put(0, span), Err(Error::System(_))));
        }
        // What is no export of a descriptor's memory.
        let legacy = Export { handle_type: HandleType::Legacy, ..said }.to_bytes();
        for none in [&[0; Export::LEN][..], &[], &legacy] {
            assert!(matches!(PeerMemory::adopt(none, fd()), Err(Error::Broken(_))));
        }
    }
}
