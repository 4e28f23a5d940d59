//! Queries and calls of the operating system.

use std::io;

/// Lets this process have as many descriptors as it may.
pub fn raise_descriptors() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place, and then read.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}

/// Between fork and exec: the process ends with its parent, `parent`, which may have ended by now. System
/// calls alone, no allocation.
pub fn end_with_parent(parent: u32) {
    // SAFETY: three system calls that take numbers.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() as u32 != parent {
            libc::raise(libc::SIGKILL);
        }
    }
}

/// The cores this process may run on.
pub fn allowed_cpus() -> Vec<usize> {
    let mut set = new_set();
    // SAFETY: the set is of the size given.
    if unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) } != 0 {
        return vec![0];
    }
    (0..libc::CPU_SETSIZE as usize)
        // SAFETY: the number is below CPU_SETSIZE.
        .filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) })
        .collect()
}

/// Binds the calling thread, and those it will start, to a core.
pub fn pin(cpu: usize) -> io::Result<()> {
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut set = new_set();
    // SAFETY: the number is below CPU_SETSIZE.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the set is of the size given.
    match unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn new_set() -> libc::cpu_set_t {
    // SAFETY: a set is an array of bits, and all zeroes is the empty one.
    unsafe { std::mem::zeroed() }
}

/// Two cores to measure between: different ones, and no threads of the same if there is a choice.
pub fn pair_of_cpus() -> (usize, usize) {
    let cpus = allowed_cpus();
    let first = cpus.first().copied().unwrap_or(0);
    let others = || cpus.iter().copied().filter(|cpu| *cpu != first);
    let second = others().find(|cpu| core_of(*cpu) != core_of(first)).or(others().next());
    (first, second.unwrap_or(first))
}

/// The cores this process may run on, one thread of each core first.
pub fn spread_cpus() -> Vec<usize> {
    let (mut first, mut second, mut seen) = (Vec::new(), Vec::new(), Vec::new());
    for cpu in allowed_cpus() {
        let core = core_of(cpu);
        match seen.contains(&core) {
            true => second.push(cpu),
            false => {
                seen.push(core);
                first.push(cpu);
            }
        }
    }
    first.append(&mut second);
    first
}

/// Package and core of a logical processor.
fn core_of(cpu: usize) -> Option<(String, String)> {
    let read = |name| std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/topology/{name}"));
    // Where sysfs has no core_id, each is a core of its own.
    let core = read("core_id").unwrap_or_else(|_| cpu.to_string());
    Some((read("physical_package_id").unwrap_or_default(), core))
}

/// Soft and hard limit; `None` is unlimited.
pub fn limit(resource: libc::__rlimit_resource_t) -> Option<(Option<u64>, Option<u64>)> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the place is ours.
    let rc = unsafe { libc::getrlimit(resource, &mut limit) };
    let some = |n| (n != libc::RLIM_INFINITY).then_some(n);
    (rc == 0).then(|| (some(limit.rlim_cur), some(limit.rlim_max)))
}

/// The bytes of this host's memory.
pub fn memory() -> Option<u64> {
    // SAFETY: sysconf(3) takes a number.
    let of = |name| u64::try_from(unsafe { libc::sysconf(name) }).ok();
    of(libc::_SC_PHYS_PAGES)?.checked_mul(of(libc::_SC_PAGESIZE)?)
}

/// The commands of membarrier(2) that there are.
pub fn membarrier_commands() -> io::Result<u64> {
    const QUERY: libc::c_int = 0;
    // SAFETY: membarrier(2) takes numbers and touches no memory of ours.
    let rc = unsafe { libc::syscall(libc::SYS_membarrier, QUERY, 0, 0) };
    u64::try_from(rc).map_err(|_| io::Error::last_os_error())
}

/// Whether memfd_create(2) works.
pub fn memfd_works() -> io::Result<()> {
    use std::os::fd::{FromRawFd, OwnedFd};
    // SAFETY: the name is a C string; nothing else is read from memory.
    let fd = unsafe { libc::memfd_create(c"strait-info".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and has no other owner.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    Ok(())
}

/// Reads 16 bytes of a process's memory.
pub fn read_process(pid: i32, address: usize) -> io::Result<[u8; 16]> {
    let mut bytes = [0u8; 16];
    let here = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let base = std::ptr::without_provenance_mut(address);
    let there = libc::iovec { iov_base: base, iov_len: bytes.len() };
    // SAFETY: the kernel writes to `bytes` alone, which is ours and as long as said, and checks the other
    // address itself.
    let n = unsafe { libc::process_vm_readv(pid, &here, 1, &there, 1, 0) };
    match usize::try_from(n) {
        Ok(n) if n == bytes.len() => Ok(bytes),
        Ok(n) => Err(io::Error::other(format!("only {n} of {} bytes could be read", bytes.len()))),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Bytes that are free in a file system, and that it has.
pub fn space(path: &str) -> Option<(u64, u64)> {
    let path = std::ffi::CString::new(path).ok()?;
    // SAFETY: the structure is plain data, for which zeros are a value.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: a C string, and a place for the answer.
    let rc = unsafe { libc::statvfs(path.as_ptr(), &mut stat) };
    (rc == 0)
        .then(|| (stat.f_bavail.saturating_mul(stat.f_frsize), stat.f_blocks.saturating_mul(stat.f_frsize)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_can_be_bound_where_it_is_allowed() {
        let (a, b) = pair_of_cpus();
        assert!(allowed_cpus().contains(&a) && allowed_cpus().contains(&b));
        std::thread::spawn(move || {
            pin(b).unwrap();
            assert_eq!(allowed_cpus(), [b]);
        })
        .join()
        .unwrap();
        assert!(pin(usize::MAX).is_err());
    }
}
