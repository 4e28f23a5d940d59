//! Processes of other users, and in other user namespaces.

use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use hmem::Span;
use link::ShmLink;
use link_api::{Direct, FrameLink, Gone, Grant, Link, NoDirect, PeerId, Refused, RmaLink as _, Way};
use wire::{Addr, Seg};

use crate::common::{OTHER_UID, command, finish, frame, is_root, open, printed_addr, say, start};

/// A connection to the endpoint's socket, made by hand.
fn connect(addr: Addr) -> i32 {
    let text = format!("strait/{addr}");
    // SAFETY: a `sockaddr_un` is plain data; the name and its length are those of an abstract
    // socket.
    unsafe {
        let sock = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0);
        let mut name: libc::sockaddr_un = std::mem::zeroed();
        name.sun_family = libc::AF_UNIX as libc::sa_family_t;
        for (to, from) in name.sun_path[1..].iter_mut().zip(text.bytes()) {
            *to = from as libc::c_char;
        }
        let len = 3 + text.len() as libc::socklen_t;
        assert_eq!(libc::connect(sock, (&raw const name).cast(), len), 0);
        sock
    }
}

/// A process of another user.
pub fn foreign(mut link: ShmLink, to: PeerId, parent: Addr) {
    // The parent's listener is another user's.
    assert_eq!(link.send(to, b"x", &[], 0, 0), Err(Refused::Gone(Gone::Denied)));
    // And does not listen to us either, whatever we say.
    let sock = connect(parent);
    // SAFETY: a local array of 16 bytes, sent and received.
    unsafe {
        let mut bytes = [0u8; 16];
        libc::send(sock, bytes.as_ptr().cast(), 16, libc::MSG_NOSIGNAL);
        assert!(libc::recv(sock, bytes.as_mut_ptr().cast(), 16, 0) <= 0);
    }
    println!("!{}", link.addr());
    // Until the parent has tried.
    let _ = std::io::stdin().read_line(&mut String::new());
    assert!(link.poll().is_none());
}

/// Is found by another user.
pub fn owner(mut link: ShmLink, _to: PeerId, _parent: Addr) {
    println!("!{}", link.addr());
    let (report, reported) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        std::io::stdin().lines().map_while(Result::ok).for_each(|l| drop(report.send(l)))
    });
    let other = loop {
        assert!(link.poll().is_none(), "heard of another user");
        match reported.recv_timeout(Duration::from_millis(1)) {
            Ok(line) => break link.peer(&Addr::new(line.parse().unwrap())),
            Err(e) => assert_eq!(e, std::sync::mpsc::RecvTimeoutError::Timeout),
        }
    };
    assert_eq!(link.send(other, b"x", &[], 0, 0), Err(Refused::Gone(Gone::Denied)));
}

/// Talks with a process of the same user.
pub fn kin(mut link: ShmLink, _to: PeerId, _parent: Addr) {
    let mut child = start("echo", link.addr());
    let (from, _) = frame(&mut link);
    say(&mut link, from, b"ping");
    assert_eq!(frame(&mut link), (from, b"ping".to_vec()));
    drop(link);
    child.wait().unwrap();
}

/// Cannot access memory of a process that hides it.
pub fn refused(mut link: ShmLink, _to: PeerId, _parent: Addr) {
    let mut hidden = start("hidden", link.addr());
    let (from, _) = frame(&mut link);
    let local = [Span::leak(8)];
    let remote = [Seg { addr: local[0].addr().into(), len: 8.into() }];
    assert_eq!(
        link.access(Way::Get, from, &Direct::new(Grant::Agreed, &remote, &local, 8)),
        Err(NoDirect::Never)
    );
    assert_eq!(
        link.access(Way::Put, from, &Direct::new(Grant::Agreed, &remote, &local, 8)),
        Err(NoDirect::Never)
    );
    let text = link.describe(from);
    assert!(text.contains("frames only: process_vm_readv refused: EPERM"), "{text}");
    say(&mut link, from, b"enough");
    hidden.wait().unwrap();
}

/// Hides its memory.
pub fn hidden(mut link: ShmLink, to: PeerId, _parent: Addr) {
    // SAFETY: prctl(PR_SET_DUMPABLE) takes a number.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) };
    say(&mut link, to, b"here");
    frame(&mut link);
}

#[test]
fn other_users_are_refused_both_ways() {
    if !is_root() {
        return eprintln!("skipped: only root can start a process of another user");
    }
    let mut link = open();
    let mut child = command("foreign", link.addr());
    child.uid(OTHER_UID).stdout(Stdio::piped()).stdin(Stdio::piped());
    let mut child = match child.spawn() {
        Ok(child) => child,
        Err(e) => return eprintln!("skipped: another user may not start this program: {e}"),
    };
    let (report, reported) = std::sync::mpsc::channel();
    let out = BufReader::new(child.stdout.take().unwrap());
    std::thread::spawn(move || {
        for line in out.lines().map_while(Result::ok) {
            if let Some((_, addr)) = line.split_once('!') {
                let _ = report.send(addr.to_owned());
            }
        }
    });
    let theirs = loop {
        assert!(link.poll().is_none());
        match reported.recv_timeout(Duration::from_millis(1)) {
            Ok(addr) => break addr,
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {}
            Err(e) => panic!("{e}"),
        }
    };
    let to = link.peer(&Addr::new(theirs.parse().unwrap()));
    assert_eq!(link.send(to, b"x", &[], 0, 0), Err(Refused::Gone(Gone::Denied)));
    drop(child.stdin.take());
    finish(child);
}

/// Has a child be in a user namespace of its own, without a mapping.
fn unmapped(command: &mut Command) -> &mut Command {
    // SAFETY: unshare(2) takes a number.
    let leave = || match unsafe { libc::unshare(libc::CLONE_NEWUSER) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    };
    // SAFETY: the closure makes one system call.
    unsafe { command.pre_exec(leave) }
}

/// Without a mapping each user is seen as the same uid, and sees all others as that.
#[test]
fn users_without_a_mapping_are_not_taken_for_each_other() {
    if !is_root() {
        return eprintln!("skipped: only root can start processes of other users");
    }
    for (here, there) in [(true, true), (true, false), (false, true)] {
        let command = |role, addr, uid, apart| {
            let mut c = command(role, addr);
            c.uid(uid).stdout(Stdio::piped()).stdin(Stdio::piped());
            if apart {
                unmapped(&mut c);
            }
            c
        };
        // The one that is not mapped takes no process of uid 65534 for its own, either.
        let mut owner = match command("owner", open().addr(), OTHER_UID - u32::from(here), here).spawn() {
            Ok(child) => child,
            Err(e) => return eprintln!("skipped: no user namespaces, or not this program: {e}"),
        };
        let mut other = command("foreign", printed_addr(&mut owner), OTHER_UID - 2 * u32::from(there), there)
            .spawn()
            .unwrap();
        let addr = printed_addr(&mut other);
        writeln!(owner.stdin.as_mut().unwrap(), "{addr}").unwrap();
        finish(owner);
        drop(other.stdin.take());
        finish(other);
    }
}

#[test]
fn processes_of_one_user_without_a_mapping_talk() {
    if !is_root() {
        return eprintln!("skipped: only root can start processes of other users");
    }
    for uid in [OTHER_UID, OTHER_UID - 1] {
        let mut c = command("kin", open().addr());
        match unmapped(c.uid(uid)).spawn() {
            Ok(child) => finish(child),
            Err(e) => eprintln!("skipped: no user namespaces, or not this program: {e}"),
        }
    }
}

#[test]
fn a_process_that_hides_its_memory_is_served_with_frames() {
    if !is_root() {
        return eprintln!("skipped: only root can start processes of another user");
    }
    let mut child = command("refused", open().addr());
    match child.uid(OTHER_UID).spawn() {
        Ok(child) => finish(child),
        Err(e) => eprintln!("skipped: another user may not start this program: {e}"),
    }
}
