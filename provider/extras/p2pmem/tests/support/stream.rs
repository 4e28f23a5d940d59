//! Files, and streams of the stand-in for CUDA's driver.

use std::ffi::c_void;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use cuda_stand_in::driver::Driver;
use p2pmem::storage::{File, Op, Options, Request};

/// More pieces than buffers.
pub const BIG: usize = (21 << 20) + 4321;

pub fn content(len: usize, from: usize) -> Vec<u8> {
    (from..from + len).map(|n| (n * 7 + (n >> 8) * 13 + (n >> 16)) as u8).collect()
}

/// A file, removed on drop.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(len: usize) -> Scratch {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path =
            PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("stream-{}-{n}", std::process::id()));
        std::fs::write(&path, content(len, 0)).unwrap();
        Scratch(path)
    }

    pub fn open(&self) -> Arc<File> {
        Arc::new(File::open(&self.0, Options { write: true, cufile: false, ..Options::default() }).unwrap())
    }

    pub fn bytes(&self) -> Vec<u8> {
        std::fs::read(&self.0).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

pub fn read(addr: usize, len: usize, offset: usize) -> Op {
    Op { write: false, addr, len, offset: offset as u64 }
}

pub fn write(addr: usize, len: usize, offset: usize) -> Op {
    Op { write: true, addr, len, offset: offset as u64 }
}

pub fn on(file: &Arc<File>, ops: &[Op], stream: usize) -> Request {
    // SAFETY: each test keeps its memory and its stream until its requests are done.
    unsafe { Request::submit_on(file, ops, stream) }.unwrap()
}

pub fn results(request: &Request) -> Vec<usize> {
    assert!(request.wait(None));
    request.take().unwrap().into_iter().map(Result::unwrap).collect()
}

/// Holds a stream until it is let go.
pub struct Gate(&'static AtomicBool);

impl Gate {
    pub fn on(cu: Driver, stream: usize) -> Gate {
        unsafe extern "C" fn held(arg: *mut c_void) {
            // SAFETY: leaked.
            let open = unsafe { &*arg.cast::<AtomicBool>() };
            while !open.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        let open: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
        cu.call(stream, held, std::ptr::from_ref(open).expose_provenance());
        Gate(open)
    }

    pub fn open(&self) {
        self.0.store(true, Ordering::Release);
    }
}
