//! Modules of PTX, and launches of their kernels.

use std::collections::HashMap;
use std::ffi::{CStr, c_char};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::ptx::{Kernel, Launch, parse};
use crate::{
    INVALID_CONTEXT, INVALID_HANDLE, INVALID_PTX, INVALID_VALUE, NOT_FOUND, Ptr, SUCCESS, context, enter,
    enter_in_context, stream,
};

/// `CU_JIT_ERROR_LOG_BUFFER` and its size.
const ERROR_LOG: u32 = 5;
const ERROR_LOG_SIZE: u32 = 6;
/// Most threads of a block, most blocks of a grid.
const THREADS: u32 = 1024;
const BLOCKS: u32 = i32::MAX as u32;

struct Module {
    kernels: Vec<Arc<Kernel>>,
    ctx: u64,
}

#[derive(Default)]
struct All {
    modules: HashMap<usize, Module>,
    /// By its handle: the module, and the kernel.
    functions: HashMap<usize, (usize, Arc<Kernel>)>,
    made: usize,
}

fn all() -> MutexGuard<'static, All> {
    static ALL: OnceLock<Mutex<All>> = OnceLock::new();
    ALL.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(module: *mut Ptr, image: *const c_char) -> i32 {
    enter_in_context!("cuModuleLoadData");
    unsafe { load(module, image, None) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadDataEx(
    module: *mut Ptr,
    image: *const c_char,
    count: u32,
    options: *const u32,
    values: *const usize,
) -> i32 {
    enter_in_context!("cuModuleLoadDataEx");
    let mut log = (0, 0);
    for i in 0..count as usize {
        match unsafe { (*options.add(i), *values.add(i)) } {
            (ERROR_LOG, at) => log.0 = at,
            (ERROR_LOG_SIZE, len) => log.1 = len,
            _ => return INVALID_VALUE,
        }
    }
    unsafe { load(module, image, (log.0 != 0 && log.1 > 0).then_some(log)) }
}

/// Waits for what is queued in the context first, as the driver does on an H200: a program that loads behind
/// a wait which it has yet to end waits for itself.
unsafe fn load(module: *mut Ptr, image: *const c_char, log: Option<(usize, usize)>) -> i32 {
    crate::stream::synchronize();
    let text = unsafe { CStr::from_ptr(image) }.to_string_lossy();
    let kernels = match parse(&text) {
        Ok(kernels) => kernels.into_iter().map(Arc::new).collect(),
        Err(why) => {
            if let Some((at, len)) = log {
                let n = why.len().min(len - 1);
                unsafe {
                    std::ptr::copy(why.as_ptr(), at as *mut u8, n);
                    *(at as *mut u8).add(n) = 0;
                }
            }
            return INVALID_PTX;
        }
    };
    let ctx = context::current().map_or(0, |c| c.id);
    let mut all = all();
    all.made += 1;
    let name = 0x3000_0000 + all.made * 16;
    all.modules.insert(name, Module { kernels, ctx });
    unsafe { *module = name as Ptr };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(function: *mut Ptr, module: Ptr, name: *const c_char) -> i32 {
    enter!("cuModuleGetFunction");
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    let mut all = all();
    let Some(of) = all.modules.get(&(module as usize)) else { return INVALID_HANDLE };
    let Some(kernel) = of.kernels.iter().find(|k| k.name == name).cloned() else { return NOT_FOUND };
    all.made += 1;
    let handle = 0x3000_0000 + all.made * 16;
    all.functions.insert(handle, (module as usize, kernel));
    unsafe { *function = handle as Ptr };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleUnload(module: Ptr) -> i32 {
    enter_in_context!("cuModuleUnload");
    let mut all = all();
    all.functions.retain(|_, (of, _)| *of != module as usize);
    all.modules.remove(&(module as usize)).map_or(INVALID_HANDLE, |_| SUCCESS)
}

/// Of one dimension.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: Ptr,
    x: u32,
    y: u32,
    z: u32,
    threads_x: u32,
    threads_y: u32,
    threads_z: u32,
    shared: u32,
    stream: Ptr,
    arguments: *const *const u64,
    extra: *const Ptr,
) -> i32 {
    enter_in_context!("cuLaunchKernel");
    let grid = [x, y, z, threads_x, threads_y, threads_z, shared];
    match unsafe { prepare(function, grid, arguments, extra) } {
        Ok(launch) => stream::launch(stream, launch),
        Err(code) => code,
    }
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`.
#[repr(C)]
pub struct KernelNode {
    function: Ptr,
    grid: [u32; 7],
    arguments: *const *const u64,
    extra: *const Ptr,
    kernel: Ptr,
    ctx: Ptr,
}

/// What a node launches.
pub(crate) unsafe fn of_node(node: &KernelNode) -> Result<Launch, i32> {
    unsafe { prepare(node.function, node.grid, node.arguments, node.extra) }
}

unsafe fn prepare(
    function: Ptr,
    grid: [u32; 7],
    arguments: *const *const u64,
    extra: *const Ptr,
) -> Result<Launch, i32> {
    let all = all();
    let (module, kernel) = all.functions.get(&(function as usize)).ok_or(INVALID_HANDLE)?;
    let ctx = all.modules.get(module).map_or(0, |m| m.ctx);
    if context::current().map(|c| c.id) != Some(ctx) {
        return Err(INVALID_CONTEXT);
    }
    let [x, y, z, threads_x, threads_y, threads_z, shared] = grid;
    let flat = [y, z, threads_y, threads_z] == [1; 4] && shared == 0 && extra.is_null();
    if !flat || !(1..=BLOCKS).contains(&x) || !(1..=THREADS).contains(&threads_x) {
        return Err(INVALID_VALUE);
    }
    let argument = |i| unsafe { **arguments.add(i) };
    let arguments = (0..kernel.parameters.len()).map(argument).collect();
    Ok(Launch { kernel: kernel.clone(), blocks: x, threads: threads_x, arguments })
}
