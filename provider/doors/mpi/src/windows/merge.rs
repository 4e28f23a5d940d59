//! The two copies of a window on device memory, and how changes go from one to the other.

use core::ffi::c_int;

use hmem::Kind;

use crate::buffer::{Failure, Host, copy_back, copy_out};
use crate::counts::WINDOWS;
use crate::shape::Tree;

/// Bytes that are compared at a time: where they are equal no single byte is looked at.
const CHUNK: usize = 4096;

/// A window on device memory.
#[derive(Debug)]
pub(crate) struct Shadow {
    device: usize,
    kind: Kind,
    /// What the MPI and other processes access.
    public: Host,
    /// What both had at the last synchronisation.
    snapshot: Vec<u8>,
    /// For the copy that is compared.
    now: Host,
    rank: c_int,
}

impl Shadow {
    /// Of `len` bytes of device memory; this process has that rank in the window.
    ///
    /// # Safety
    /// They are valid until the window is freed.
    pub(crate) unsafe fn new(device: usize, kind: Kind, len: usize, rank: c_int) -> Result<Shadow, Failure> {
        let public = Host::new(len, kind).ok_or(Failure::NoMemory)?;
        let now = Host::new(len, kind).ok_or(Failure::NoMemory)?;
        let mut shadow = Shadow { device, kind, public, snapshot: vec![0; len], now, rank };
        // SAFETY: the caller's promise.
        unsafe { shadow.copy_out() }?;
        shadow.snapshot.copy_from_slice(shadow.now.bytes(len));
        // SAFETY: the public copy is as long, and nothing accesses it yet.
        unsafe {
            std::ptr::copy_nonoverlapping(shadow.snapshot.as_ptr(), shadow.public.at() as *mut u8, len);
        }
        Ok(shadow)
    }

    /// The rank of this process in the window.
    pub(crate) fn rank(&self) -> c_int {
        self.rank
    }

    /// The device's memory.
    pub(crate) fn device(&self) -> usize {
        self.device
    }

    /// The address of the public copy.
    pub(crate) fn public(&self) -> usize {
        self.public.at()
    }

    unsafe fn copy_out(&mut self) -> Result<(), Failure> {
        let len = self.snapshot.len();
        WINDOWS.add_from_device(len);
        // SAFETY: the caller's promise; as long on both sides.
        unsafe { copy_out(Tree::block(0, len), self.device, self.kind, self.now.at()) }
    }

    /// What the process has changed on the device goes to the public copy.
    ///
    /// # Safety
    /// The device's memory is valid.
    pub(crate) unsafe fn push(&mut self) -> Result<(), Failure> {
        let len = self.snapshot.len();
        // SAFETY: the caller's promise.
        unsafe { self.copy_out() }?;
        let (now, public) = (self.now.bytes(len), self.public.at() as *mut u8);
        let snapshot = &mut self.snapshot[..];
        differences(now, snapshot).walk(&mut |at, len| {
            let range = at as usize..at as usize + len;
            snapshot[range.clone()].copy_from_slice(&now[range.clone()]);
            // SAFETY: inside the public copy. Other processes that write these bytes now are in a race by
            // MPI's rules.
            unsafe { std::ptr::copy_nonoverlapping(now[range].as_ptr(), public.add(at as usize), len) };
            true
        });
        Ok(())
    }

    /// What others have put into the public copy goes to the device.
    ///
    /// # Safety
    /// The device's memory is valid.
    pub(crate) unsafe fn pull(&mut self) -> Result<(), Failure> {
        let len = self.snapshot.len();
        // Others may write meanwhile: what is compared is what goes to the device.
        // SAFETY: as long on both sides.
        unsafe {
            std::ptr::copy_nonoverlapping(self.public.at() as *const u8, self.now.at() as *mut u8, len);
        }
        let changed = differences(self.now.bytes(len), &self.snapshot);
        WINDOWS.add_to_device(changed.size());
        // SAFETY: the caller's promise.
        unsafe { copy_back(changed, self.device, self.kind, self.now.at()) }?;
        self.snapshot.copy_from_slice(self.now.bytes(len));
        Ok(())
    }
}

/// The bytes in which two differ.
fn differences(a: &[u8], b: &[u8]) -> Tree {
    let mut tree = Tree::new();
    for (n, (a, b)) in a.chunks(CHUNK).zip(b.chunks(CHUNK)).enumerate() {
        if a == b {
            continue;
        }
        let mut at = 0;
        while at < a.len() {
            let same = a[at..].iter().zip(&b[at..]).take_while(|(a, b)| a == b).count();
            at += same;
            let differ = a[at..].iter().zip(&b[at..]).take_while(|(a, b)| a != b).count();
            tree.push_block((n * CHUNK + at) as isize, differ);
            at += differ;
        }
    }
    tree
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_that_differ_are_found_and_no_others() {
        let a = vec![7u8; 3 * CHUNK + 5];
        let mut b = a.clone();
        assert!(differences(&a, &b).is_empty());
        for at in [0, 1, 9, CHUNK - 1, CHUNK, 3 * CHUNK + 4] {
            b[at] = 8;
        }
        let mut found = Vec::new();
        differences(&a, &b).walk(&mut |at, len| {
            found.extend(at as usize..at as usize + len);
            true
        });
        assert_eq!(found, [0, 1, 9, CHUNK - 1, CHUNK, 3 * CHUNK + 4]);
    }

    #[test]
    fn changes_of_both_sides_meet_in_a_window() {
        let mut memory = vec![1u8; 10_000];
        let at = memory.as_mut_ptr() as usize;
        // SAFETY: memory that stays; host memory is copied as any.
        unsafe {
            let mut shadow = Shadow::new(at, Kind::System, memory.len(), 3).unwrap();
            let public = shadow.public() as *mut u8;
            // This process changes one byte, another process a different one.
            (at as *mut u8).add(5).write(2);
            public.add(6000).write(9);
            shadow.push().unwrap();
            assert_eq!((public.add(5).read(), public.add(6000).read()), (2, 9));
            assert_eq!((at as *const u8).add(6000).read(), 1, "what others have put comes by a pull");
            shadow.pull().unwrap();
            assert_eq!((at as *const u8).add(6000).read(), 9);
            assert_eq!((at as *const u8).add(5).read(), 2);
            // What did not change is not written.
            (at as *mut u8).add(7).write(4);
            shadow.pull().unwrap();
            assert_eq!((at as *const u8).add(7).read(), 4);
        }
    }
}
