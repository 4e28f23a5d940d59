//! Memory registration, fi_mr(3).

use std::sync::{Arc, Mutex, PoisonError};

use arrayvec::ArrayVec;
use engine::{Access, MrId, Reg};
use hmem::registry::Pages;
use hmem::share::Dmabuf;
use hmem::{Caps, Kind, Span, registry};
use libc::{c_int, c_void, iovec};
use libfabric_sys as fi;

use crate::cntr::CntrFid;
use crate::domain::{DomainFid, Shared};
use crate::errno::Errno;
use crate::ffi::{Fid, Ref, arg, guard, header, known, obj, publish, put, reclaim};
use crate::info::answer::IOV_LIMIT;
use crate::xpu;

/// `struct fid_mr`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct MrFid {
    pub fid: fi::fid_mr,
    pub shared: Arc<Shared>,
    id: MrId,
    /// What was registered, the first stretch of it.
    pub memory: Span,
    /// What keeps device memory usable meanwhile.
    _pages: ArrayVec<Pages, IOV_LIMIT>,
    /// The dma-buf that it is of, if the program has passed one.
    _dmabuf: Option<Dmabuf>,
    cntrs: Mutex<Vec<Ref<CntrFid>>>,
    /// It is of more than one stretch.
    many: bool,
    /// What devices name it by.
    named: xpu::Named,
}

impl MrFid {
    /// Its memory, where commands of a device may name it, and what they name it by.
    pub(crate) fn for_device(&self) -> Option<(Span, &xpu::Named)> {
        (!self.many).then_some((self.memory, &self.named))
    }

    /// Why no adapter accesses it for peers, if none does.
    pub(crate) fn in_frames(&self) -> Option<&'static str> {
        match (self.many, self.memory.can(Caps::DEVICE) || self.memory.for_peers().stays()) {
            (true, _) => Some("it is of several buffers"),
            (false, false) => Some("the domain is without FI_MR_ALLOCATED"),
            (false, true) => None,
        }
    }
}

// SAFETY: `#[repr(C)]` with the fid first, made in `register` alone, with this table.
unsafe impl Fid for MrFid {
    const CLASS: usize = fi::FI_CLASS_MR;
    fn ops() -> *const fi::fi_ops {
        &raw const OPS
    }
}

const ACCESS: u64 =
    fi::FI_SEND | fi::FI_RECV | fi::FI_READ | fi::FI_WRITE | fi::FI_REMOTE_READ | fi::FI_REMOTE_WRITE;
/// Flags that ask for nothing that is not done anyway.
const FLAGS: u64 = fi::FI_RMA_EVENT | fi::FI_HMEM_HOST_ALLOC | fi::FI_HMEM_DEVICE_ONLY;

static OPS: fi::fi_ops =
    fi::fi_ops { close: Some(close), bind: Some(bind), control: Some(control), ..fi::NO_OPS };

pub(crate) static MR_OPS: fi::fi_ops_mr =
    fi::fi_ops_mr { reg: Some(reg), regv: Some(regv), regattr: Some(regattr), ..fi::NO_OPS_MR };

/// What all three ways to register come down to.
struct Wanted {
    iov: *const iovec,
    count: usize,
    access: u64,
    offset: u64,
    key: u64,
    flags: u64,
    context: *mut c_void,
    /// The dma-buf that the memory is of, and where it begins there.
    dmabuf: Option<(c_int, u64)>,
}

/// # Safety
/// `domain` is NULL or an open object, `w.iov` points to `w.count` stretches of memory that stay
/// mapped as long as they are registered, `mr` is NULL or valid for a write.
unsafe fn register(domain: *mut fi::fid, w: &Wanted, mr: *mut *mut fi::fid_mr) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let domain = unsafe { obj::<DomainFid, _>(domain)? };
    known(w.flags, FLAGS)?;
    if w.iov.is_null() || w.count == 0 || w.count > IOV_LIMIT || mr.is_null() {
        return Err(Errno::INVAL);
    }
    if w.access & !ACCESS != 0 || w.offset != 0 {
        return Err(Errno::INVAL);
    }
    registry::find_runtimes();
    if w.access & (fi::FI_REMOTE_READ | fi::FI_REMOTE_WRITE) != 0 {
        guard_memory();
    }
    let mut spans = ArrayVec::<Span, IOV_LIMIT>::new();
    let mut pages = ArrayVec::new();
    let write = w.access & (fi::FI_RECV | fi::FI_READ | fi::FI_REMOTE_WRITE) != 0;
    for i in 0..w.count {
        // SAFETY: the caller's promise.
        let part = unsafe { &*w.iov.add(i) };
        let (base, len) = (part.iov_base.expose_provenance(), part.iov_len);
        if base.checked_add(len).is_none() {
            return Err(Errno::INVAL);
        }
        // SAFETY: the application registers memory that it keeps as long; (NULL, SIZE_MAX) stands
        // for whatever is mapped whenever it is used.
        let span = unsafe { Span::new(base, len, registry::classify_to_register(base, len)) };
        let span = match domain.shared.allocated && len < usize::MAX {
            // SAFETY: with FI_MR_ALLOCATED the application registers memory that is there, until it closes
            // the registration (fi_mr(3)); all memory is no such.
            true => unsafe { span.lasting() },
            false => span,
        };
        match registry::get_pages(span, write) {
            Ok(kept) => pages.extend(kept),
            Err(e) => {
                log::info!("fi_mr_reg: {span:?} cannot be registered: {e}");
                return Err(Errno(e.errno()));
            }
        }
        spans.push(span);
    }
    // Without FI_MR_ALLOCATED the application may map other memory at the address meanwhile (fi_mr(3)).
    let dmabuf = match w.dmabuf {
        Some(named) => name_dmabuf(named, spans[0])?.filter(|_| domain.shared.allocated),
        None => None,
    };
    let mut access = Access::empty();
    access.set(Access::REMOTE_READ, w.access & fi::FI_REMOTE_READ != 0);
    access.set(Access::REMOTE_WRITE, w.access & fi::FI_REMOTE_WRITE != 0);
    let key = (!domain.shared.prov_key).then_some(w.key);
    let shared = domain.shared.clone();
    let (id, key) = shared.lock().mr_reg(&Reg { iov: &spans, access, key })?;
    shared.children.inc();
    let object = Box::new(MrFid {
        fid: fi::fid_mr { fid: header::<MrFid>(w.context), mem_desc: std::ptr::null_mut(), key },
        shared,
        id,
        memory: spans[0],
        _pages: pages,
        _dmabuf: dmabuf,
        cntrs: Mutex::default(),
        many: spans.len() > 1,
        named: Mutex::default(),
    });
    let fid: *mut fi::fid_mr = publish(object);
    // SAFETY: ours, and nothing else knows of it yet; the descriptor is the object itself.
    unsafe { (*fid).mem_desc = fid.cast() };
    // SAFETY: the caller's promise.
    unsafe { put(mr, fid)? };
    if let Some(eq) = domain.mr_eq.get() {
        eq.post(fi::FI_MR_COMPLETE, fid.cast(), w.context, 0);
    }
    Ok(())
}

/// The memory begins at this offset of a dma-buf. Without room for a copy of its descriptor the address alone
/// counts.
fn name_dmabuf((fd, offset): (c_int, u64), memory: Span) -> Result<Option<Dmabuf>, Errno> {
    match Dmabuf::new(fd, offset, memory) {
        Ok(dmabuf) => Ok(Some(dmabuf)),
        Err(e) if [libc::EMFILE, libc::ENFILE].contains(&e.errno()) => {
            log::info!("fi_mr_regattr: {memory:?} is registered by its address alone: {e}");
            Ok(None)
        }
        Err(e) => {
            let len = memory.len();
            log::info!("fi_mr_regattr: descriptor {fd} is no dma-buf with {len} bytes from {offset}: {e}");
            Err(Errno(e.errno()))
        }
    }
}

/// Peers may come to memory that is unmapped by then: sees to it that they get an error. Says so once where
/// that cannot be done as it should.
fn guard_memory() {
    use hmem::guard::Guard;
    let asked = crate::param::get().fault_handler;
    match hmem::guard::hold_registered(asked) {
        None | Some(Guard::Handler) => {}
        Some(Guard::Call) if !asked => log::info!("fault_handler=no: peers' accesses are made by the kernel"),
        Some(Guard::Call) => log::warn!(
            "no handler of SIGSEGV can be kept here (replaced by another library's, or not possible): small RMA and \
             atomics of peers are carried out by process_vm_readv(2), which takes longer; set libraries' own handlers \
             of SIGSEGV before the first memory is registered"
        ),
        Some(Guard::None) => log::warn!(
            "neither a handler of SIGSEGV nor process_vm_readv(2) is allowed: a peer's access to memory that is \
             registered but not mapped ends this process; set FI_STRAIT_FAULT_HANDLER=yes, or have the seccomp filter \
             allow rt_sigaction(2)"
        ),
    }
}

#[allow(clippy::too_many_arguments, reason = "libfabric's signature")]
unsafe extern "C" fn reg(
    fid: *mut fi::fid,
    buf: *const c_void,
    len: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    mr: *mut *mut fi::fid_mr,
    context: *mut c_void,
) -> c_int {
    let iov = iovec { iov_base: buf.cast_mut(), iov_len: len };
    // SAFETY: the application's arguments, for one stretch of memory.
    unsafe { regv(fid, &raw const iov, 1, access, offset, requested_key, flags, mr, context) }
}

#[allow(clippy::too_many_arguments, reason = "libfabric's signature")]
unsafe extern "C" fn regv(
    fid: *mut fi::fid,
    iov: *const iovec,
    count: usize,
    access: u64,
    offset: u64,
    key: u64,
    flags: u64,
    mr: *mut *mut fi::fid_mr,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        let wanted = Wanted { iov, count, access, offset, key, flags, context, dmabuf: None };
        // SAFETY: the application passes an open domain, valid memory, and a place for the answer.
        unsafe { register(fid, &wanted, mr) }
    })
}

unsafe extern "C" fn regattr(
    fid: *mut fi::fid,
    attr: *const fi::fi_mr_attr,
    flags: u64,
    mr: *mut *mut fi::fid_mr,
) -> c_int {
    guard(|| {
        if attr.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: the application passes attributes; only fields that every version has are read,
        // through places that form no reference to a structure that may be shorter than ours.
        let (mut wanted, domain) = unsafe {
            let wanted = Wanted {
                iov: (*attr).anon1.mr_iov,
                count: (*attr).iov_count,
                access: (*attr).access,
                offset: (*attr).offset,
                key: (*attr).requested_key,
                flags,
                context: (*attr).context,
                dmabuf: None,
            };
            (wanted, obj::<DomainFid, _>(fid)?)
        };
        // SAFETY: as above.
        let iface = unsafe { iface(attr, domain) };
        let place;
        if flags & fi::FI_MR_DMABUF != 0 {
            if wanted.count > 1 {
                log::info!(
                    "fi_mr_regattr: {} dma-bufs in one registration: register each by a call of its own",
                    wanted.count
                );
                return Err(Errno::INVAL);
            }
            // SAFETY: with that flag the application passes such a structure.
            let of = unsafe { arg(wanted.iov.cast::<fi::fi_mr_dmabuf>().cast_mut())? };
            place = mapping(of)?;
            let (flags, dmabuf) = (flags & !fi::FI_MR_DMABUF, Some((of.fd, of.offset)));
            wanted = Wanted { iov: &raw const place, count: 1, flags, dmabuf, ..wanted };
        }
        // SAFETY: as above. What it keeps is kept until the registration has it, too.
        let _kept = unsafe { check(iface, &wanted)? };
        // SAFETY: the application passes an open domain, valid memory, and a place for the answer.
        unsafe { register(fid, &wanted, mr) }
    })
}

/// Where a part of a dma-buf is mapped: links without adapters, and the program's own operations, know it by
/// its address alone.
fn mapping(of: &fi::fi_mr_dmabuf) -> Result<iovec, Errno> {
    if of.base_addr.is_null() {
        log::info!("fi_mr_regattr: a dma-buf is to be registered without base_addr: it has to be mapped");
        return Err(Errno::OPNOTSUPP);
    }
    let off = usize::try_from(of.offset).map_err(|_| Errno::INVAL)?;
    Ok(iovec { iov_base: of.base_addr.wrapping_byte_add(off), iov_len: of.len })
}

/// Whether the memory can be of the interface the application names. What it really is is found
/// out from the address.
///
/// # Safety
/// `w.iov` is NULL or points to `w.count` entries.
unsafe fn check(iface: fi::fi_hmem_iface, w: &Wanted) -> Result<ArrayVec<Pages, IOV_LIMIT>, Errno> {
    let kind = match iface {
        fi::FI_HMEM_SYSTEM => return Ok(ArrayVec::new()),
        fi::FI_HMEM_CUDA => Some(Kind::Cuda),
        fi::FI_HMEM_ROCR => Some(Kind::Rocr),
        fi::FI_HMEM_ZE => Some(Kind::Ze),
        _ => None,
    };
    let Some(kind) = kind.filter(|k| registry::is_here(*k)) else {
        log::info!("fi_mr_regattr: memory of interface {iface} asked, which this process does not have");
        return Err(Errno::OPNOTSUPP);
    };
    if w.iov.is_null() || w.count > IOV_LIMIT {
        return Err(Errno::INVAL);
    }
    let mut kept = ArrayVec::new();
    for i in 0..w.count {
        // SAFETY: the caller's promise.
        let part = unsafe { &*w.iov.add(i) };
        let at = part.iov_base.expose_provenance();
        // Host memory that the device's driver has pinned is its, too.
        match registry::of(kind).get_pages(at, part.iov_len, false) {
            Ok(pages) => kept.push(pages),
            Err(e) if hmem::agent::is_on() => {
                log::warn!("fi_mr_regattr: the memory at {at:#x} cannot be had by another process: {e}");
                return Err(Errno(e.errno()));
            }
            Err(_) => {
                log::info!("fi_mr_regattr: no {kind:?} memory is at {at:#x}");
                return Err(Errno::INVAL);
            }
        }
    }
    Ok(kept)
}

/// What kind of memory it is, as far as the application's version could say.
///
/// # Safety
/// `attr` points to attributes of the version the domain's fabric was opened with.
unsafe fn iface(attr: *const fi::fi_mr_attr, domain: &DomainFid) -> fi::fi_hmem_iface {
    if domain.shared.api_version < fi::FI_VERSION(1, 10) {
        return fi::FI_HMEM_SYSTEM;
    }
    // SAFETY: the caller's promise, and that version has the field.
    unsafe { (*attr).iface }
}

unsafe extern "C" fn close(fid: *mut fi::fid) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open registration and does not use it during the call.
        let mr = unsafe { obj::<MrFid, _>(fid)? };
        for (regions, number) in mr.named.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            regions.remove(number);
        }
        mr.shared.take_back(|engine| engine.mr_close(mr.id))?;
        mr.shared.children.dec();
        // SAFETY: as above.
        drop(unsafe { reclaim(mr) });
        Ok(())
    })
}

unsafe extern "C" fn bind(fid: *mut fi::fid, to: *mut fi::fid, flags: u64) -> c_int {
    guard(|| {
        // SAFETY: the application passes open objects.
        let (mr, class) = unsafe { (obj::<MrFid, _>(fid)?, arg(to)?.fclass) };
        match class {
            // Every endpoint of the domain serves every registration: there is nothing to do.
            fi::FI_CLASS_EP => known(flags, 0),
            fi::FI_CLASS_CNTR => {
                // SAFETY: as above.
                let cntr = unsafe { obj::<CntrFid, _>(to)? };
                let both = fi::FI_REMOTE_READ | fi::FI_REMOTE_WRITE;
                known(flags, both)?;
                if flags == 0 || !Arc::ptr_eq(&mr.shared, &cntr.shared) {
                    return Err(Errno::INVAL);
                }
                let of = |flag| (flags & flag != 0).then_some(cntr.id);
                mr.shared.lock().mr_bind_cntr(mr.id, of(fi::FI_REMOTE_READ), of(fi::FI_REMOTE_WRITE));
                mr.cntrs.lock().unwrap_or_else(PoisonError::into_inner).push(Ref::new(cntr));
                Ok(())
            }
            _ => Err(Errno::INVAL),
        }
    })
}

unsafe extern "C" fn control(fid: *mut fi::fid, command: c_int, argument: *mut c_void) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open registration.
        let mr = unsafe { obj::<MrFid, _>(fid)? };
        match command {
            fi::FI_GET_MR_XPU_DESC => {
                let (span, named) = mr.for_device().ok_or(Errno::OPNOTSUPP)?;
                // SAFETY: with this command the application passes such a structure; closing takes the number
                // out again.
                unsafe {
                    let desc = arg(argument.cast::<fi::fi_mr_xpu_desc>())?;
                    xpu::region_desc(&mr.shared, span, named, desc)
                }
            }
            // It is live from the start, and looked up whenever it is used.
            fi::FI_ENABLE | fi::FI_REFRESH => Ok(()),
            _ => Err(Errno::NOSYS),
        }
    })
}
