//! Whether an endpoint that cannot be called may have its process still.
//!
//! The queue of a socket that listens may be full, so that no connection shows which process called listen(2)
//! on it. It may be one that does not look at its sockets for a while, or one that has ended and left the
//! socket to a process that it had forked. A process that has an endpoint has a keeper ([`crate::space`]),
//! which a forked one does not inherit.

use std::fs::{File, read_dir, read_link, read_to_string};
use std::path::Path;

use crate::shm::meet::executed::find_listener;
use crate::shm::meet::hello;
use wire::Addr;

/// Descriptors that a look has open at a time.
const AT_A_TIME: usize = 3;

/// Whether a process that has a keeper has a socket that listens under the name of an endpoint, or under that
/// of all addresses. Takes some milliseconds. What cannot be found out is taken for no, as where /proc shows
/// no other processes; for yes, where this process lacks descriptors for a look.
#[cold]
pub(in crate::shm) fn is_served(addr: &Addr) -> bool {
    let spare: Result<Vec<File>, _> = (0..AT_A_TIME).map(|_| File::open("/proc")).collect();
    if spare.is_err_and(|e| ipc::socket::is_lack(&e)) {
        return true;
    }
    let names = [Some(addr.ip()), None].map(|ip| hello::unix_name(ip, addr.port()));
    let mut sockets = Vec::new();
    find_listener(|inode, name| {
        if names.iter().any(|own| own == name) {
            sockets.push(format!("socket:[{inode}]"));
        }
        false
    });
    let Ok(processes) = read_dir("/proc") else { return false };
    let is_pid = |name: &std::ffi::OsStr| name.as_encoded_bytes().iter().all(u8::is_ascii_digit);
    !sockets.is_empty()
        && processes.flatten().any(|process| {
            is_pid(&process.file_name()) && has_keeper(&process.path()) && has_any(&process.path(), &sockets)
        })
}

fn has_keeper(process: &Path) -> bool {
    let Ok(threads) = read_dir(process.join("task")) else { return false };
    let is_keeper = |name: String| name.trim_end() == link_api::KEEPER;
    threads.flatten().any(|thread| read_to_string(thread.path().join("comm")).is_ok_and(is_keeper))
}

fn has_any(process: &Path, sockets: &[String]) -> bool {
    let Ok(threads) = read_dir(process.join("task")) else { return false };
    // The first thread's table is gone if that thread has ended, and the keeper has one of its own.
    threads.flatten().filter_map(|thread| read_dir(thread.path().join("fd")).ok()).any(|table| {
        let is_one = |to: std::path::PathBuf| sockets.iter().any(|socket| to.as_os_str() == socket.as_str());
        table.flatten().any(|fd| read_link(fd.path()).is_ok_and(is_one))
    })
}
