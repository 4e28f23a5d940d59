//! The memory domain: windows that UCP allocates through us, registrations, remote keys.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Arc;

use link::{Mapping, WindowId};
use ucx_sys::{self as ucx, DeregParams, MdBase, MdValues, Status};

use crate::device;
use crate::ffi::guard;
use crate::param;
use crate::region::{Regions, Seat, Seats, Slot, Wait, regions};
use crate::tables::{self, Served};

/// A memory domain as UCX holds it.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Md {
    base: MdBase,
    pub(crate) served: &'static Served,
    pub(crate) regions: Arc<Regions>,
    /// Whether other memory than windows can be reached.
    pub(crate) cma: bool,
}

/// What stands for registered or allocated memory.
#[derive(Debug)]
struct Memh {
    addr: usize,
    len: usize,
    number: u64,
    window: Option<WindowId>,
    slot: Option<Slot>,
}

pub(crate) unsafe extern "C" fn open(
    component: *const c_void,
    name: *const c_char,
    _config: *const c_void,
    md: *mut *mut Md,
) -> Status {
    guard(|| {
        let Some(served) = tables::of_component(component) else { return ucx::UCS_ERR_INVALID_PARAM };
        // SAFETY: UCX passes one of the names that `query_resources` told, and a place for the answer.
        unsafe {
            if !name.is_null() && CStr::from_ptr(name) == device::NAME {
                let Some(made) = device::md::Md::new(served, component) else { return ucx::UCS_ERR_IO_ERROR };
                md.cast::<*mut device::md::Md>().write(made);
                return ucx::UCS_OK;
            }
        }
        let Ok(regions) = regions() else { return ucx::UCS_ERR_IO_ERROR };
        let base = MdBase { ops: served.md_ops.as_ptr().cast(), component };
        let cma = match param::get().cma {
            true => link::cma_allowed(),
            false => Err("STRAIT_UCX_CMA=n".into()),
        };
        match &cma {
            Ok(how) => log::info!("large messages and memory of peers: CMA ({how}), else rings"),
            Err(why) => log::info!("large messages and memory of peers: rings and windows only: {why}"),
        }
        let cma = cma.is_ok();
        // SAFETY: UCX gives a place for the answer.
        unsafe { md.write(Box::into_raw(Box::new(Md { base, served, regions, cma }))) };
        ucx::UCS_OK
    })
}

/// The names of the domains: the host's, and the device's where there can be any.
pub(crate) unsafe extern "C" fn query_resources(
    component: *mut c_void,
    resources: *mut *mut c_void,
    count: *mut c_uint,
) -> Status {
    guard(|| {
        let Some(served) = tables::of_component(component) else { return ucx::UCS_ERR_INVALID_PARAM };
        // SAFETY: UCX's arguments, passed on.
        let status = unsafe { (served.host.query_single_md_resource)(component, resources.cast(), count) };
        if status != ucx::UCS_OK || !device::is_here() {
            return status;
        }
        // SAFETY: what UCX has made is of malloc(3), which it gives back to free(3), and of so many names
        // of that many bytes.
        unsafe {
            let name = device::NAME.to_bytes_with_nul();
            let more = libc::realloc((*resources).cast(), 2 * ucx::UCT_MD_NAME_MAX).cast::<u8>();
            if !more.is_null() {
                more.add(ucx::UCT_MD_NAME_MAX).copy_from_nonoverlapping(name.as_ptr(), name.len());
                *resources = more.cast();
                *count = 2;
            }
        }
        ucx::UCS_OK
    })
}

pub(crate) unsafe extern "C" fn close(md: *mut Md) {
    // SAFETY: made by `open`, and closed once.
    guard(|| drop(unsafe { Box::from_raw(md) }));
}

pub(crate) unsafe extern "C" fn query(md: *mut Md, attr: *mut c_void) -> Status {
    guard(|| {
        // SAFETY: a domain of ours.
        let md = unsafe { &*md };
        let host = 1u64 << ucx::UCS_MEMORY_TYPE_HOST;
        let mut flags = ucx::UCT_MD_FLAG_ALLOC
            | ucx::UCT_MD_FLAG_FIXED
            | ucx::UCT_MD_FLAG_NEED_RKEY
            | ucx::UCT_MD_FLAG_INVALIDATE;
        if md.served.host.epoch() >= ucx::Epoch::V1_15 {
            flags |= ucx::UCT_MD_FLAG_INVALIDATE_RMA | ucx::UCT_MD_FLAG_INVALIDATE_AMO;
        }
        let mut values = MdValues {
            max_alloc: u64::MAX,
            alloc_mem_types: host,
            access_mem_types: host,
            cache_mem_types: host,
            rkey_packed_size: KEY as u64,
            ..MdValues::default()
        };
        if md.cma {
            flags |= ucx::UCT_MD_FLAG_REG;
            values.max_reg = u64::MAX;
            values.reg_mem_types = host;
            // A note in a table, whatever the length.
            values.reg_cost = ucx::Linear { c: 60e-9, m: 0.0 };
        }
        values.flags = flags;
        // SAFETY: UCX gives a structure of its release.
        unsafe { md.served.host.layout.write_md_attr(attr, &values) };
        ucx::UCS_OK
    })
}

/// # Safety
/// `length`, `address` and `memh` must be valid; `md` one of ours; memory at a fixed address the caller's.
unsafe fn allocate(
    md: *mut Md,
    length: *mut usize,
    address: *mut usize,
    mem_type: c_int,
    flags: c_uint,
    memh: *mut *mut c_void,
) -> Status {
    guard(|| {
        // SAFETY: a domain of ours.
        let md = unsafe { &*md };
        if mem_type != ucx::UCS_MEMORY_TYPE_HOST {
            return ucx::UCS_ERR_UNSUPPORTED;
        }
        // SAFETY: the caller's promise.
        let (len, at) = unsafe { (*length, *address) };
        let Some(len) = len.max(1).checked_next_multiple_of(4096) else { return ucx::UCS_ERR_NO_MEMORY };
        let fixed = flags & ucx::UCT_MD_MEM_FLAG_FIXED != 0;
        if fixed && (at == 0 || at % 4096 != 0) {
            return ucx::UCS_ERR_INVALID_PARAM;
        }
        // The range is the caller's, whatever is mapped there, as with UCX's own transports.
        let made = if fixed {
            // SAFETY: the caller's promise.
            unsafe { md.regions.windows.create_over(len, at) }
        } else {
            md.regions.windows.create(len, None)
        };
        let (window, mapping) = match made {
            Ok(made) => made,
            Err(e) => {
                log::debug!("no window of {len} bytes: {e}");
                return ucx::UCS_ERR_NO_MEMORY;
            }
        };
        let addr = mapping.base().expose_provenance();
        let number = md.regions.add(addr, len);
        let made = Box::new(Memh { addr, len, number, window: Some(window), slot: None });
        // SAFETY: the caller's promise.
        unsafe {
            *length = len;
            *address = addr;
            *memh = Box::into_raw(made).cast();
        }
        ucx::UCS_OK
    })
}

pub(crate) unsafe extern "C" fn mem_alloc(
    md: *mut Md,
    length: *mut usize,
    address: *mut usize,
    mem_type: c_int,
    flags: c_uint,
    _name: *const c_char,
    memh: *mut *mut c_void,
) -> Status {
    // SAFETY: UCX's arguments.
    unsafe { allocate(md, length, address, mem_type, flags, memh) }
}

/// Since 1.19.
pub(crate) unsafe extern "C" fn mem_alloc_v2(
    md: *mut Md,
    length: *mut usize,
    address: *mut usize,
    mem_type: c_int,
    _sys_dev: u8,
    flags: c_uint,
    _name: *const c_char,
    memh: *mut *mut c_void,
) -> Status {
    // SAFETY: UCX's arguments.
    unsafe { allocate(md, length, address, mem_type, flags, memh) }
}

pub(crate) unsafe extern "C" fn mem_free(md: *mut Md, memh: *mut c_void) -> Status {
    guard(|| {
        // SAFETY: a domain of ours, and a handle that it made, given back once.
        let (md, memh) = unsafe { (&*md, Box::from_raw(memh.cast::<Memh>())) };
        md.release(*memh, Wait::Bounded);
        ucx::UCS_OK
    })
}

/// What is registered needs no preparation, so the fourth argument (flags, parameters since 1.14)
/// has nothing to say.
pub(crate) unsafe extern "C" fn mem_reg(
    md: *mut Md,
    address: *mut c_void,
    length: usize,
    _params: usize,
    memh: *mut *mut c_void,
) -> Status {
    guard(|| {
        // SAFETY: a domain of ours.
        let md = unsafe { &*md };
        let addr = address.expose_provenance();
        let number = md.regions.add(addr, length);
        let made = Box::new(Memh { addr, len: length, number, window: None, slot: None });
        // SAFETY: UCX gives a place for the answer.
        unsafe { *memh = Box::into_raw(made).cast() };
        ucx::UCS_OK
    })
}

pub(crate) unsafe extern "C" fn mem_dereg(md: *mut Md, params: *const DeregParams) -> Status {
    // SAFETY: UCX's arguments: a handle that this domain made, given back once.
    unsafe { deregister(params, |memh, wait| (*md).release(*Box::from_raw(memh.cast::<Memh>()), wait)) }
}

/// Gives a handle back, and tells UCX that its memory is not accessed any more, if it wants to know. Then this waits
/// for accesses of peers that are under way until they are over ([`Regions::invalidate`]); without a completion to
/// call it waits for 1 s at most, as UCX's other transports do not wait at all.
///
/// # Safety
/// UCX's parameters; `release` may trust the handle.
pub(crate) unsafe fn deregister(
    params: *const DeregParams,
    release: impl FnOnce(*mut c_void, Wait),
) -> Status {
    guard(|| {
        // SAFETY: the caller's promise.
        let params = unsafe { &*params };
        if params.field_mask & ucx::UCT_MD_MEM_DEREG_FIELD_MEMH == 0 || params.memh.is_null() {
            return ucx::UCS_ERR_INVALID_PARAM;
        }
        let given = |field| params.field_mask & field != 0;
        let invalidate = given(ucx::UCT_MD_MEM_DEREG_FIELD_FLAGS)
            && params.flags & ucx::UCT_MD_MEM_DEREG_FLAG_INVALIDATE != 0;
        if invalidate && (!given(ucx::UCT_MD_MEM_DEREG_FIELD_COMPLETION) || params.comp.is_null()) {
            return ucx::UCS_ERR_INVALID_PARAM;
        }
        release(params.memh, if invalidate { Wait::Over } else { Wait::Bounded });
        if invalidate {
            // SAFETY: the completion that UCX gave, for this one event.
            unsafe { crate::ep::complete(params.comp, ucx::UCS_OK) };
        }
        ucx::UCS_OK
    })
}

impl Md {
    fn release(&self, memh: Memh, wait: Wait) {
        self.regions.remove(memh.addr, memh.number);
        if let Some(slot) = memh.slot {
            self.regions.invalidate(slot, wait);
        }
        if let Some(window) = memh.window {
            self.regions.windows.remove(window);
        }
    }
}

/// Bytes of a packed key.
pub(crate) const KEY: usize = 48;

/// Where in a packed key it is told what sort of key it is; bytes before that are in every key.
pub(crate) const TAG_AT: usize = 44;
const HOST: [u8; 4] = *b"st1h";
/// Of [`crate::device`].
pub(crate) const DEVICE: [u8; 4] = *b"st1d";

/// How everything begins that an `uct_rkey_t` of ours points to: what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head([u8; 4]);

impl Head {
    const HOST: Head = Head(HOST);
    pub(crate) const DEVICE: Head = Head(DEVICE);

    /// What a key is.
    ///
    /// # Safety
    /// It must be one that `unpack` made.
    unsafe fn of(rkey: usize) -> Head {
        // SAFETY: the caller's promise.
        unsafe { *(rkey as *const Head) }
    }
}

/// What a peer is told of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    /// Whose it is; number 0 if it is no window.
    id: WindowId,
    base: u64,
    len: u64,
    slot: Option<Slot>,
}

impl Key {
    fn pack(&self) -> [u8; KEY] {
        let slot = self.slot.unwrap_or(Slot { board: 0, index: 0, generation: 0 });
        let words = [
            self.id.maker,
            self.id.number,
            self.base,
            self.len,
            u64::from(slot.board) << 32 | u64::from(slot.index),
            slot.generation.into(),
        ];
        let mut out = [0; KEY];
        for (to, word) in out.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        out[TAG_AT..].copy_from_slice(&HOST);
        out
    }

    /// `None` for what is no such key.
    fn unpack(bytes: &[u8; KEY]) -> Option<Key> {
        let word = |i: usize| u64::from_le_bytes(bytes[8 * i..8 * i + 8].try_into().expect("8 bytes"));
        let board = (word(4) >> 32) as u32;
        let slot = Slot { board, index: word(4) as u32, generation: word(5) as u32 };
        (bytes[TAG_AT..] == HOST).then_some(Key {
            id: WindowId { maker: word(0), number: word(1) },
            base: word(2),
            len: word(3),
            slot: (board != 0).then_some(slot),
        })
    }
}

/// Whether accesses by a key are to be invalidated one day; `None` if more is asked for.
///
/// # Safety
/// `params` must be null or UCX's.
pub(crate) unsafe fn invalidates(params: *const u64) -> Option<bool> {
    // Parameters are a mask of fields and, as bit 0 of it says, flags: which accesses. Bit 2 is for other
    // processes than peers.
    // SAFETY: the caller's promise.
    let flags = unsafe {
        if params.is_null() || params.read() & 1 == 0 { 0 } else { params.add(1).cast::<c_uint>().read() }
    };
    (flags & !0b11 == 0).then_some(flags != 0)
}

/// # Safety
/// `memh` must be one of the domain's, `params` null or UCX's, `out` valid for a key.
unsafe fn pack(md: *mut Md, memh: *mut c_void, params: *const u64, out: *mut [u8; KEY]) -> Status {
    guard(|| {
        // SAFETY: the caller's promise.
        let (md, memh) = unsafe { (&*md, &mut *memh.cast::<Memh>()) };
        // SAFETY: the caller's promise.
        let Some(invalidates) = (unsafe { invalidates(params) }) else { return ucx::UCS_ERR_UNSUPPORTED };
        if invalidates && memh.slot.is_none() {
            memh.slot = md.regions.protect();
            if memh.slot.is_none() {
                return ucx::UCS_ERR_NO_MEMORY;
            }
        }
        let maker = md.regions.windows.maker();
        let key = Key {
            id: memh.window.unwrap_or(WindowId { maker, number: 0 }),
            base: memh.addr as u64,
            len: memh.len as u64,
            slot: memh.slot.filter(|_| invalidates),
        };
        // SAFETY: the caller's promise.
        unsafe { out.write(key.pack()) };
        ucx::UCS_OK
    })
}

pub(crate) unsafe extern "C" fn mkey_pack(
    md: *mut Md,
    memh: *mut c_void,
    params: *const u64,
    out: *mut [u8; KEY],
) -> Status {
    // SAFETY: UCX's arguments.
    unsafe { pack(md, memh, params, out) }
}

/// Since 1.16: the part of the memory that is of interest comes along.
pub(crate) unsafe extern "C" fn mkey_pack_v2(
    md: *mut Md,
    memh: *mut c_void,
    _address: *mut c_void,
    _length: usize,
    params: *const u64,
    out: *mut [u8; KEY],
) -> Status {
    // SAFETY: UCX's arguments.
    unsafe { pack(md, memh, params, out) }
}

/// A peer's memory as `uct_rkey_t` stands for it.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Rkey {
    head: Head,
    key: Key,
    regions: Arc<Regions>,
    /// The window, once it is mapped here.
    mapping: Option<Arc<Mapping>>,
    /// On the board of its slot, if it has one.
    seat: Option<Seat>,
}

/// How memory behind a key can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Here it is.
    Mapped(*mut u8),
    /// It can be asked for; `wait` says that nothing goes without it.
    Want { id: WindowId, wait: bool },
    /// It is not mapped.
    Remote,
    /// Only its owner may access it.
    Ask,
    /// Not inside.
    Outside,
}

impl Rkey {
    /// Where `addr..addr+len` of the peer is, for an interface with these seats.
    #[inline]
    pub(crate) fn reach(&mut self, addr: u64, len: usize, seats: &mut Seats) -> Reach {
        if self.key.slot.is_some() && !self.seat.as_ref().is_some_and(|s| seats.have(s)) {
            if let Err(reach) = self.sit(seats) {
                return reach;
            }
        }
        self.mapped(addr, len)
    }

    /// Where that is, if it is mapped and is not going to be taken back: nothing else to look at.
    #[inline]
    pub(crate) fn plain(&self, addr: u64, len: usize) -> Option<*mut u8> {
        let (None, Some(mapping)) = (self.key.slot, &self.mapping) else { return None };
        let off = addr.wrapping_sub(self.key.base) as usize;
        // SAFETY: inside the mapping.
        (off.checked_add(len)? <= mapping.len()).then(|| unsafe { mapping.base().add(off) })
    }

    /// What it names on its owner's board.
    pub(crate) fn slot(&self) -> Option<Slot> {
        self.key.slot
    }

    /// Takes a seat on the board of the key's slot.
    #[cold]
    fn sit(&mut self, seats: &mut Seats) -> Result<(), Reach> {
        let Some(slot) = self.key.slot else { return Ok(()) };
        let id = WindowId { maker: self.key.id.maker, number: slot.board.into() };
        let windows = &self.regions.windows;
        self.seat = match seats.take(id, windows) {
            Ok(Some(seat)) => Some(seat),
            // Its owner looks at the slot then.
            Ok(None) if windows.denied(id) => return Err(Reach::Ask),
            Ok(None) => return Err(Reach::Want { id, wait: true }),
            // Its owner does it for us.
            Err(()) => return Err(Reach::Ask),
        };
        Ok(())
    }

    /// Where that is, the board aside.
    #[inline]
    fn mapped(&mut self, addr: u64, len: usize) -> Reach {
        let Some(mapping) = &self.mapping else { return self.map(addr, len) };
        let off = addr.wrapping_sub(self.key.base) as usize;
        match off.checked_add(len) {
            // SAFETY: inside the mapping.
            Some(end) if end <= mapping.len() => Reach::Mapped(unsafe { mapping.base().add(off) }),
            _ => Reach::Outside,
        }
    }

    #[cold]
    fn map(&mut self, addr: u64, len: usize) -> Reach {
        let windows = &self.regions.windows;
        if self.key.id.maker == windows.maker() {
            // Our own memory: UCP registered it, so it is here.
            return Reach::Mapped(std::ptr::with_exposed_provenance_mut(addr as usize));
        }
        if self.key.id.number == 0 {
            return Reach::Remote;
        }
        match windows.find(self.key.id) {
            Some(mapping) if mapping.len() as u64 >= self.key.len => {
                self.mapping = Some(mapping);
                self.mapped(addr, len)
            }
            Some(_) => Reach::Remote,
            None if windows.denied(self.key.id) => Reach::Remote,
            None => Reach::Want { id: self.key.id, wait: false },
        }
    }

    /// Runs an access that `reach` allowed, unless the memory was taken back.
    #[inline]
    pub(crate) fn access<T>(&self, f: impl FnOnce() -> T) -> Option<T> {
        match (self.key.slot, &self.seat) {
            (None, _) => Some(f()),
            (Some(slot), Some(seat)) => seat.access(slot, f),
            (Some(_), None) => None,
        }
    }
}

/// # Safety
/// `buffer` must be as long as the key that it begins like, `rkey` and `handle` valid for writes.
unsafe fn unpack(buffer: *const u8, rkey: *mut usize, handle: *mut *mut c_void) -> Status {
    guard(|| {
        // SAFETY: the caller's promise: every key is as long as this at least.
        let begin = unsafe { buffer.cast::<[u8; KEY]>().read() };
        let made = if begin[TAG_AT..] == DEVICE {
            // SAFETY: likewise.
            match device::key::unpack(&unsafe { buffer.cast::<[u8; device::key::KEY]>().read() }) {
                Ok(key) => Box::into_raw(key) as usize,
                Err(status) => return status,
            }
        } else {
            let Some(key) = Key::unpack(&begin) else {
                log::warn!("a remote key that is none of ours");
                return ucx::UCS_ERR_INVALID_PARAM;
            };
            let Ok(regions) = regions() else { return ucx::UCS_ERR_IO_ERROR };
            let head = Head::HOST;
            Box::into_raw(Box::new(Rkey { head, key, regions, mapping: None, seat: None })) as usize
        };
        // SAFETY: the caller's promise.
        unsafe {
            *rkey = made;
            *handle = made as *mut c_void;
        }
        ucx::UCS_OK
    })
}

pub(crate) unsafe extern "C" fn rkey_unpack(
    _component: *const c_void,
    buffer: *const u8,
    rkey: *mut usize,
    handle: *mut *mut c_void,
) -> Status {
    // SAFETY: UCX's arguments.
    unsafe { unpack(buffer, rkey, handle) }
}

/// Since 1.19.
pub(crate) unsafe extern "C" fn rkey_unpack_v2(
    _component: *const c_void,
    buffer: *const u8,
    _params: *const c_void,
    rkey: *mut usize,
    handle: *mut *mut c_void,
) -> Status {
    // SAFETY: UCX's arguments.
    unsafe { unpack(buffer, rkey, handle) }
}

/// A peer's window as memory of ours, if it is mapped already.
pub(crate) unsafe extern "C" fn rkey_ptr(
    _component: *const c_void,
    rkey: usize,
    _handle: *mut c_void,
    remote: u64,
    local: *mut *mut c_void,
) -> Status {
    guard(|| {
        // SAFETY: a key that `unpack` made.
        if unsafe { Head::of(rkey) } != Head::HOST {
            return ucx::UCS_ERR_UNSUPPORTED;
        }
        // SAFETY: likewise.
        let rkey = unsafe { &mut *(rkey as *mut Rkey) };
        match rkey.mapped(remote, 1) {
            Reach::Mapped(at) => {
                // SAFETY: UCX gives a place for the answer.
                unsafe { *local = at.cast() };
                ucx::UCS_OK
            }
            Reach::Outside => ucx::UCS_ERR_INVALID_ADDR,
            Reach::Want { .. } | Reach::Remote | Reach::Ask => ucx::UCS_ERR_UNREACHABLE,
        }
    })
}

pub(crate) unsafe extern "C" fn rkey_release(
    _component: *const c_void,
    rkey: usize,
    _handle: *mut c_void,
) -> Status {
    guard(|| {
        // SAFETY: a key that `unpack` made, given back once.
        if unsafe { Head::of(rkey) } == Head::DEVICE {
            // SAFETY: likewise.
            drop(unsafe { Box::from_raw(rkey as *mut device::key::Rkey) });
            return ucx::UCS_OK;
        }
        // SAFETY: likewise.
        let rkey = unsafe { Box::from_raw(rkey as *mut Rkey) };
        let Rkey { key, regions, mapping, .. } = *rkey;
        let imported = mapping.is_some();
        drop(mapping);
        if imported && key.id.maker != regions.windows.maker() {
            regions.windows.forget(key.id);
        }
        ucx::UCS_OK
    })
}

/// Since 1.16: whether two keys stand for the same memory, or else which comes first.
pub(crate) unsafe extern "C" fn rkey_compare(
    _component: *const c_void,
    a: usize,
    b: usize,
    params: *const u64,
    result: *mut c_int,
) -> Status {
    guard(|| {
        // SAFETY: UCX's arguments.
        if result.is_null() || unsafe { *params } != 0 {
            return ucx::UCS_ERR_INVALID_PARAM;
        }
        // SAFETY: keys that `unpack` made, and a place for the answer.
        unsafe {
            let packed = |rkey: usize| match Head::of(rkey) {
                Head::DEVICE => (*(rkey as *const device::key::Rkey)).packed().to_vec(),
                _ => (*(rkey as *const Rkey)).key.pack().to_vec(),
            };
            *result = packed(a).cmp(&packed(b)) as c_int;
        }
        ucx::UCS_OK
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_survive_packing() {
        let id = WindowId { maker: 7, number: 3 };
        for slot in [None, Some(Slot { board: 2, index: 9, generation: 1 << 30 })] {
            let key = Key { id, base: 0x1000, len: 99, slot };
            assert_eq!(Key::unpack(&key.pack()), Some(key));
        }
    }

    #[test]
    fn garbage_is_no_key() {
        for garbage in [[0; 256], [0xff; 256], [b's'; 256]] {
            let (mut rkey, mut handle) = (0, std::ptr::null_mut());
            // SAFETY: more bytes than any key has, and places for the answer.
            let status = unsafe { unpack(garbage.as_ptr(), &mut rkey, &mut handle) };
            assert_eq!((status, rkey), (ucx::UCS_ERR_INVALID_PARAM, 0));
        }
    }
}
