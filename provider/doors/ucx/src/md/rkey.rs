//! Remote keys: as packed by the owner, and as unpacked by a peer.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use link::{Mapping, WindowId};
use link_api::PeerId;
use ucx_sys::{self as ucx, Status};
use wire::ucx::{DeviceKey, HostKey, TAG_AT};

use crate::device;
use crate::ffi::guard;
use crate::md::keyhead::Head;
use crate::md::readers::{Reader, Readers};
use crate::md::region::{Regions, Slot, regions};

/// Bytes of a packed key.
pub(crate) const KEY: usize = HostKey::LEN;

/// A packed key of host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    /// The window, or maker and number 0 if it is none.
    pub(crate) id: WindowId,
    pub(crate) base: u64,
    pub(crate) len: u64,
    pub(crate) slot: Option<Slot>,
}

impl Key {
    pub(crate) fn pack(&self) -> [u8; KEY] {
        let wire::ucx::Slot { board, index, generation } = Slot::to_wire(self.slot);
        zerocopy::transmute!(HostKey {
            maker: self.id.maker.into(),
            number: self.id.number.into(),
            base: self.base.into(),
            len: self.len.into(),
            index,
            board,
            generation,
            tag: HostKey::TAG,
        })
    }

    /// The window with the board that its slot is on.
    fn board(&self, slot: Slot) -> WindowId {
        WindowId { maker: self.id.maker, number: slot.board.into() }
    }

    /// `None` for what is no such key.
    fn unpack(bytes: &[u8; KEY]) -> Option<Key> {
        let HostKey { maker, number, base, len, index, board, generation, tag } =
            zerocopy::transmute!(*bytes);
        (tag == HostKey::TAG).then_some(Key {
            id: WindowId { maker: maker.get(), number: number.get() },
            base: base.get(),
            len: len.get(),
            slot: Slot::from_wire(wire::ucx::Slot { board, index, generation }),
        })
    }
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
    reader: Option<Reader>,
}

/// How memory behind a key can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Here it is.
    Mapped(*mut u8),
    /// The window can be requested; with `wait` accesses wait for it.
    Want { id: WindowId, wait: bool },
    /// It is not mapped.
    Remote,
    /// Only its owner may access it.
    Ask,
    /// Not inside.
    Outside,
}

impl Rkey {
    /// Where `addr..addr+len` of the peer is, for an interface with these reader slots, which knows the peer
    /// by this name.
    #[inline]
    pub(crate) fn reach(
        &mut self,
        addr: u64,
        len: usize,
        (readers, of): (&mut Readers<PeerId>, PeerId),
    ) -> Reach {
        if self.key.slot.is_some() && !self.reader.as_ref().is_some_and(|r| readers.have(r)) {
            if let Err(reach) = self.announce(readers, of) {
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

    /// Takes a reader slot on the board of the key's slot.
    #[cold]
    fn announce(&mut self, readers: &mut Readers<PeerId>, of: PeerId) -> Result<(), Reach> {
        let Some(slot) = self.key.slot else { return Ok(()) };
        let id = self.key.board(slot);
        let windows = &self.regions.windows;
        self.reader = match readers.shared(id, windows, of) {
            Ok(Some(reader)) => Some(reader),
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
        match (self.key.slot, &self.reader) {
            (None, _) => Some(f()),
            (Some(slot), Some(reader)) => reader.access(slot, f),
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
        let made = if begin[TAG_AT..] == DeviceKey::TAG {
            // SAFETY: the caller's promise: the key has that tag, so it is as long as one of a device.
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
            Box::into_raw(Box::new(Rkey { head, key, regions, mapping: None, reader: None })) as usize
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
        // SAFETY: a key that `unpack` made, of host memory.
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
            // SAFETY: a key of a device that `unpack` made, given back once.
            device::key::release(unsafe { Box::from_raw(rkey as *mut device::key::Rkey) });
            return ucx::UCS_OK;
        }
        // SAFETY: a key of host memory that `unpack` made, given back once.
        let rkey = unsafe { Box::from_raw(rkey as *mut Rkey) };
        let Rkey { key, regions, mapping, reader, .. } = *rkey;
        drop((mapping, reader));
        // Also one that was requested and never used: it may have come since.
        if key.id.maker != regions.windows.maker() {
            regions.windows.forget(key.id);
            // Of a peer that has ended it may have been the last one with a slot there.
            if let Some(slot) = key.slot {
                regions.windows.unmap(key.board(slot));
            }
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
    use link::Windows;

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
    fn nothing_is_left_of_a_window_whose_key_is_released() {
        let regions = regions().unwrap();
        let maker = Windows::new().unwrap();
        let (id, mapping) = maker.create(4096, None).unwrap();
        let at = maker.place(id.number).unwrap();
        let packed = Key { id, base: 0, len: mapping.len() as u64, slot: None }.pack();
        for is_used in [true, false] {
            let (mut rkey, mut handle) = (0, std::ptr::null_mut());
            // SAFETY: a key, places for the answer, and the key that was made of it, given back once.
            unsafe {
                assert_eq!(unpack(packed.as_ptr(), &mut rkey, &mut handle), ucx::UCS_OK);
                // It comes when that was asked for by another access.
                if let Err(why) = regions.windows.fetch(id, std::process::id() as i32, at) {
                    return eprintln!("skipped: {why}");
                }
                if is_used {
                    let reach = (*(rkey as *mut Rkey)).reach(0, 8, (&mut Readers::new(), PeerId(0)));
                    assert!(matches!(reach, Reach::Mapped(_)));
                }
                assert_eq!(rkey_release(std::ptr::null(), rkey, handle), ucx::UCS_OK);
            }
            assert!(regions.windows.find(id).is_none(), "used: {is_used}");
        }
    }

    /// Whichever is last, the key or the word that the peer has ended.
    #[test]
    fn nothing_is_left_of_the_board_of_a_peer_that_ended() {
        let (regions, maker) = (regions().unwrap(), Windows::new().unwrap());
        let len = link::RevocationTable::SIZE.next_multiple_of(4096);
        let (board, mapping) = maker.create(len, None).unwrap();
        let table = link::RevocationTable::new(mapping).unwrap();
        let at = maker.place(board.number).unwrap();
        let slot = Some(Slot { board: board.number as u32, index: 3, generation: 0 });
        let id = WindowId { maker: maker.maker(), number: 0 };
        let packed = Key { id, base: 0, len: 8, slot }.pack();
        let peer = PeerId(5);
        for key_first in [true, false] {
            let (mut rkey, mut handle) = (0, std::ptr::null_mut());
            if let Err(why) = regions.windows.fetch(board, std::process::id() as i32, at) {
                return eprintln!("skipped: {why}");
            }
            let mut readers = Readers::new();
            let ended = |readers: &mut Readers<PeerId>| readers.ended(peer, &regions.windows);
            // SAFETY: a key, places for the answer, and the key that was made of it, given back once.
            unsafe {
                assert_eq!(unpack(packed.as_ptr(), &mut rkey, &mut handle), ucx::UCS_OK);
                assert_eq!((*(rkey as *mut Rkey)).reach(0, 8, (&mut readers, peer)), Reach::Remote);
                assert_eq!((*(rkey as *mut Rkey)).access(|| 7), Some(7));
                if !key_first {
                    ended(&mut readers);
                }
                assert!(regions.windows.find(board).is_some());
                assert_eq!(rkey_release(std::ptr::null(), rkey, handle), ucx::UCS_OK);
                if key_first {
                    // The next key is served by what is there.
                    assert!(regions.windows.find(board).is_some());
                    ended(&mut readers);
                }
            }
            assert!(regions.windows.find(board).is_none(), "key first: {key_first}");
            // The slot is free again.
            assert_eq!(table.claim(), Some(0));
            table.release(0);
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
