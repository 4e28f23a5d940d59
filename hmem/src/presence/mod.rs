//! Which kinds of device memory this process can have, and which addresses cannot be a device's. Every buffer
//! of every operation asks this, so an answer takes a few instructions.
//!
//! A process that has not loaded a runtime's library has no memory of it. Libraries can be loaded at any
//! time, so "not loaded" has to be asked again; but between loading one and holding a pointer of it lie an
//! initialisation and the making of a context, hundreds of milliseconds (and `libstrait.so` waits that out
//! before it has its first client). So the answer holds for one of the kernel's ticks (see
//! `clock`), and the question asked then is cheap too: has the linker loaded anything since.
//!
//! The heap that malloc(3) grows with brk(2), the main thread's stack and the program's data and bss are
//! known not to be a device's: nothing else can be mapped there while they are. Those cost a comparison. For
//! all other addresses the runtimes are asked, each time: what is not remembered cannot be out of date.

mod asked;
mod clock;

use std::sync::Once;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::kind::Kind;
use crate::memory::Memory;
use asked::ASKED;
pub(crate) use clock::outlive_answers;

/// How many objects the linker had loaded when a kind was last looked for.
static LOADED: [AtomicU64; 32] = [const { AtomicU64::new(0) }; 32];

/// Whether a kind is known to be in the process.
#[inline]
pub(crate) fn is_here(kind: Kind) -> bool {
    ASKED.state.load(Relaxed) & bit(kind) != 0
}

/// From now on there may be memory of this kind.
pub(crate) fn is_here_now(kind: Kind) {
    ASKED.state.fetch_or(bit(kind), Relaxed);
}

pub(crate) const fn bit(kind: Kind) -> u32 {
    1 << kind as u8
}

/// A bit for each kind of `all` that an application might have a pointer of by now, if `addr` could be one.
#[inline]
pub(crate) fn may_own(addr: usize, all: &[&dyn Memory]) -> u32 {
    if is_never_a_device(addr) { 0 } else { may_have(all) }
}

/// A bit for each kind of `all` that an application might have a pointer of by now.
#[inline]
pub(crate) fn may_have(all: &[&dyn Memory]) -> u32 {
    if clock::is_old() {
        ask_again(all);
    }
    ASKED.state.load(Relaxed)
}

/// Finds the runtimes that are loaded, unless the linker has loaded nothing since the last search. For calls
/// that set something up.
pub(crate) fn find_all(all: &[&dyn Memory]) {
    ask_again(all);
}

/// The same for one kind.
pub(crate) fn find_now(memory: &dyn Memory) -> bool {
    RANGES_READ.call_once(read_host_ranges);
    find(memory, objects_loaded());
    is_here(memory.kind())
}

fn find(memory: &dyn Memory, adds: u64) {
    let last = &LOADED[memory.kind() as usize];
    if is_here(memory.kind()) || last.load(Acquire) == adds {
        return;
    }
    if memory.find() {
        is_here_now(memory.kind());
    }
    last.store(adds, Release);
}

static RANGES_READ: Once = Once::new();

/// The clock is set last. A thread that finds it old meanwhile looks for the kinds itself, and so never takes
/// one that is being found for one that is not there.
#[cold]
fn ask_again(all: &[&dyn Memory]) {
    let now = clock::now();
    RANGES_READ.call_once(read_host_ranges);
    let adds = objects_loaded();
    for memory in all {
        find(*memory, adds);
    }
    clock::asked(now);
}

/// How many objects the linker has loaded, ever.
fn objects_loaded() -> u64 {
    of_first_object(|info| info.dlpi_adds).unwrap_or(0)
}

/// What `read` gets of the first object in the linker's list: the program, or in a namespace of dlmopen(3)
/// the object that it began with. The strings and headers that it names are readable meanwhile.
fn of_first_object<T>(read: fn(&libc::dl_phdr_info) -> T) -> Option<T> {
    struct Ask<T> {
        read: fn(&libc::dl_phdr_info) -> T,
        found: Option<T>,
    }
    unsafe extern "C" fn first<T>(
        info: *mut libc::dl_phdr_info,
        _: usize,
        ask: *mut libc::c_void,
    ) -> libc::c_int {
        // SAFETY: the linker passes a valid entry, and the place given to dl_iterate_phdr, which nothing else
        // uses.
        unsafe {
            let ask = &mut *ask.cast::<Ask<T>>();
            ask.found = Some((ask.read)(&*info));
        }
        1
    }
    let mut ask = Ask { read, found: None };
    // SAFETY: `first` is as dl_iterate_phdr wants it, and the place outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(first::<T>), (&raw mut ask).cast()) };
    ask.found
}

/// More than any heap has.
const FAR: usize = 1 << 40;

/// How much below its end the main thread's stack is taken to reach.
const STACK_LEN: usize = 4 << 20;

#[inline]
pub(crate) fn is_never_a_device(addr: usize) -> bool {
    if ASKED.stack.load(Relaxed).wrapping_sub(addr).wrapping_sub(1) < STACK_LEN
        || addr.wrapping_sub(ASKED.program.load(Relaxed)) < ASKED.program_len.load(Relaxed)
    {
        return true;
    }
    // Most mappings are far from the heap.
    let heap = ASKED.heap.load(Relaxed);
    // SAFETY: asks where the heap ends now; changes nothing.
    addr >= heap && addr - heap < FAR && addr < unsafe { libc::sbrk(0) }.addr()
}

/// The addresses of a line of /proc/self/maps.
fn range_of(line: &str) -> Option<(usize, usize)> {
    let (from, to) = line.split_whitespace().next()?.split_once('-')?;
    Some((usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?))
}

/// The program's last writable segment, data and bss, as the linker knows it: where it begins, and its bytes.
fn program() -> Option<(usize, usize)> {
    let data = of_first_object(|info| {
        // SAFETY: an entry of the linker's has a name or NULL, and so many headers.
        let (named, headers) = unsafe {
            let named = info.dlpi_name.is_null() || *info.dlpi_name != 0;
            (named, std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)))
        };
        // An object with a name is that of another namespace.
        if named {
            return None;
        }
        // Of two, the first is read-only once it is relocated.
        let data = headers.iter().rfind(|h| h.p_type == libc::PT_LOAD && h.p_flags & libc::PF_W != 0)?;
        Some(((info.dlpi_addr + data.p_vaddr) as usize, data.p_memsz as usize))
    });
    data.flatten()
}

/// Where the heap begins, the main thread's stack ends, and the program is. None of these ever changes.
fn read_host_ranges() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let range = |name: &str| range_of(maps.lines().find(|l| l.ends_with(name))?);
    if let Some((from, len)) = program() {
        ASKED.program.store(from, Relaxed);
        ASKED.program_len.store(len, Relaxed);
    }
    if let Some((from, _)) = range("[heap]") {
        ASKED.heap.store(from, Relaxed);
    }
    // The kernel keeps that much below the stack's end free of mappings only if the limit says so.
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid place.
    unsafe { libc::getrlimit(libc::RLIMIT_STACK, &mut limit) };
    if let (Some((_, to)), true) = (range("[stack]"), limit.rlim_cur as usize >= STACK_LEN) {
        ASKED.stack.store(to, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static mut ZEROED: [u8; 100_000] = [0; 100_000];
    static mut SET: u64 = 7;

    #[test]
    fn the_data_and_bss_of_the_program_are_never_a_device_and_mappings_and_code_may_be() {
        read_host_ranges();
        let (first, set) = ((&raw const ZEROED).addr(), (&raw const SET).addr());
        assert!([first, first + 99_999, set].into_iter().all(is_never_a_device));
        let (from, len) = program().unwrap();
        assert!(is_never_a_device(from) && is_never_a_device(from + len - 1));
        assert!(!is_never_a_device(from - 1) && !is_never_a_device(from + len));
        assert!(!is_never_a_device(read_host_ranges as fn() as usize));
    }
}
