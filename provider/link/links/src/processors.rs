//! How many processors of this host the processes of a job may use together.
//!
//! What one process may use (sched_getaffinity(2)) does not say it: launchers often bind each rank to one
//! processor, with the others left to its peers. The launcher itself, the parent of a rank, is bound only
//! where all of the job is, unless that is a script which was bound as the rank. So what the process, its
//! parent or a peer that it is connected to may use counts, and no more than the quota of the control group
//! (cpu.max, or cpu.cfs_quota_us before), which holds for all processes in it.

use std::fs::read_to_string;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Words of a mask, for 8192 processors, more than a kernel can be built for.
const WORDS: usize = 128;

#[derive(Debug)]
pub(crate) struct Processors {
    mask: [AtomicU64; WORDS],
    quota: Option<usize>,
}

impl Processors {
    /// Of this process and its parent.
    pub(crate) fn new() -> Processors {
        let groups = read_to_string("/proc/self/cgroup").unwrap_or_default();
        let quota = quota(Path::new("/sys/fs/cgroup"), &groups);
        let all = Processors { mask: [const { AtomicU64::new(0) }; WORDS], quota };
        // SAFETY: no memory is involved.
        let (own, parent) = unsafe { (libc::getpid(), libc::getppid()) };
        // The calling thread may be bound otherwise than the first one.
        all.add(0);
        all.add(own);
        all.add_other(parent);
        all
    }

    /// Those of a further process, unless its pid is not visible here, which then is 0.
    pub(crate) fn add_other(&self, pid: libc::pid_t) {
        if pid > 0 {
            self.add(pid);
        }
    }

    fn add(&self, thread: libc::pid_t) {
        let mut mask = [0u64; WORDS];
        // SAFETY: so many bytes, in which any bit may be set.
        let rc = unsafe { libc::sched_getaffinity(thread, size_of_val(&mask), mask.as_mut_ptr().cast()) };
        // It may have ended.
        if rc == 0 {
            self.mask.iter().zip(mask).for_each(|(all, word)| _ = all.fetch_or(word, Relaxed));
        }
    }

    /// `usize::MAX` where nothing is known.
    pub(crate) fn count(&self) -> usize {
        let set = self.mask.iter().map(|word| word.load(Relaxed).count_ones() as usize).sum::<usize>();
        let set = if set == 0 { usize::MAX } else { set };
        self.quota.map_or(set, |quota| set.min(quota))
    }
}

/// The least quota of the groups that the process is in, in whole processors, at least one. `groups`:
/// /proc/self/cgroup; `root`: where the hierarchies are mounted.
fn quota(root: &Path, groups: &str) -> Option<usize> {
    let of_line = |line: &str| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?.trim_start_matches('/'));
        match controllers {
            "" => least(root, path, |dir| {
                let text = read_to_string(dir.join("cpu.max")).ok()?;
                let (quota, period) = text.trim().split_once(' ')?;
                ratio(quota, period)
            }),
            _ if controllers.split(',').any(|c| c == "cpu") => {
                let dirs = ["cpu", "cpu,cpuacct", controllers];
                dirs.iter().find_map(|hierarchy| {
                    least(&root.join(hierarchy), path, |dir| {
                        let read = |name| read_to_string(dir.join(name)).ok();
                        ratio(read("cpu.cfs_quota_us")?.trim(), read("cpu.cfs_period_us")?.trim())
                    })
                })
            }
            _ => None,
        }
    };
    groups.lines().filter_map(of_line).min()
}

/// The least that is found in a group and those around it. A container often sees its own group as the root,
/// whatever /proc/self/cgroup calls it.
fn least(root: &Path, path: &str, of: impl Fn(&Path) -> Option<usize>) -> Option<usize> {
    let group = root.join(path);
    group.ancestors().take_while(|dir| dir.starts_with(root)).filter_map(of).min()
}

/// No number, or one below 0: there is no quota.
fn ratio(quota: &str, period: &str) -> Option<usize> {
    let quota: usize = quota.parse().ok()?;
    quota.checked_div(period.parse().ok()?).map(|n| n.max(1))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Files by path and content, for as long as it lives.
    struct Tree(std::path::PathBuf);

    impl Tree {
        fn new(name: &str, files: &[(&str, &str)]) -> Tree {
            let root = std::env::temp_dir().join(format!("strait-{name}-{}", std::process::id()));
            for (path, content) in files {
                let path = root.join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, content).unwrap();
            }
            Tree(root)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_least_quota_of_a_group_and_those_around_it_counts() {
        let files = [
            ("a/cpu.max", "800000 100000\n"),
            ("a/b/cpu.max", "max 100000\n"),
            ("a/b/c/cpu.max", "950000 100000\n"),
            ("low/cpu.max", "50000 100000\n"),
        ];
        let two = Tree::new("cgroup2", &files);
        let of = |groups: &str| quota(&two.0, groups);
        assert_eq!(of("0::/a/b/c\n"), Some(8));
        assert_eq!(of("0::/a/b\n"), Some(8));
        assert_eq!(of("0::/low\n"), Some(1), "half of one is one");
        assert_eq!((of("0::/\n"), of("0::/elsewhere\n"), of("")), (None, None, None));
        let files = [
            ("cpu,cpuacct/job/cpu.cfs_quota_us", "350000\n"),
            ("cpu,cpuacct/job/cpu.cfs_period_us", "100000\n"),
            ("cpu,cpuacct/cpu.cfs_quota_us", "-1\n"),
            ("cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
        ];
        let one = Tree::new("cgroup1", &files);
        let of = |groups: &str| quota(&one.0, groups);
        assert_eq!(of("5:memory:/job\n4:cpu,cpuacct:/job\n0::/\n"), Some(3));
        assert_eq!(of("4:cpuset:/job\n"), None);
        assert_eq!(of("4:cpu,cpuacct:/other\n"), None, "none there");
    }

    #[test]
    fn what_may_be_used_is_the_smaller_of_mask_and_quota() {
        let mut mask = [0; WORDS];
        let count = |mask: &[u64; WORDS], quota| Processors { mask: mask.map(AtomicU64::new), quota }.count();
        assert_eq!((count(&mask, None), count(&mask, Some(3))), (usize::MAX, 3));
        (mask[0], mask[127]) = (0b101, 1);
        assert_eq!((count(&mask, None), count(&mask, Some(2)), count(&mask, Some(9))), (3, 2, 3));
    }
}
