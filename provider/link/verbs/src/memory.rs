//! Memory that the device reads and writes: places of one length each, registered together.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use rdma_sys::{Access, Error, Mr, Pd, ibv_sge};

/// Where places begin.
const ALIGN: usize = 4096;

/// Places for messages.
///
/// What the device may touch is not looked at: a place belongs to the device from the request that names it
/// until that has completed, and to this side at all other times.
#[derive(Debug)]
pub(crate) struct Memory {
    at: NonNull<u8>,
    layout: Layout,
    each: usize,
    n: usize,
    mr: Option<Mr>,
    /// The same for other domains, by their numbers.
    others: Vec<(u32, Mr)>,
    /// A registration could not be ended.
    stays: bool,
}

// SAFETY: memory of its own, which nothing else in this process frees, and no thread's.
unsafe impl Send for Memory {}

impl Memory {
    /// `n` places of `each` bytes, pinned.
    pub(crate) fn new(pd: &Pd, n: usize, each: usize) -> Result<Memory, String> {
        Memory::with(pd, n, each, Access::LOCAL_WRITE)
    }

    /// The same with such a registration. Where there are no places there is none.
    pub(crate) fn with(pd: &Pd, n: usize, each: usize, access: Access) -> Result<Memory, String> {
        let layout = n.checked_mul(each).and_then(|len| Layout::from_size_align(len.max(1), ALIGN).ok());
        let layout = layout.ok_or("too much memory")?;
        // SAFETY: a layout of some bytes.
        let at = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or("no memory for messages")?;
        let mut memory = Memory { at, layout, each, n, mr: None, others: Vec::new(), stays: false };
        if n == 0 {
            return Ok(memory);
        }
        // SAFETY: this memory is freed only after the registration has ended.
        let mr = unsafe { pd.register(at.as_ptr().cast(), n * each, access) };
        memory.mr = Some(mr.map_err(|e| e.to_string())?);
        Ok(memory)
    }

    pub(crate) fn len(&self) -> usize {
        self.n
    }

    /// Where a place is.
    #[inline]
    fn place(&self, at: usize) -> *mut u8 {
        assert!(at < self.n, "a place that there is");
        // SAFETY: inside of the memory, as just checked.
        unsafe { self.at.as_ptr().add(at * self.each) }
    }

    /// The first bytes of a place, for a request.
    #[inline]
    pub(crate) fn sge(&self, at: usize, len: usize) -> ibv_sge {
        assert!(len <= self.each, "no more bytes than the place has");
        let lkey = self.mr.as_ref().map_or(0, Mr::lkey);
        ibv_sge { addr: self.place(at) as u64, length: len as u32, lkey }
    }

    /// The same for a request of a queue pair in another domain, which it is registered with once.
    pub(crate) fn sge_in(
        &mut self,
        (domain, pd): (u32, &Pd),
        at: usize,
        len: usize,
    ) -> Result<ibv_sge, Error> {
        if !self.others.iter().any(|(known, _)| *known == domain) {
            // SAFETY: this memory is freed only after the registration has ended.
            let mr = unsafe { pd.register(self.at.as_ptr().cast(), self.n * self.each, Access::LOCAL_WRITE) };
            self.others.push((domain, mr?));
        }
        let lkey = self.others.iter().find(|(known, _)| *known == domain).map_or(0, |(_, mr)| mr.lkey());
        Ok(ibv_sge { lkey, ..self.sge(at, len) })
    }

    /// A domain is to end.
    pub(crate) fn end_domain(&mut self, domain: u32) {
        if let Some(at) = self.others.iter().position(|(known, _)| *known == domain) {
            self.stays |= self.others.swap_remove(at).1.deregister().is_err();
        }
    }

    /// All bytes of a place, for a request.
    #[inline]
    pub(crate) fn whole(&self, at: usize) -> ibv_sge {
        self.sge(at, self.each)
    }

    /// The bytes of a place that is this side's.
    #[inline]
    pub(crate) fn bytes(&self, at: usize) -> &[u8] {
        // SAFETY: so many bytes of this memory, which the device has written and does not write now: the
        // caller has no request with the place.
        unsafe { std::slice::from_raw_parts(self.place(at), self.each) }
    }

    /// The bytes of a place that is this side's.
    pub(crate) fn bytes_mut(&mut self, at: usize) -> &mut [u8] {
        // SAFETY: so many bytes of this memory, which no device uses now, and this is the one reference.
        unsafe { std::slice::from_raw_parts_mut(self.place(at), self.each) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let all = self.mr.take().into_iter().chain(self.others.drain(..).map(|(_, mr)| mr));
        let stay = all.filter_map(|mr| mr.deregister().err()).count();
        // What stays registered stays allocated.
        if stay == 0 && !self.stays {
            // SAFETY: allocated with this layout, and no device has it any more.
            unsafe { dealloc(self.at.as_ptr(), self.layout) };
        }
    }
}
