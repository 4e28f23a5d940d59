//! A client of memory that the processor reaches by another address than the program names it by, as a device's.

use std::collections::HashMap;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hmem::client::{Client, Importer, Place, Registered, Segment};
use hmem::{Kind, Span};

/// What the client says to a device that asks for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Says {
    /// A dma-buf: a memfd stands for that.
    Dmabuf,
    /// An address that may be registered.
    Address,
    /// Nothing, as a client that was written before there were adapters.
    NotForDevices,
    /// Nothing but that it copies; and what it exports.
    Export,
    Opaque,
    /// What refuses, and the errno.
    NotAcquired(i32),
    NotPinned(i32),
    NotMapped(i32),
    /// Pieces of no byte, a descriptor that is none, one of a file that is no dma-buf, a dma-buf that is too short,
    /// two pieces.
    Empty,
    Closed,
    NoDmabuf,
    Short,
    TwoPieces,
}

/// How far a registration is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Acquired,
    Pinned,
    Mapped(Importer),
}

#[derive(Debug)]
struct Of {
    addr: usize,
    name: u64,
    step: Step,
}

type AtUnmap = Box<dyn Fn() + Send>;

struct State {
    says: Says,
    last: usize,
    all: HashMap<usize, Of>,
    /// Calls of dma_map and dma_unmap for a device.
    mapped: u32,
    unmapped: u32,
    /// Calls of dma_map for a device, also those that are refused.
    asked: u32,
    wrong: Vec<String>,
    at_unmap: Option<AtUnmap>,
}

/// The memory, which stays mapped.
pub struct Memory {
    at: usize,
    alias: usize,
    len: usize,
    fd: OwnedFd,
    null: OwnedFd,
    state: Mutex<State>,
}

fn map(fd: &OwnedFd, len: usize, prot: i32) -> usize {
    // SAFETY: a new mapping, where the kernel finds room.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at.expose_provenance()
}

impl Memory {
    /// So many bytes, of which a client is registered that says this.
    pub fn register(len: usize, says: Says) -> (Arc<Memory>, Registered) {
        // SAFETY: a new file, open nowhere else.
        let fd = unsafe {
            let fd = libc::memfd_create(c"device".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
            assert!(fd >= 0 && libc::ftruncate(fd, len as i64) == 0);
            assert_eq!(libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK), 0);
            OwnedFd::from_raw_fd(fd)
        };
        let (at, alias) = (map(&fd, len, libc::PROT_NONE), map(&fd, len, libc::PROT_READ | libc::PROT_WRITE));
        let state = State {
            says,
            last: 0,
            all: HashMap::new(),
            mapped: 0,
            unmapped: 0,
            asked: 0,
            wrong: Vec::new(),
            at_unmap: None,
        };
        let null = std::fs::File::open("/dev/null").expect("/dev/null").into();
        let memory = Arc::new(Memory { at, alias, len, fd, null, state: Mutex::new(state) });
        let registered = hmem::client::register(Box::new(Plug(memory.clone()))).expect("a client");
        (memory, registered)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn says(&self, says: Says) {
        self.state().says = says;
    }

    /// What is called for each end of a device's mapping, before that ends.
    pub fn at_unmap(&self, body: impl Fn() + Send + 'static) {
        self.state().at_unmap = Some(Box::new(body));
    }

    /// A part of it.
    pub fn part(&self, off: usize, len: usize) -> Span {
        assert!(off + len <= self.len);
        // SAFETY: it stays mapped, and its client is registered for as long as the test uses it.
        unsafe { Span::new(self.at + off, len, Kind::Client) }
    }

    pub fn span(&self) -> Span {
        self.part(0, self.len)
    }

    /// The same for the processor alone, whatever the client says.
    pub fn alias(&self) -> Span {
        // SAFETY: it stays mapped.
        unsafe { Span::new(self.alias, self.len, Kind::System).lasting() }
    }

    /// The names of all registrations that are pinned.
    pub fn names(&self) -> Vec<u64> {
        self.state().all.values().filter(|of| of.name != 0).map(|of| of.name).collect()
    }

    /// Takes all of it back.
    pub fn invalidate(&self, by: &Registered) {
        self.names().into_iter().for_each(|name| {
            // One that was evicted meanwhile is gone.
            let _ = by.invalidate(name);
        });
    }

    /// How often it was mapped for a device, and how often that has ended.
    pub fn device_maps(&self) -> (u32, u32) {
        let state = self.state();
        (state.mapped, state.unmapped)
    }

    /// How often dma_map was called for a device.
    pub fn asked(&self) -> u32 {
        self.state().asked
    }

    /// How often it was acquired.
    pub fn acquired(&self) -> u32 {
        self.state().last as u32
    }

    /// Each callback came in its turn.
    pub fn check(&self) {
        let state = self.state();
        assert!(state.wrong.is_empty(), "{:?}", state.wrong);
    }

    /// The same, and nothing is registered any more.
    pub fn check_end(&self) {
        self.check();
        let state = self.state();
        assert!(state.all.is_empty(), "{:?}", state.all);
        assert_eq!(state.mapped, state.unmapped);
    }

    /// A registration goes from one step to the next.
    fn step(&self, ctx: usize, from: Step, to: Option<Step>) {
        let mut state = self.state();
        let found = state.all.get_mut(&ctx).filter(|of| of.step == from);
        let is_right = match (found, to) {
            (Some(of), Some(to)) => {
                of.step = to;
                true
            }
            (Some(_), None) => state.all.remove(&ctx).is_some(),
            (None, _) => false,
        };
        if !is_right {
            let found = format!("{:?} of {ctx}: from {from:?} to {to:?}", state.all.get(&ctx));
            state.wrong.push(found);
        }
    }
}

struct Plug(Arc<Memory>);

impl Client for Plug {
    fn name(&self) -> String {
        "memory of a check".into()
    }

    fn serves_devices(&self) -> bool {
        self.0.state().says != Says::NotForDevices
    }

    fn acquire(&self, addr: usize, _len: usize) -> Result<Option<usize>, i32> {
        let mut state = self.0.state();
        if addr.wrapping_sub(self.0.at) >= self.0.len {
            return Ok(None);
        }
        if let Says::NotAcquired(errno) = state.says {
            return Err(errno);
        }
        state.last += 1;
        let ctx = state.last;
        state.all.insert(ctx, Of { addr, name: 0, step: Step::Acquired });
        Ok(Some(ctx))
    }

    fn get_pages(
        &self,
        ctx: usize,
        addr: usize,
        len: usize,
        _write: bool,
        name: u64,
    ) -> Result<Vec<Segment>, i32> {
        let says = self.0.state().says;
        if let Says::NotPinned(errno) = says {
            return Err(errno);
        }
        if addr + len > self.0.at + self.0.len {
            return Err(libc::EINVAL);
        }
        self.0.step(ctx, Step::Acquired, Some(Step::Pinned));
        if let Some(of) = self.0.state().all.get_mut(&ctx) {
            of.name = name;
        }
        let place = Place::Cpu(self.0.alias + (addr - self.0.at));
        let half = len / 2;
        Ok(match says {
            Says::TwoPieces => vec![Segment { len: half, place }, Segment { len: len - half, place }],
            _ => vec![Segment { len, place }],
        })
    }

    fn dma_map(&self, ctx: usize, by: Importer, segments: &mut Vec<Segment>) -> Result<(), i32> {
        let says = self.0.state().says;
        let addr = self.0.state().all.get(&ctx).map_or(0, |of| of.addr);
        if by == Importer::Device {
            self.0.state().asked += 1;
            if let Says::NotMapped(errno) = says {
                return Err(errno);
            }
            self.0.state().mapped += 1;
        }
        self.0.step(ctx, Step::Pinned, Some(Step::Mapped(by)));
        let off = (addr - self.0.at) as u64;
        match (by, says) {
            (Importer::Process, Says::TwoPieces) => {
                let half = segments[0].len;
                segments[1].place = Place::Cpu(self.0.alias + off as usize + half);
            }
            (Importer::Process, _) | (Importer::Device, Says::Address) => {}
            (_, Says::Export | Says::Opaque) => segments[0].place = Place::Opaque,
            (_, Says::Closed) => segments[0].place = Place::File(1 << 20, off),
            (_, Says::NoDmabuf) => segments[0].place = Place::File(self.0.null.as_raw_fd(), off),
            (_, Says::Short) => {
                segments[0].place = Place::File(self.0.fd.as_raw_fd(), off + self.0.len as u64);
            }
            (_, Says::Empty) => segments[0].len = 0,
            _ => segments[0].place = Place::File(self.0.fd.as_raw_fd(), off),
        }
        Ok(())
    }

    fn dma_unmap(&self, ctx: usize, by: Importer, _segments: &[Segment]) {
        if by == Importer::Device {
            let mut state = self.0.state();
            state.unmapped += 1;
            if let Some(body) = &state.at_unmap {
                body();
            }
        }
        self.0.step(ctx, Step::Mapped(by), Some(Step::Pinned));
    }

    fn put_pages(&self, ctx: usize, _segments: &[Segment]) {
        self.0.step(ctx, Step::Pinned, Some(Step::Acquired));
    }

    fn release(&self, ctx: usize) {
        self.0.step(ctx, Step::Acquired, None);
    }

    unsafe fn copy(
        &self,
        _ctx: usize,
        _addr: usize,
        _host: *mut u8,
        _len: usize,
        _to_host: bool,
    ) -> Option<Result<(), i32>> {
        None
    }

    fn export_dmabuf(&self, _ctx: usize, addr: usize, _len: usize) -> Result<(OwnedFd, u64), i32> {
        match self.0.state().says {
            Says::Export => Ok((self.0.fd.try_clone().map_err(|_| libc::EMFILE)?, (addr - self.0.at) as u64)),
            _ => Err(libc::EOPNOTSUPP),
        }
    }
}
