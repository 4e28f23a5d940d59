//! Which limit keeps a process from more memory, for people.

use std::fmt;
use std::fs::File;
use std::io::Read;

/// Says which limit a mapping of so many bytes, or about so many, is beyond, after mmap(2) has said ENOMEM.
/// To say it allocates nothing.
#[derive(Clone, Copy, Debug)]
pub struct MemoryLimit(pub usize);

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: no memory is involved.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
        // All pages, and, last, those of data and stack.
        let mut pages = [0; 6];
        numbers("/proc/self/statm", &mut pages);
        let limits = [
            (libc::RLIMIT_AS, pages[0], "RLIMIT_AS (ulimit -v)"),
            (libc::RLIMIT_DATA, pages[5], "RLIMIT_DATA (ulimit -d)"),
        ];
        for (which, pages, name) in limits {
            let (limit, used) = (soft(which), pages * page);
            if limit != libc::RLIM_INFINITY && used.saturating_add(self.0 as u64) > limit {
                return write!(f, "raise {name}: {} of {} KiB are used", used >> 10, limit >> 10);
            }
        }
        let mut most = [u64::MAX];
        numbers("/proc/sys/vm/max_map_count", &mut most);
        if lines("/proc/self/maps") >= most[0] {
            return write!(f, "raise vm.max_map_count (sysctl): {} mappings are all used", most[0]);
        }
        f.write_str("no limit of this process: see vm.overcommit_memory (sysctl), and the memory of the host or cgroup")
    }
}

fn soft(which: libc::__rlimit_resource_t) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: 0 };
    // SAFETY: a valid place for the answer.
    unsafe { libc::getrlimit(which, &mut limit) };
    limit.rlim_cur
}

/// Hands over what is in a file, in pieces.
fn each_piece(path: &str, mut take: impl FnMut(&[u8])) {
    let Ok(mut file) = File::open(path) else { return };
    let mut piece = [0; 4096];
    while let Ok(n @ 1..) = file.read(&mut piece) {
        take(&piece[..n]);
    }
}

/// The first numbers in a short file; what is not there stays as it is.
fn numbers(path: &str, out: &mut [u64]) {
    each_piece(path, |text| {
        let text = std::str::from_utf8(text).unwrap_or_default();
        for (number, word) in out.iter_mut().zip(text.split_ascii_whitespace()) {
            *number = word.parse().unwrap_or(*number);
        }
    });
}

fn lines(path: &str) -> u64 {
    let mut lines = 0;
    each_piece(path, |text| lines += text.iter().filter(|byte| **byte == b'\n').count() as u64);
    lines
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// In a child, since the limit is of a process.
    #[test]
    fn the_limit_is_named() {
        const CHILD: &str = "STRAIT_TEST_LIMITS";
        if std::env::var_os(CHILD).is_none() {
            let mut child = std::process::Command::new(std::env::current_exe().unwrap());
            child.args(["--exact", "limits::tests::the_limit_is_named"]).env(CHILD, "1");
            assert!(child.status().unwrap().success());
            return;
        }
        assert!(MemoryLimit(4096).to_string().starts_with("no limit of this process"));
        let mut pages = [0];
        numbers("/proc/self/statm", &mut pages);
        for (which, name) in [(libc::RLIMIT_AS, "raise RLIMIT_AS"), (libc::RLIMIT_DATA, "raise RLIMIT_DATA")]
        {
            let set = |rlim_cur| {
                let limit = libc::rlimit { rlim_cur, rlim_max: libc::RLIM_INFINITY };
                // SAFETY: a local structure.
                assert_eq!(unsafe { libc::setrlimit(which, &limit) }, 0);
            };
            set((pages[0] << 12) + (8 << 20));
            assert!(MemoryLimit(4096).to_string().starts_with("no limit"));
            assert!(MemoryLimit(1 << 30).to_string().starts_with(name));
            set(libc::RLIM_INFINITY);
        }
        assert!((10..1000).contains(&lines("/proc/self/maps")));
        let mut most = [0];
        numbers("/proc/sys/vm/max_map_count", &mut most);
        if most[0] < 200_000 {
            // Each page of its own, since the next one may not be read.
            let map = |n: u64| {
                let (prot, flags) =
                    ([libc::PROT_NONE, libc::PROT_READ], libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
                // SAFETY: a new mapping.
                unsafe { libc::mmap(std::ptr::null_mut(), 4096, prot[n as usize % 2], flags, -1, 0) }
            };
            let ended = (0..most[0]).find(|n| map(*n) == libc::MAP_FAILED);
            let said = MemoryLimit(4096).to_string();
            assert!(ended.is_some() && said.starts_with("raise vm.max_map_count"), "{said}");
        }
    }
}
