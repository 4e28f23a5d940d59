//! The stand-in as a program's library.

use std::ffi::{CStr, c_int, c_void};

use stand_in::call;
use stand_in::program::Program;

/// The runtime, as a program has it. Every call panics if it refuses.
#[derive(Clone, Copy, Debug)]
pub struct Runtime(Program);

impl Runtime {
    /// Loads it, for good.
    pub fn load() -> Runtime {
        Runtime(Program::load("rocr_stand_in"))
    }

    /// Loads and initialises it.
    pub fn start() -> Runtime {
        let runtime = Runtime::load();
        call!(runtime.0, "hsa_init"()());
        runtime
    }

    /// Memory of GPU `gpu`, from 0 on.
    pub fn alloc(&self, gpu: u64, len: usize) -> usize {
        self.pool(2 + gpu, len)
    }

    /// Host memory of the runtime.
    pub fn alloc_host(&self, len: usize) -> usize {
        self.pool(1, len)
    }

    fn pool(&self, pool: u64, len: usize) -> usize {
        let mut at = 0usize;
        call!(self.0, "hsa_amd_memory_pool_allocate"(u64, usize, u32, *mut usize)(pool, len, 0, &mut at));
        at
    }

    /// Frees either.
    pub fn free(&self, at: usize) {
        call!(self.0, "hsa_amd_memory_pool_free"(usize)(at));
    }

    /// Writes to memory of any kind.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        call!(self.0, "hsa_memory_copy"(usize, *const u8, usize)(at, bytes.as_ptr(), bytes.len()));
    }

    /// Reads it.
    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let to = bytes.as_mut_ptr().cast::<c_void>();
        call!(self.0, "hsa_memory_copy"(*mut c_void, usize, usize)(to, at, len));
        bytes
    }

    /// Has the `nth` call of `name` from now on fail (0: each of them); code 0: none any more.
    pub fn fail(&self, name: &CStr, nth: u64, code: c_int) {
        self.0.fail(name, nth, code);
    }

    /// How often `name` was called.
    pub fn calls(&self, name: &CStr) -> u64 {
        self.0.calls(name)
    }
}
