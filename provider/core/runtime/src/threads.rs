//! Whether other threads of the process may call.

use std::path::Path;

/// Whether this is the only thread of the process, but for one that makes no calls ([`link_api::KEEPER`]).
/// Where /proc cannot be read, it is not.
pub(crate) fn is_single() -> bool {
    threads().is_some_and(|n| n == 1)
}

/// How many threads the process has that may make calls.
fn threads() -> Option<usize> {
    let mut n = 0;
    for thread in std::fs::read_dir("/proc/self/task").ok()? {
        n += usize::from(!is_keeper(&thread.ok()?.path())?);
    }
    Some(n)
}

fn is_keeper(thread: &Path) -> Option<bool> {
    let name = match std::fs::read(thread.join("comm")) {
        Ok(name) => name,
        // It has just ended: it is counted.
        Err(_) => return Some(false),
    };
    Some(name.trim_ascii_end() == link_api::KEEPER.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread::Builder;

    use super::*;

    #[test]
    fn a_thread_that_may_call_counts_and_a_keeper_does_not() {
        let before = threads().unwrap();
        for (name, more) in [(link_api::KEEPER, 0), ("another", 1)] {
            let (started, is_up) = mpsc::channel();
            let (stop, stopped) = mpsc::channel::<()>();
            let thread = Builder::new().name(name.into()).spawn(move || {
                started.send(()).unwrap();
                let _ = stopped.recv();
            });
            is_up.recv().unwrap();
            assert_eq!(threads().unwrap(), before + more, "{name}");
            drop(stop);
            thread.unwrap().join().unwrap();
        }
    }
}
