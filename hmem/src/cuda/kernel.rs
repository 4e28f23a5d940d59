//! Kernels: modules of PTX, which the driver compiles for the device, and launches.

use std::ffi::{CStr, c_int, c_void};
use std::fmt;
use std::ptr::null_mut;

use super::api::{Api, Error, Handle};
use super::queue::Stream;
use super::stream::{id_of, is_by_mps};

/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`.
const MULTIPROCESSORS: c_int = 16;
/// `CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT`.
const KERNEL_EXEC_TIMEOUT: c_int = 17;
/// `CU_JIT_ERROR_LOG_BUFFER` and its size.
const ERROR_LOG: u32 = 5;
const ERROR_LOG_SIZE: u32 = 6;
/// Bytes of what the driver's compiler says.
const LOG: usize = 8192;

/// A kernel, for as long as its context lives.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    handle: usize,
    ctx: usize,
}

impl Function {
    pub(super) fn handle(self) -> usize {
        self.handle
    }

    pub(super) fn context(self) -> usize {
        self.ctx
    }
}

/// Why there is no such kernel.
#[derive(Clone, Debug)]
pub struct NotLoaded {
    /// The driver's function that refused.
    pub call: &'static str,
    /// Its code.
    pub error: Error,
    /// What the driver's compiler said; empty where it said nothing.
    pub log: String,
}

impl fmt::Display for NotLoaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed: {}", self.call, self.error)?;
        if self.log.is_empty() { Ok(()) } else { write!(f, ": {}", self.log) }
    }
}

impl std::error::Error for NotLoaded {}

impl Stream {
    /// The number of the stream's context: a later context of the same handle has another one. 0 with a
    /// driver older than 12.0.
    pub fn context_id(self) -> Result<u64, Error> {
        let (api, _entered) = self.enter()?;
        Ok(id_of(api, self.context()))
    }

    /// The number of the stream's device in this process.
    pub fn device(self) -> Result<c_int, Error> {
        let (_api, entered) = self.enter()?;
        entered.device()
    }

    /// Whether the driver ends kernels of the stream's device that run for seconds: it may have a display.
    pub fn has_time_limit(self) -> Result<bool, Error> {
        let (api, entered) = self.enter()?;
        Ok(api.attribute(KERNEL_EXEC_TIMEOUT, entered.device()?) != 0)
    }

    /// Multiprocessors of the stream's device.
    pub fn multiprocessors(self) -> Result<u32, Error> {
        let (api, entered) = self.enter()?;
        let mut count = 0;
        api.device_attr(&mut count, MULTIPROCESSORS, entered.device()?)?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// Whether kernels of other processes are in the stream's device at the same time, by NVIDIA's MPS, as
    /// far as the driver says that.
    pub fn is_by_mps(self) -> Result<bool, Error> {
        let (api, entered) = self.enter()?;
        Ok(is_by_mps(api, entered.device()?))
    }

    /// Where kernels in the stream find host memory that is page-locked ([`crate::locked`]).
    pub fn address_of(self, host: *mut u8) -> Result<u64, Error> {
        let (api, _entered) = self.enter()?;
        let mut at = 0;
        api.host_device(&mut at, host.cast(), 0)?;
        Ok(at)
    }

    /// Compiles a module for the stream's context, and finds the kernel of that name in it. The module stays.
    pub fn load(self, ptx: &CStr, name: &CStr) -> Result<Function, NotLoaded> {
        let failed = |call, error| NotLoaded { call, error, log: String::new() };
        let (api, _entered) = self.enter().map_err(|e| failed("cuCtxPushCurrent", e))?;
        let module = load(api, ptx)?;
        let mut function = null_mut();
        if let Err(error) = api.module_function(&mut function, module, name.as_ptr()) {
            let _ = api.module_unload(module);
            return Err(failed("cuModuleGetFunction", error));
        }
        Ok(Function { handle: function as usize, ctx: self.context() })
    }

    /// Queues a kernel, in one dimension, whose parameters are all of 64 bits.
    ///
    /// # Safety
    /// The kernel has as many parameters as there are arguments, and what it accesses is valid for that until
    /// it is done.
    pub unsafe fn launch(
        self,
        function: Function,
        blocks: u32,
        threads: u32,
        arguments: &[u64],
    ) -> Result<(), Error> {
        if function.ctx != self.context() {
            return Err(Error(super::stream::INVALID_CONTEXT));
        }
        let (api, _entered) = self.enter()?;
        let mut arguments = arguments.to_vec();
        let mut places: Vec<*mut c_void> = arguments.iter_mut().map(|a| (a as *mut u64).cast()).collect();
        let (kernel, stream) = (function.handle as Handle, self.handle() as Handle);
        api.launch(kernel, blocks, 1, 1, threads, 1, 1, 0, stream, places.as_mut_ptr(), null_mut())
    }
}

fn load(api: &Api, ptx: &CStr) -> Result<Handle, NotLoaded> {
    let (mut module, mut log) = (null_mut(), vec![0u8; LOG]);
    let mut which = [ERROR_LOG, ERROR_LOG_SIZE];
    let mut values = [log.as_mut_ptr().expose_provenance(), LOG];
    let loaded = api.module_load(&mut module, ptx.as_ptr(), 2, which.as_mut_ptr(), values.as_mut_ptr());
    loaded.map(|()| module).map_err(|error| {
        let end = log.iter().position(|b| *b == 0).unwrap_or(LOG);
        let log = String::from_utf8_lossy(&log[..end]).trim().to_owned();
        NotLoaded { call: "cuModuleLoadDataEx", error, log }
    })
}
