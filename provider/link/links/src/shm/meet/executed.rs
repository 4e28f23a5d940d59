//! Peers that became another program while a process that they had forked holds their sockets.
//!
//! execve(2) closes all sockets of the library's, by which peers learn of it, but not a forked child's copies
//! of them; pid and pidfd stay. So now and then it is asked of each peer
//!
//! - that has named its address space, whether that is gone ([`crate::space::is_gone`]);
//! - that has not answered a channel yet, whether its process still has the socket that it listens on, which
//!   its table of descriptors in /proc shows ([`ipc::listeners`] has the socket's number). A process that
//!   takes long to answer, however long, does have it.
//!
//! What cannot be found out is taken for no: an address space without a keeper, a /proc that is not there or
//! is not to be read (another user's limits, not dumpable, another pid namespace), no pidfds.

use std::collections::{HashMap, HashSet};
use std::fs::{File, read_dir, read_link, read_to_string};
use std::io::{BufRead, BufReader, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use ipc::socket;
use meet::Life;

use crate::shm::meet::hello;
use crate::shm::meet::looks::{EVERY, Looks};
use crate::shm::meet::reach::{Deserted, Reach};
use crate::shm::peer::Peer;
use crate::shm::peers::Peers;

/// Longest time spent on them in one look (but for the last peer), and what part of all time no more than is
/// spent: a process may have many descriptors, and a host many sockets.
const MOST: Duration = Duration::from_millis(20);
const PART: u32 = 50;

impl Looks {
    /// The peers that are another program by now.
    #[cold]
    pub(in crate::shm) fn find_executed(&mut self, peers: &mut Peers) -> Vec<u32> {
        self.taken();
        let now = Instant::now();
        let (mut any, mut silent, mut executed) = (false, Vec::new(), Vec::new());
        for id in peers.ids() {
            let peer = &mut peers[id];
            if peer.dying.is_some() || peer.out.is_none() && peer.inb.is_none() {
                continue;
            }
            any = true;
            if is_seen_to_end(peer) {
                continue;
            }
            // A process that ends loses its keeper some time before its sockets: the next look finds that
            // these have gone.
            let gone = peer.space_is_gone();
            if std::mem::replace(&mut peer.missed, gone) && gone {
                executed.push(id);
            } else if let Some(name) = waits_for(peer, now) {
                silent.push((id, name));
            }
        }
        self.set(any);
        if !silent.is_empty() && self.rest.is_none_or(|rest| rest <= now) {
            find_deserted(peers, &silent, &mut executed);
            let end = Instant::now();
            self.rest = Some(end + (end - now) * PART);
        }
        executed
    }
}

/// Whether a descriptor shows a peer's end.
fn is_seen_to_end(peer: &Peer) -> bool {
    let mut socks = peer.inb.iter().map(|i| &i.sock).chain(peer.out.iter().map(|o| &o.sock));
    peer.life.as_ref().is_some_and(Life::has_ended) || socks.any(socket::hung_up)
}

/// The name of the socket that a channel to a peer waits to be accepted by, if it has for so long that this
/// is to be looked into.
fn waits_for(peer: &Peer, now: Instant) -> Option<String> {
    let (out, life) = (peer.out.as_ref()?, peer.life.as_ref()?);
    let silent = out.ask.is_due(now)
        && life.pid() == out.pid
        && out.incarnation.is_none()
        && hello::peek_welcome(&out.sock).is_none();
    if silent { socket::peer_name(&out.sock).ok() } else { None }
}

/// Adds to `executed` those of whose process the sockets of these names are not any more.
fn find_deserted(peers: &mut Peers, silent: &[(u32, String)], executed: &mut Vec<u32>) {
    let begin = Instant::now();
    // As long as a channel is not reset, the socket it was made to is open, and nothing else gets its name.
    let sockets = listeners(&silent.iter().map(|(_, name)| name.as_str()).collect());
    for (id, name) in silent {
        let peer = &mut peers[*id];
        let (Some(out), Some(life)) = (&mut peer.out, &peer.life) else { continue };
        out.ask.asked(begin);
        if let Some(&Some(socket)) = sockets.get(name) {
            let gone = holds(life, socket) == Some(false);
            if std::mem::replace(&mut out.ask.missed, gone) && gone {
                let process = life.try_clone().ok();
                peer.reach.set_deserted(process.map(|process| Deserted { socket, process }));
                executed.push(*id);
            } else if gone {
                // As above.
                out.ask.next = begin + EVERY / 2;
            }
        }
        if begin.elapsed() > MOST {
            break;
        }
    }
}

/// Whether the socket on which a peer listened may be there still, which only a process forked from it has:
/// nothing that is sent to it is read. It is not there if the table lacks it; an entry of the table may be
/// another user's.
pub(in crate::shm) fn may_be_deserted(reach: &mut Reach) -> bool {
    let Some(Deserted { socket, .. }) = reach.deserted() else { return false };
    let is_there = find_listener(|inode, _| inode == *socket).is_some();
    if !is_there {
        reach.set_deserted(None);
    }
    is_there
}

/// Whether that is the socket to which `sock` has been connected, and on which the process `pid` once
/// listened.
pub(in crate::shm) fn is_deserted(reach: &mut Reach, sock: &OwnedFd, pid: i32) -> bool {
    let Some(Deserted { socket, process }) = reach.deserted() else { return false };
    // The kernel's word: another process has the name by now. Or the program that this one has become.
    let another = pid != process.pid()
        || socket::peer_name(sock).is_ok_and(|name| {
            let own = |inode| inode != *socket && holds(process, inode) != Some(false);
            find_listener(|inode, found| found == name && own(inode)).is_some()
        });
    if another {
        reach.set_deserted(None);
    }
    !another
}

/// The numbers of the sockets that listen under these names; `None` where several seem to. Any process, of
/// any user, may have a socket whose name reads like another one's in the table ([`find_in_table`]): with a
/// space behind it, or with a line break before a whole line. The right one is in the table as well, so that
/// such a name is no evidence.
fn listeners(wanted: &HashSet<&str>) -> HashMap<String, Option<u64>> {
    let mut sockets = HashMap::new();
    find_listener(|inode, name| {
        if wanted.contains(name) {
            let known = sockets.entry(name.to_owned()).or_insert(Some(inode));
            *known = known.filter(|known| *known == inode);
        }
        false
    });
    sockets
}

/// The number of the first listening unix socket of this network namespace that is it, by its number and
/// name.
pub(in crate::shm) fn find_listener(mut is_it: impl FnMut(u64, &str) -> bool) -> Option<u64> {
    #[cfg(all(test, not(loom)))]
    if tests::TABLE_ALONE.get() {
        return find_in_table(is_it);
    }
    // Names may be any bytes.
    let listed =
        ipc::listeners::find(|inode, name| std::str::from_utf8(name).is_ok_and(|name| is_it(inode, name)));
    listed.unwrap_or_else(|_| find_in_table(is_it))
}

/// The same where the kernel has no list, by the table of all unix sockets.
fn find_in_table(mut is_it: impl FnMut(u64, &str) -> bool) -> Option<u64> {
    /// `__SO_ACCEPTCON` of linux/net.h: it listens.
    const LISTENS: u32 = 1 << 16;
    let table = BufReader::new(File::open("/proc/thread-self/net/unix").ok()?);
    // Names may be any bytes.
    table.split(b'\n').map_while(Result::ok).find_map(|line| {
        // Num RefCount Protocol Flags Type St Inode Path
        let mut words = std::str::from_utf8(&line).ok()?.split_ascii_whitespace().skip(3);
        let flags = u32::from_str_radix(words.next()?, 16).ok()?;
        let inode = words.nth(2)?.parse().ok()?;
        let name = words.next()?.strip_prefix('@')?;
        (flags & LISTENS != 0 && is_it(inode, name)).then_some(inode)
    })
}

/// Whether a process that lives has a descriptor of this socket; `None` if that is not to be found out.
fn holds(life: &Life, socket: u64) -> Option<bool> {
    // By the pid that this /proc has it under.
    let info = read_to_string(format!("/proc/thread-self/fdinfo/{}", life.fd().as_raw_fd())).ok()?;
    let pid = info.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim().parse::<u32>().ok()?;
    let name = format!("socket:[{socket}]");
    let mut unknown = pid == 0;
    // Threads may have tables of their own; the first one's is gone if that thread has ended.
    for thread in read_dir(format!("/proc/{pid}/task")).ok()? {
        let Ok(table) = thread.and_then(|thread| read_dir(thread.path().join("fd"))) else {
            unknown = true;
            continue;
        };
        for fd in table {
            match fd.and_then(|fd| read_link(fd.path())) {
                Ok(to) if to.as_os_str() == name.as_str() => return Some(true),
                Ok(_) => {}
                // It was closed meanwhile.
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                Err(_) => unknown = true,
            }
        }
    }
    (!unknown && !life.has_ended()).then_some(false)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::shm::meet::looks::Ask;
    use ipc::credentials::Cred;

    use crate::shm::meet::hello::{connect, listen};

    thread_local! {
        /// The kernel's list is not asked for.
        pub(in crate::shm) static TABLE_ALONE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    }

    #[test]
    fn a_silent_peer_is_looked_at_less_and_less_and_never_not_at_all() {
        let begin = Instant::now();
        let mut ask = Ask { next: begin, gap: EVERY, missed: false };
        let due: Vec<u32> = (0..40)
            .filter(|second| {
                let now = begin + EVERY * *second;
                let due = ask.is_due(now);
                if due {
                    ask.asked(now);
                }
                due
            })
            .collect();
        assert_eq!(due, [0, 2, 6, 14, 22, 30, 38]);
        assert!(!Ask::new().is_due(Instant::now()));
    }

    /// Two names that read like it, as another user's process may have them.
    #[test]
    fn a_name_that_several_sockets_seem_to_have_shows_nothing() {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::{SocketAddr, UnixListener};

        let (_port, bound) = crate::name::reserve("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let name = format!("strait/{bound}");
        let _listening = listen(bound).unwrap();
        let find = || listeners(&HashSet::from([name.as_str()]))[&name];
        let listed = ipc::listeners::find(|_, found| found == name.as_bytes());
        let by_list = find();
        TABLE_ALONE.set(true);
        let socket = find();
        assert!(socket.is_some());
        assert_eq!(by_list, socket);
        for like in [format!("{name} "), format!("x\n0 0 0 10000 0 0 1 @{name}")] {
            let liar = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&like).unwrap()).unwrap();
            assert_eq!(find(), None, "{like:?}");
            // By the kernel's list no name reads like another one.
            if listed.is_ok() {
                TABLE_ALONE.set(false);
                assert_eq!(find(), socket, "{like:?}");
                TABLE_ALONE.set(true);
            }
            drop(liar);
            assert_eq!(find(), socket);
        }
    }

    /// Any process, of any user, may have sockets with such names, and the table has them in no order.
    #[test]
    fn a_name_that_is_no_text_hides_no_other_one() {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::{SocketAddr, UnixListener};

        let (_port, bound) = crate::name::reserve("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let name = format!("strait/{bound}");
        let _listening = listen(bound).unwrap();
        let _others: Vec<UnixListener> = (0..200u8)
            .map(|n| {
                let like = [&[0xff, n][..], bound.to_string().as_bytes()].concat();
                UnixListener::bind_addr(&SocketAddr::from_abstract_name(like).unwrap()).unwrap()
            })
            .collect();
        for alone in [false, true] {
            TABLE_ALONE.set(alone);
            assert!(find_listener(|_, found| found == name).is_some());
            assert!(listeners(&HashSet::from([name.as_str()]))[&name].is_some());
        }
    }

    /// A socket, of any user, whose name reads in the table like a line of a listener with this number and
    /// name.
    fn lie(socket: u64, name: &str) -> std::os::unix::net::UnixListener {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::{SocketAddr, UnixListener};

        let like = format!("x{socket}\n0 0 0 10000 0 0 {socket} @{name}");
        UnixListener::bind_addr(&SocketAddr::from_abstract_name(&like).unwrap()).unwrap()
    }

    /// A peer whose socket was found to be deserted is followed by one that listens under its name, of
    /// another process or of the same one; the table still shows the former socket.
    #[test]
    fn a_lie_about_a_deserted_socket_keeps_no_peer_from_its_successor() {
        use crate::shm::tests::{frame, open, say};
        use link_api::Link as _;

        const GONE: u64 = 1;
        TABLE_ALONE.set(true);
        let (mut a, mut b) = (open(), open());
        let to_b = a.peer(&b.addr());
        let _lie = lie(GONE, &format!("strait/{}", b.addr()));
        let sock = connect(Some(b.addr().ip()), b.addr().port()).unwrap();
        let own = Cred::of(&sock).unwrap().pid;
        for pid in [own + 1, own] {
            let Ok(Some(life)) = Life::watch(&sock, own) else { return eprintln!("skipped: no pidfds") };
            let process = Life::of(pid, life.fd().try_clone().unwrap());
            let peer = &mut a.channels.peers[to_b.0];
            peer.reach.is_reached();
            peer.out = None;
            peer.reach.set_deserted(Some(Deserted { socket: GONE, process }));
            assert!(may_be_deserted(&mut a.channels.peers[to_b.0].reach), "the lie is not believed");
            say(&mut a, to_b, b"anew").unwrap();
            assert!(a.channels.peers[to_b.0].reach.deserted().is_none());
        }
        drop(sock);
        assert_eq!(frame(&mut b).1, b"anew");
    }

    /// A process forked from this one has the socket, too; this one lets go of it.
    #[test]
    fn a_process_has_a_socket_until_it_closes_it() {
        let (_port, bound) = crate::name::reserve("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let name = format!("strait/{bound}");
        let find = || find_listener(|_, found| found == name);
        assert_eq!(find(), None);
        let listening = listen(bound).unwrap();
        let found = find().unwrap();
        let sock = connect(Some(bound.ip()), bound.port()).unwrap();
        assert_eq!(socket::peer_name(&sock).unwrap(), name);
        // Those that are accepted have the same name.
        let _accepted = socket::accept(&listening).unwrap();
        assert_eq!(find(), Some(found));
        let life = Life::watch(&sock, Cred::of(&sock).unwrap().pid).unwrap();
        let Some(life) = life else { return eprintln!("skipped: no pidfds") };
        assert_eq!(holds(&life, found), Some(true));
        // SAFETY: the child only sleeps until it is killed, with copies of all descriptors.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: system calls that touch no memory.
            unsafe {
                libc::sleep(60);
                libc::_exit(0);
            }
        }
        drop(listening);
        assert_eq!((find(), holds(&life, found)), (Some(found), Some(false)));
        // SAFETY: a child of ours, and no place for what became of it.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        // A child that another test of this process has forked may have it a little longer.
        let begun = std::time::Instant::now();
        while find().is_some() && begun.elapsed() < std::time::Duration::from_secs(10) {
            std::thread::yield_now();
        }
        assert_eq!(find(), None);
    }
}
