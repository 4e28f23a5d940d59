//! libfabric's objects: how they are opened, and closed when they are dropped.

use std::os::fd::RawFd;
use std::ptr::null_mut;

use libfabric_sys as fi;

use crate::Error;

/// What a call of libfabric's gives: 0, or a negative error number.
pub fn done(code: i32) -> Result<(), i32> {
    if code == 0 { Ok(()) } else { Err(code) }
}

/// An object that is closed when this is dropped. Which sort it is the type says.
#[derive(Debug)]
pub struct Object<T: Fid>(*mut T);

// SAFETY: an object of a provider's, which is used by one thread at a time: that is what FI_THREAD_DOMAIN
// asks for.
unsafe impl<T: Fid> Send for Object<T> {}

/// What has an `fid` at its front.
///
/// # Safety
/// The structure begins with a [`fi::fid`].
pub unsafe trait Fid {}

macro_rules! fids {
    ($($type:ident)*) => { $(
        const _: () = assert!(std::mem::offset_of!(fi::$type, fid) == 0);
        // SAFETY: checked by the line above.
        unsafe impl Fid for fi::$type {}
    )* };
}

fids! { fid_fabric fid_domain fid_av fid_cq fid_ep fid_mr }

impl<T: Fid> Object<T> {
    /// The object.
    #[inline]
    pub fn at(&self) -> *mut T {
        self.0
    }

    /// Its front.
    #[inline]
    pub fn fid(&self) -> *mut fi::fid {
        self.0.cast()
    }

    /// Calls `control` of its table; the argument is what the command takes.
    fn control(&self, command: i32, arg: *mut libc::c_void) -> Result<(), i32> {
        // SAFETY: the object is open, so that its table is there, which has this operation in every version;
        // callers give what the command takes.
        unsafe {
            let control = (*(*self.fid()).ops).control.ok_or(-fi::FI_ENOSYS)?;
            done(control(self.fid(), command, arg))
        }
    }

    /// Enables it.
    pub fn enable(&self) -> Result<(), i32> {
        self.control(fi::FI_ENABLE, null_mut())
    }

    /// Binds it to another object.
    pub fn bind<U: Fid>(&self, to: &Object<U>, flags: u64) -> Result<(), i32> {
        // SAFETY: likewise, and both are open.
        unsafe {
            let bind = (*(*self.fid()).ops).bind.ok_or(-fi::FI_ENOSYS)?;
            done(bind(self.fid(), to.fid(), flags))
        }
    }

    /// Closes it now; an error if it stays open.
    pub fn close(mut self) -> Result<(), i32> {
        self.end()
    }

    /// Closes it, and gives it back if it is busy.
    pub fn try_close(mut self) -> Result<(), Object<T>> {
        let at = self.0;
        match self.end() {
            Err(e) if e == -fi::FI_EBUSY => Err(Object(at)),
            Err(_) | Ok(()) => Ok(()),
        }
    }

    /// Leaves it open for good.
    pub fn leak(mut self) {
        self.0 = null_mut();
    }

    fn end(&mut self) -> Result<(), i32> {
        let fid = self.fid();
        if fid.is_null() {
            return Ok(());
        }
        self.0 = null_mut();
        // SAFETY: it is open, so that its table is there, which has this operation in every version; and it
        // is not used after this.
        unsafe {
            let close = (*(*fid).ops).close.ok_or(-fi::FI_ENOSYS)?;
            done(close(fid))
        }
    }
}

impl<T: Fid> Drop for Object<T> {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

impl Object<fi::fid_ep> {
    /// The address of an endpoint, of at most so many bytes.
    pub fn name(&self, most: usize) -> Result<Vec<u8>, i32> {
        let (mut name, mut len) = (vec![0u8; most], most);
        // SAFETY: an open endpoint, and room for `len` bytes.
        unsafe {
            let getname = (*(*self.at()).cm).getname.ok_or(-fi::FI_ENOSYS)?;
            done(getname(self.fid(), name.as_mut_ptr().cast(), &mut len))?;
        }
        name.truncate(len);
        Ok(name)
    }
}

impl Object<fi::fid_cq> {
    /// The descriptor of a queue, if it has one.
    pub fn wait_fd(&self) -> Option<RawFd> {
        let mut fd: libc::c_int = -1;
        // FI_GETWAIT of a queue with a descriptor writes that; of one without, nothing.
        self.control(fi::FI_GETWAIT, (&raw mut fd).cast()).ok().map(|()| fd).filter(|fd| *fd >= 0)
    }
}

/// Makes an object by a call that gets a place for it.
///
/// # Safety
/// A call that answers 0 has put a new object there, which nothing else closes.
pub unsafe fn made<T: Fid>(call: impl FnOnce(*mut *mut T) -> i32) -> Result<Object<T>, i32> {
    let mut at = null_mut();
    done(call(&raw mut at))?;
    if at.is_null() { Err(-fi::FI_EOTHER) } else { Ok(Object(at)) }
}

/// What a step of opening was about, and why it failed.
pub fn step<T>(core: &fi::Core, what: &str, found: Result<T, i32>) -> Result<T, Error> {
    found.map_err(|e| Error::of(core, what, e))
}

/// Opens the fabric and the domain of an info.
///
/// # Safety
/// `info` is an element of a list that this core has given out.
pub unsafe fn open_domain(
    core: &fi::Core,
    info: *mut fi::fi_info,
) -> Result<(Object<fi::fid_domain>, Object<fi::fid_fabric>), Error> {
    // SAFETY: the caller's promise; the fabric is open when the domain is opened, and has its table.
    unsafe {
        let fabric = step(core, "fi_fabric", core.fabric((*info).fabric_attr).map(Object))?;
        let open = (*(*fabric.at()).ops).domain;
        let domain = made(|at| open.map_or(-fi::FI_ENOSYS, |open| open(fabric.at(), info, at, null_mut())));
        Ok((step(core, "fi_domain", domain)?, fabric))
    }
}

/// How a completion queue is opened.
#[derive(Clone, Copy, Debug)]
pub struct Queue {
    /// Entries that it has at least.
    pub entries: usize,
    /// What they are.
    pub format: fi::fi_cq_format,
    /// With a descriptor, if the provider has one.
    pub waits: bool,
}

/// The objects of an endpoint, in the order in which they are closed.
#[derive(Debug)]
pub struct Objects {
    /// The endpoint.
    pub ep: Object<fi::fid_ep>,
    /// What is registered for it.
    pub regions: Vec<Object<fi::fid_mr>>,
    /// Its address vector.
    pub av: Object<fi::fid_av>,
    /// Its queue.
    pub cq: Object<fi::fid_cq>,
    /// Its domain.
    pub domain: Object<fi::fid_domain>,
    /// Its fabric.
    pub fabric: Object<fi::fid_fabric>,
}

impl Objects {
    /// Opens them; the endpoint is not enabled.
    ///
    /// # Safety
    /// `info` is an element of a list that this core has given out.
    pub unsafe fn open(core: &fi::Core, info: *mut fi::fi_info, queue: Queue) -> Result<Objects, Error> {
        let missing = -fi::FI_ENOSYS;
        // SAFETY: the caller's promise; each object is open when it is used for the next one, and has the
        // table of its sort.
        unsafe {
            let (domain, fabric) = open_domain(core, info)?;
            let ops = (*domain.at()).ops;
            let mut attr = fi::fi_av_attr { type_: (*(*info).domain_attr).av_type, ..std::mem::zeroed() };
            let av = made(|at| (*ops).av_open.map_or(missing, |f| f(domain.at(), &mut attr, at, null_mut())));
            let av = step(core, "fi_av_open", av)?;
            let cq = |wait_obj| {
                let mut attr = fi::fi_cq_attr { format: queue.format, wait_obj, ..std::mem::zeroed() };
                attr.size = queue.entries;
                made(|at| (*ops).cq_open.map_or(missing, |f| f(domain.at(), &mut attr, at, null_mut())))
            };
            let waiting = if queue.waits { cq(fi::FI_WAIT_FD) } else { Err(missing) };
            let cq = step(core, "fi_cq_open", waiting.or_else(|_| cq(fi::FI_WAIT_NONE)))?;
            let ep = made(|at| (*ops).endpoint.map_or(missing, |f| f(domain.at(), info, at, null_mut())));
            let ep: Object<fi::fid_ep> = step(core, "fi_endpoint", ep)?;
            step(core, "fi_ep_bind of the address vector", ep.bind(&av, 0))?;
            step(core, "fi_ep_bind of the queue", ep.bind(&cq, fi::FI_TRANSMIT | fi::FI_RECV))?;
            Ok(Objects { ep, regions: Vec::new(), av, cq, domain, fabric })
        }
    }

    /// Leaves all open for good.
    pub fn leak(self) {
        let Objects { ep, regions, av, cq, domain, fabric } = self;
        ep.leak();
        regions.into_iter().for_each(Object::leak);
        av.leak();
        cq.leak();
        domain.leak();
        fabric.leak();
    }
}
