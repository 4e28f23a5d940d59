//! The endpoint that peers read memory from.
//!
//! It has a fabric, a domain and a queue of its own, which are closed with it, before anything is polled
//! again: a provider may keep things of an endpoint that is closed until its domain makes progress. `tcp` of
//! libfabric 2.1.0 and `net` of 1.17 do with connections that were accepted and have not said yet whose they
//! are, and crash at the next progress.

use std::mem::MaybeUninit;
use std::os::fd::RawFd;

use fabric_client::{Object, Objects, Queue};
use ipc::Poller;
use libfabric_sys as fi;
use wire::session::MOST_ADDRESS;

use below::LENDER;
use below::{Fd, is_shallow};

/// Its queue, in which nothing completes.
const QUEUE: Queue = Queue { entries: 64, format: fi::FI_CQ_FORMAT_MSG, waits: true };
/// How often in a row it may fail to open until that is not tried again.
const TRIES: u32 = 3;

/// The endpoint, and the descriptor that is readable for it.
#[derive(Debug)]
pub(crate) struct Lender {
    open: Option<Open>,
    address: Vec<u8>,
    failures: u32,
    /// Readable when there is something to do, as long as `seen`. It stays the same one.
    poller: Poller,
    /// Whether descriptors of this provider's queues are of use.
    watched: bool,
}

#[derive(Debug)]
struct Open {
    objects: Objects,
    fd: Option<RawFd>,
}

impl Lender {
    pub(crate) fn new() -> Option<Lender> {
        let poller = Poller::new().ok()?;
        Some(Lender { open: None, address: Vec::new(), failures: 0, poller, watched: true })
    }

    /// Its domain and endpoint, which are opened if they are not. `None` if they cannot be.
    ///
    /// # Safety
    /// `info` is one that this core has given out.
    pub(crate) unsafe fn get(
        &mut self,
        core: &fi::Core,
        info: *mut fi::fi_info,
    ) -> Option<(&Object<fi::fid_domain>, &Object<fi::fid_ep>)> {
        if self.open.is_none() && self.failures < TRIES {
            // SAFETY: the caller's promise.
            match unsafe { self.try_open(core, info) } {
                Ok(()) => self.failures = 0,
                Err(why) => {
                    self.failures += 1;
                    log::info!("no endpoint that peers read memory from: {why}");
                }
            }
        }
        self.open.as_ref().map(|open| (&open.objects.domain, &open.objects.ep))
    }

    /// # Safety
    /// As for [`Lender::get`].
    unsafe fn try_open(&mut self, core: &fi::Core, info: *mut fi::fi_info) -> Result<(), String> {
        // SAFETY: the caller's promise.
        let objects = unsafe { Objects::open(core, info, QUEUE) }.map_err(|e| e.to_string())?;
        let why = |e| core.strerror(e);
        objects.ep.enable().map_err(why)?;
        let address = objects.ep.name(MOST_ADDRESS).map_err(why)?;
        if address.len() > LENDER {
            return Err(format!("its address has {} bytes", address.len()));
        }
        let fd = objects.cq.wait_fd().filter(|_| self.watched).filter(|&fd| {
            let fits = self.poller.add(&Fd(fd), 0).is_ok();
            if fits && !is_shallow(self.poller.fd()) {
                self.poller.remove(&Fd(fd));
                return false;
            }
            fits
        });
        self.address = address;
        self.open = Some(Open { objects, fd });
        Ok(())
    }

    /// The address of the endpoint.
    pub(crate) fn address(&self) -> &[u8] {
        &self.address
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.poller.fd()
    }

    /// Whether there is one that makes no descriptor readable.
    pub(crate) fn is_unseen(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.fd.is_none())
    }

    /// Descriptors of this provider's may stay readable for good.
    pub(crate) fn unwatch(&mut self) {
        self.watched = false;
        if let Some(fd) = self.open.as_mut().and_then(|open| open.fd.take()) {
            self.poller.remove(&Fd(fd));
        }
    }

    /// Has the provider make progress, where that needs calls.
    pub(crate) fn progress(&mut self) {
        let Some(open) = &self.open else { return };
        let mut entries: [MaybeUninit<fi::fi_cq_msg_entry>; 4] = [const { MaybeUninit::uninit() }; 4];
        let cq = open.objects.cq.at();
        // SAFETY: an open queue of this format, and room for so many entries. None is looked at: nothing is
        // posted here.
        let n = unsafe {
            let read = (*(*cq).ops).read;
            read.map_or(0, |read| read(cq, entries.as_mut_ptr().cast(), entries.len()))
        };
        if n == -(fi::FI_EAVAIL as isize) {
            // SAFETY: plain data, for which zeros are a value; an open queue, and an entry that asks for no
            // further data.
            unsafe {
                let mut entry: fi::fi_cq_err_entry = std::mem::zeroed();
                (*(*cq).ops).readerr.map(|readerr| readerr(cq, &mut entry, 0));
            }
        }
    }

    /// Whether it is safe to sleep on the descriptor.
    pub(crate) fn try_wait(&mut self) -> bool {
        self.progress();
        let Some(Open { objects, fd: Some(_) }) = &self.open else { return true };
        let (fabric, mut fids) = (objects.fabric.at(), [objects.cq.fid()]);
        // SAFETY: an open fabric, and a list of one open object of it.
        unsafe { (*(*fabric).ops).trywait.is_some_and(|f| f(fabric, fids.as_mut_ptr(), 1) == 0) }
    }

    /// Closes it, and all that belongs to it. Whether none of the memory that was registered there is
    /// accessed any more; if not, this is to be called again.
    pub(crate) fn close(&mut self) -> bool {
        let Some(Open { objects, fd }) = self.open.take() else { return true };
        let Objects { ep, regions, av, cq, domain, fabric } = objects;
        match ep.try_close() {
            Ok(()) => {
                if let Some(fd) = fd {
                    self.poller.remove(&Fd(fd));
                }
                // Nothing of the domain is called between this and its end.
                drop((regions, av, cq, domain, fabric));
                true
            }
            Err(ep) => {
                self.open = Some(Open { objects: Objects { ep, regions, av, cq, domain, fabric }, fd });
                false
            }
        }
    }

    /// Leaves all open for good.
    pub(crate) fn leak(&mut self) {
        if let Some(open) = self.open.take() {
            open.objects.leak();
        }
    }
}
