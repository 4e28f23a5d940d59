//! Address vectors, fi_av(3).

use std::ffi::CStr;
use std::sync::{Arc, OnceLock};

use engine::AvId;
use libc::{c_char, c_int, c_void};
use libfabric_sys as fi;
use wire::Addr;

use crate::domain::{DomainFid, Shared};
use crate::eq::{EqFid, Failure};
use crate::errno::Errno;
use crate::ffi::{Counted, Fid, Ref, Refs, arg, guard, guard_or, header, known, obj, publish, put, reclaim};
use crate::info::addr;
use crate::text::put_text;

mod names;
mod set;

pub(crate) use set::AvSetFid;

/// `struct fid_av`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct AvFid {
    pub fid: fi::fid_av,
    pub shared: Arc<Shared>,
    pub id: AvId,
    /// Endpoints bound to it.
    pub refs: Refs,
    /// Insertions are answered in the bound event queue.
    events: bool,
    eq: OnceLock<Ref<EqFid>>,
}

// SAFETY: `#[repr(C)]` with the fid first, made in `open` alone, with this table.
unsafe impl Fid for AvFid {
    const CLASS: usize = fi::FI_CLASS_AV;
    fn ops() -> *const fi::fi_ops {
        &raw const OPS
    }
}

// SAFETY: the raw pointers inside the fid are written once, before the object is shared, and followed
// by the application alone; everything else is synchronized by itself.
unsafe impl Send for AvFid {}
// SAFETY: as above.
unsafe impl Sync for AvFid {}

impl Counted for AvFid {
    fn refs(&self) -> &Refs {
        &self.refs
    }
}

/// An address to insert, or why it is none.
type Candidate = Result<Addr, Errno>;

impl AvFid {
    /// Inserts, answers for each address, and returns how many went in (none in the return value
    /// where that goes to the event queue).
    ///
    /// # Safety
    /// `fi_addr` is NULL or has room for as many answers as there are addresses; with `FI_SYNC_ERR`,
    /// so has `context` for as many `int`s.
    unsafe fn insert(
        &self,
        addrs: impl Iterator<Item = Candidate>,
        fi_addr: *mut fi::fi_addr_t,
        flags: u64,
        context: *mut c_void,
    ) -> Result<usize, Errno> {
        let sync_err = flags & fi::FI_SYNC_ERR != 0;
        if flags & !(fi::FI_MORE | fi::FI_SYNC_ERR) != 0 || sync_err && self.events {
            return Err(Errno::BADFLAGS);
        }
        if sync_err && context.is_null() {
            return Err(Errno::INVAL);
        }
        let eq = match (self.events, self.eq.get()) {
            (false, _) => None,
            (true, Some(eq)) => Some(eq),
            (true, None) => return Err(Errno::NOEQ),
        };
        let mut engine = self.shared.lock();
        let mut inserted = 0;
        for (i, candidate) in addrs.enumerate() {
            let (at, err) = match candidate {
                Ok(a) => {
                    inserted += 1;
                    (engine.av_insert(self.id, a), None)
                }
                Err(e) => (fi::FI_ADDR_NOTAVAIL, Some(e)),
            };
            // SAFETY: the caller's promise.
            unsafe {
                if !fi_addr.is_null() {
                    fi_addr.add(i).write(at);
                }
                if sync_err {
                    context.cast::<c_int>().add(i).write(err.map_or(0, |e| e.0));
                }
            }
            if let (Some(eq), Some(err)) = (eq, err) {
                let fid = (&raw const self.fid).addr();
                eq.post_error(Failure { fid, context: context.addr(), data: i as u64, err });
            }
        }
        drop(engine);
        let Some(eq) = eq else { return Ok(inserted) };
        eq.post(fi::FI_AV_COMPLETE, (&raw const self.fid).cast(), context, inserted as u64);
        Ok(0)
    }
}

/// What can be sent to: a wildcard or no port is no endpoint's name.
fn sendable(a: Addr) -> Candidate {
    if a.ip().is_unspecified() || a.port() == 0 { Err(Errno::INVAL) } else { Ok(a) }
}

static OPS: fi::fi_ops = fi::fi_ops { close: Some(close), bind: Some(bind), ..fi::NO_OPS };

static AV_OPS: fi::fi_ops_av = fi::fi_ops_av {
    insert: Some(insert),
    insertsvc: Some(insertsvc),
    insertsym: Some(insertsym),
    remove: Some(remove),
    lookup: Some(lookup),
    straddr: Some(straddr),
    lookup2: Some(lookup2),
    av_set: Some(open_set),
    ..fi::NO_OPS_AV
};

/// `fi_ops_domain::av_open`.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fi::fid_domain,
    attr: *mut fi::fi_av_attr,
    av: *mut *mut fi::fid_av,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open domain and NULL or attributes, of one layout in all
        // versions.
        let (domain, attr) = unsafe { (obj::<DomainFid, _>(domain)?, attr.as_ref()) };
        let attr = attr.copied().unwrap_or_default();
        if !attr.name.is_null() || attr.flags & fi::FI_READ != 0 {
            log::info!("fi_av_open: an address vector shared by name asked, private ones offered");
            return Err(Errno::NOSYS);
        }
        known(attr.flags, fi::FI_EVENT | fi::FI_SYMMETRIC)?;
        if attr.type_ > fi::FI_AV_TABLE || attr.rx_ctx_bits > 0 || av.is_null() {
            return Err(Errno::INVAL);
        }
        let shared = domain.shared.clone();
        let id = shared.lock().av_open();
        shared.children.inc();
        let fid = publish(Box::new(AvFid {
            fid: fi::fid_av { fid: header::<AvFid>(context), ops: (&raw const AV_OPS).cast_mut() },
            shared,
            id,
            refs: Refs::default(),
            events: attr.flags & fi::FI_EVENT != 0,
            eq: OnceLock::new(),
        }));
        // SAFETY: the application passes a place for the answer.
        unsafe { put(av, fid) }
    })
}

unsafe extern "C" fn close(fid: *mut fi::fid) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open vector and does not use it during the call.
        let av = unsafe { obj::<AvFid, _>(fid)? };
        av.refs.none()?;
        av.shared.close_in(None, |engine| engine.av_close(av.id))?;
        av.shared.children.dec();
        // SAFETY: as above, and no endpoint refers to it.
        drop(unsafe { reclaim(av) });
        Ok(())
    })
}

unsafe extern "C" fn bind(fid: *mut fi::fid, to: *mut fi::fid, flags: u64) -> c_int {
    guard(|| {
        // SAFETY: the application passes open objects.
        let (av, eq) = unsafe { (obj::<AvFid, _>(fid)?, obj::<EqFid, _>(to)?) };
        known(flags, 0)?;
        av.eq.set(Ref::new(eq)).map_err(|_| Errno::INVAL)
    })
}

unsafe extern "C" fn insert(
    av: *mut fi::fid_av,
    addr: *const c_void,
    count: usize,
    fi_addr: *mut fi::fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open vector.
        let av = unsafe { obj::<AvFid, _>(av)? };
        if addr.is_null() && count > 0 {
            return Err(Errno::INVAL);
        }
        let step = addr::length(av.shared.addr_format);
        let each = (0..count).map(|i| {
            // SAFETY: the application passes `count` addresses in the domain's format, one behind
            // the other.
            unsafe { addr::from_sockaddr(addr.byte_add(i * step), step) }.and_then(sendable)
        });
        // SAFETY: the application passes NULL or room for as many answers.
        unsafe { av.insert(each, fi_addr, flags, context) }
    })
}

unsafe extern "C" fn insertsvc(
    av: *mut fi::fid_av,
    node: *const c_char,
    service: *const c_char,
    fi_addr: *mut fi::fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the application's arguments, for one node and one service.
    unsafe { insertsym(av, node, 1, service, 1, fi_addr, flags, context) }
}

#[allow(clippy::too_many_arguments, reason = "libfabric's signature")]
unsafe extern "C" fn insertsym(
    av: *mut fi::fid_av,
    node: *const c_char,
    nodecnt: usize,
    service: *const c_char,
    svccnt: usize,
    fi_addr: *mut fi::fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open vector.
        let av = unsafe { obj::<AvFid, _>(av)? };
        if node.is_null() || service.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: both are strings.
        let (node, service) = unsafe { (CStr::from_ptr(node), CStr::from_ptr(service)) };
        let (node, service) = (node.to_string_lossy(), service.to_string_lossy());
        let family =
            if av.shared.addr_format == fi::FI_SOCKADDR_IN6 { libc::AF_INET6 } else { libc::AF_INET };
        let found = names::symmetric(&node, nodecnt, &service, svccnt, family);
        // SAFETY: the application passes NULL or room for an answer for every pair.
        unsafe { av.insert(found.map(|a| a.and_then(sendable)), fi_addr, flags, context) }
    })
}

/// fi_av_set(3).
unsafe extern "C" fn open_set(
    av: *mut fi::fid_av,
    attr: *mut fi::fi_av_set_attr,
    set: *mut *mut fi::fid_av_set,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open vector and attributes, of one layout in all versions.
        let (av, attr) = unsafe { (obj::<AvFid, _>(av)?, arg(attr)?) };
        if set.is_null() {
            return Err(Errno::INVAL);
        }
        let made = set::make(&av.shared, av.id, Box::new(Ref::new(av)), attr, context)?;
        // SAFETY: the application passes a place for the answer.
        unsafe { put(set, made) }
    })
}

unsafe extern "C" fn remove(
    av: *mut fi::fid_av,
    fi_addr: *mut fi::fi_addr_t,
    count: usize,
    flags: u64,
) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open vector.
        let av = unsafe { obj::<AvFid, _>(av)? };
        if flags != 0 || fi_addr.is_null() && count > 0 {
            return Err(Errno::INVAL);
        }
        let mut engine = av.shared.lock();
        for i in 0..count {
            // SAFETY: the application passes `count` addresses.
            let at = unsafe { *fi_addr.add(i) };
            // FI_EINVAL is fi_av(3)'s word for it since libfabric 2.5; before, it had none.
            engine.av_remove(av.id, at).map_err(|_| Errno::INVAL)?;
        }
        Ok(())
    })
}

unsafe extern "C" fn lookup(
    av: *mut fi::fid_av,
    fi_addr: fi::fi_addr_t,
    addr: *mut c_void,
    addrlen: *mut usize,
) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open vector, and room for a length, which is written.
        let (av, room) = unsafe { (obj::<AvFid, _>(av)?, addrlen.as_mut().ok_or(Errno::INVAL)?) };
        let found = av.shared.lock().av_lookup(av.id, fi_addr).ok_or(Errno::INVAL)?;
        let (bytes, len) = addr::to_sockaddr(found, av.shared.addr_format);
        let n = len.min(*room);
        if addr.is_null() && n > 0 {
            return Err(Errno::INVAL);
        }
        // SAFETY: the application's buffer has `room` bytes, and `n` is no more.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), addr.cast(), n) };
        *room = len;
        Ok(())
    })
}

/// `fi_ops_av::lookup2`: with FI_XPU what a device names the peer by, else as fi_av_lookup.
pub(crate) unsafe extern "C" fn lookup2(
    av: *mut fi::fid_av,
    fi_addr: fi::fi_addr_t,
    buf: *mut c_void,
    len: *mut usize,
    flags: u64,
    ctx: *mut fi::fid_xpu_ctx,
) -> c_int {
    if flags == 0 && ctx.is_null() {
        // SAFETY: the application's arguments, for the call without flags.
        return unsafe { lookup(av, fi_addr, buf, len) };
    }
    guard(|| {
        // SAFETY: the application passes an open vector.
        let av = unsafe { obj::<AvFid, _>(av)? };
        if flags != fi::FI_XPU {
            return Err(Errno::BADFLAGS);
        }
        av.shared.lock().av_lookup(av.id, fi_addr).ok_or(Errno::INVAL)?;
        // SAFETY: as above: an open context, and room of that length.
        unsafe { crate::xpu::lookup(&av.shared, fi_addr, buf, len, ctx) }
    })
}

unsafe extern "C" fn straddr(
    av: *mut fi::fid_av,
    addr: *const c_void,
    buf: *mut c_char,
    len: *mut usize,
) -> *const c_char {
    guard_or(buf.cast_const(), || {
        // SAFETY: the application passes an open vector, an address of its domain's format, and a
        // buffer with its length.
        unsafe {
            let Ok(av) = obj::<AvFid, _>(av) else { return buf.cast_const() };
            let Some(room) = len.as_mut() else { return buf.cast_const() };
            let step = addr::length(av.shared.addr_format);
            let s = addr::from_sockaddr(addr, step).map_or("no address".to_string(), addr::text);
            put_text(buf, *room, &s);
            *room = s.len() + 1;
        }
        buf.cast_const()
    })
}
