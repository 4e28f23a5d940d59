//! Which processes are on which host.

use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::rsh;

/// Longest list of hosts.
const LONGEST: u64 = 1 << 20;

/// A host of the job, and how many processes it takes if that is given.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Host {
    name: String,
    slots: Option<usize>,
}

/// The ranks of each host.
pub type Placed = Vec<(String, Range<usize>)>;

/// The hosts of a list such as `a,b:4`, or of the lines of a file: a name, and `slots=N` or `:N` behind it.
fn hosts(text: &str) -> Result<Vec<Host>, String> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or(""));
    lines.flat_map(|line| line.split(',')).filter(|one| !one.trim().is_empty()).map(host).collect()
}

fn host(text: &str) -> Result<Host, String> {
    let mut words = text.split_whitespace();
    let name = words.next().unwrap_or("");
    let (name, mut slots) = match name.split_once(':') {
        Some((name, slots)) => (name, Some(slots)),
        None => (name, None),
    };
    for word in words {
        slots = Some(
            word.strip_prefix("slots=")
                .ok_or_else(|| format!("{word:?} of the host {name} is not slots=N"))?,
        );
    }
    let name = rsh::host(name)?;
    let count = |slots: &str| {
        let count = slots.parse::<usize>().ok().filter(|slots| (1..=65536).contains(slots));
        count.ok_or_else(|| format!("{slots:?} slots of the host {name}: 1 to 65536 are possible"))
    };
    Ok(Host { slots: slots.map(count).transpose()?, name })
}

/// The text of a file of hosts.
pub fn read(file: &Path) -> Result<String, String> {
    let named = |why: &dyn std::fmt::Display| format!("{}: {why}", file.display());
    // The open of a FIFO would wait for its writer.
    let opened = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(file);
    let opened = opened.map_err(|e| named(&e))?;
    if !opened.metadata().map_err(|e| named(&e))?.is_file() {
        return Err(named(&"it is no regular file"));
    }
    let mut text = String::new();
    let n = opened.take(LONGEST + 1).read_to_string(&mut text).map_err(|e| named(&e))?;
    if n as u64 > LONGEST {
        return Err(named(&"it is longer than 1 MiB"));
    }
    Ok(text)
}

/// The ranks of each host, in the order of the list. Without slots the hosts have equal parts; else each is
/// filled before the next one, and a host without a number has one slot.
pub fn placed(procs: usize, text: &str) -> Result<Placed, String> {
    let all = hosts(text)?;
    let n = all.len();
    if n == 0 {
        return Err("the list of hosts is empty".into());
    }
    let some_have = all.iter().any(|host| host.slots.is_some());
    let slots: usize = all.iter().map(|host| host.slots.unwrap_or(1)).sum();
    if some_have && slots < procs {
        return Err(format!("the hosts have {slots} slots for {procs} processes: give HOST:SLOTS more"));
    }
    let mut next = 0;
    let ranks = all.into_iter().enumerate().map(|(at, host)| {
        let first = next;
        next = match some_have {
            true => procs.min(first + host.slots.unwrap_or(1)),
            false => procs * (at + 1) / n,
        };
        (host.name, first..next)
    });
    Ok(ranks.filter(|(_, ranks)| !ranks.is_empty()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_placed_by_slots_or_in_equal_parts() {
        let placed = |procs, text| {
            let all = placed(procs, text).unwrap();
            all.into_iter().map(|(name, ranks)| format!("{name} {ranks:?}")).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(placed(5, "a,b"), "a 0..2 b 2..5");
        assert_eq!(placed(1, "a,b,c"), "c 0..1");
        assert_eq!(placed(5, "a:1,b:4"), "a 0..1 b 1..5");
        assert_eq!(placed(2, "a:4,b"), "a 0..2");
        assert_eq!(placed(3, "# all\na slots=2 # fast\n\nb\n"), "a 0..2 b 2..3");
    }

    #[test]
    fn what_is_no_file_of_hosts_is_refused() {
        let dir = std::env::temp_dir().join(format!("strait-hosts-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let (fifo, long, list) = (dir.join("fifo"), dir.join("long"), dir.join("list"));
        let name = std::ffi::CString::new(fifo.as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: a string that ends in NUL.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        std::fs::write(&long, "#".repeat(LONGEST as usize + 1)).unwrap();
        std::fs::write(&list, "a\n").unwrap();
        let refused = [&*fifo, &*dir, &*long, Path::new("/dev/zero")].map(|file| read(file).unwrap_err());
        let taken = read(&list);
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(taken.as_deref(), Ok("a\n"));
        for (error, why) in refused.iter().zip(["regular file", "regular file", "1 MiB", "regular file"]) {
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn lists_that_cannot_be_are_refused() {
        let refused = |text: &str, why: &str| {
            let error = placed(4, text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        };
        refused("", "empty");
        refused("a:1,b:2", "3 slots for 4 processes");
        refused("a:x", "1 to 65536");
        refused("a:0", "1 to 65536");
        refused("-oProxyCommand=x", "no name of a host");
        refused("a sluts=2", "is not slots=N");
    }
}
