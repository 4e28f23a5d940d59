//! Processes that publish memory by the daemon, others that have it mapped, and what becomes of it when one of
//! them ends.

mod support {
    pub mod daemon;
    pub mod published;
}

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ipc::{rights, socket};
use p2pmem::daemon::wire::{Answer, Ask, MOST};
use p2pmem::daemon::{Connection, Session};
use p2pmem::publisher::PAGE;
use p2pmem::{Drain, Error};
use support::daemon::{Daemon, Process, SIZE, run};
use support::published::{NEAR, memory, publication, until};

/// Not a test: what the processes of the others do.
#[test]
fn process_of_others() {
    run();
}

#[test]
fn a_second_process_has_what_the_first_publishes_and_a_third_joins() {
    let daemon = Daemon::new("");
    let mut owner = Process::new(&daemon);
    assert_eq!(owner.say(&format!("publish card {NEAR} 65536")), "done");
    let mut user = Process::new(&daemon);
    // The closest first, host memory last.
    assert_eq!(user.say("list mlx5_0"), "card 4 0 host 0 2");
    assert_eq!(user.say("list eth0"), "host 0 2 card 6 3");
    assert_eq!(user.say("allocate 8192 mlx5_0"), "card 4");
    assert_eq!(user.say("write 7"), "done");
    assert_eq!(owner.say("own"), "7", "the memory of the first process has it");
    let mut third = Process::new(&daemon);
    let token = user.say("token");
    assert_eq!(third.say(&format!("join {token}")), "card");
    assert_eq!(third.say("read"), "7");
    assert_eq!(third.say("write 9"), "done");
    assert_eq!((owner.say("own"), user.say("read")), ("9".into(), "9".into()));
    // What the second frees the third still has; a token is its owner's.
    assert_eq!(user.say("free"), "done");
    assert_eq!(third.say("read"), "9");
    assert_eq!(user.say(&format!("join {token}")), format!("error {}", libc::ENOENT));
    assert_eq!(daemon.listed("card").map(|p| (p.available, p.buffers)), Some((57344, 1)));
    // All goes back when the last user is killed.
    third.kill();
    until("the memory is back", || daemon.listed("card").is_some_and(|p| p.available == 65536));
    assert_eq!(owner.say("unpublish card"), "0");
    assert_eq!(daemon.listed("card").map(|p| p.name), None);
    assert_eq!(user.say("allocate 4096 mlx5_0"), "host 0");
}

#[test]
fn the_end_of_a_publisher_is_an_error_at_every_user_and_no_signal() {
    let daemon = Daemon::new("");
    let mut owner = Process::new(&daemon);
    assert_eq!(owner.say(&format!("publish card {NEAR} 65536")), "done");
    let mut users: Vec<Process> = (0..4).map(|_| Process::new(&daemon)).collect();
    for user in &mut users {
        assert_eq!(user.say("allocate 4096 mlx5_0"), "card 4");
        assert_eq!(user.say("write 3"), "done");
    }
    let begin = Instant::now();
    owner.kill();
    for user in &mut users {
        let why = user.say("why");
        assert!(why.contains("the process that published card has ended"), "{why}");
        assert_eq!(user.say("pieces"), format!("error {}", libc::ESTALE));
        assert_eq!(user.say("token"), format!("error {}", libc::ESTALE));
        // It stays mapped until it is freed.
        assert_eq!(user.say("read"), "3");
    }
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    assert!(daemon.listed("card").is_none());
    for user in &mut users {
        assert_eq!((user.say("free"), user.say("allocate 4096 mlx5_0")), ("done".into(), "host 0".into()));
    }
}

/// The publisher, and whatever has the descriptor, cannot make the memory shorter.
#[test]
fn what_is_published_cannot_become_shorter() {
    let daemon = Daemon::new("");
    let mut owner = daemon.open();
    // SAFETY: a C string, and a descriptor that is new.
    let fd = unsafe {
        let fd = libc::memfd_create(c"published".as_ptr(), libc::MFD_ALLOW_SEALING | libc::MFD_CLOEXEC);
        assert!(fd >= 0 && libc::ftruncate(fd, 8192) == 0);
        OwnedFd::from_raw_fd(fd)
    };
    owner.publish(&publication("card", 8192), fd.as_fd()).unwrap();
    // SAFETY: a descriptor that is open.
    assert_eq!(unsafe { libc::ftruncate(fd.as_raw_fd(), 0) }, -1);
    let mut user = daemon.open();
    let buffer = user.allocate(&["mlx5_0"], 8192, 1, 1, false, "").unwrap();
    let (copy, at) = user.dmabuf(&buffer, 0).unwrap();
    // SAFETY: as above.
    assert_eq!((unsafe { libc::ftruncate(copy.as_raw_fd(), 0) }, at), (-1, 0));
    assert_eq!(user.dmabuf(&buffer, 1).unwrap_err().errno(), libc::EINVAL);
    // A file of a file system could.
    let path = std::env::temp_dir().join(format!("strait-publish-{}", std::process::id()));
    std::fs::write(&path, [0; 8192]).unwrap();
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let error = owner.publish(&publication("file", 8192), file.as_fd()).unwrap_err();
    assert_eq!(error.errno(), libc::EOPNOTSUPP, "{error}");
}

/// Sends a publication as it is, which [`Connection::publish`] would not.
fn rude(sock: &OwnedFd, ask: &Ask, fd: Option<&OwnedFd>) -> i32 {
    let bytes = ask.to_bytes();
    match fd {
        Some(fd) => rights::send_fd(sock, &bytes, fd.as_fd()).unwrap(),
        None => socket::send(sock, &bytes).unwrap(),
    }
    assert!(socket::wait(sock, 60_000), "nothing comes");
    let mut bytes = [0; MOST];
    let len = socket::receive(sock, &mut bytes).unwrap();
    match Answer::parse(&bytes[..len]) {
        Some(Answer::Done { .. }) => 0,
        Some(Answer::Failed { errno, why }) => {
            assert!(!why.is_empty());
            errno
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn descriptors_of_the_wrong_kind_and_lengths_are_refused() {
    let daemon = Daemon::new("");
    let sock = socket::connect(&daemon.name).unwrap();
    let ask = |name: &str, offset, len| Ask::Publish {
        name: name.into(),
        function: NEAR.into(),
        kind: "file".into(),
        offset,
        len,
        all_users: true,
    };
    let open = memory(8192);
    // SAFETY: C strings, and descriptors that are new.
    let (path, plain, readable) = unsafe {
        let link = std::ffi::CString::new(format!("/proc/self/fd/{}", open.as_raw_fd())).unwrap();
        let path = libc::open(c"/".as_ptr(), libc::O_PATH | libc::O_CLOEXEC);
        let readable = libc::open(link.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        let plain = libc::memfd_create(c"plain".as_ptr(), libc::MFD_CLOEXEC);
        assert!(path >= 0 && readable >= 0 && plain >= 0 && libc::ftruncate(plain, 8192) == 0);
        (OwnedFd::from_raw_fd(path), OwnedFd::from_raw_fd(plain), OwnedFd::from_raw_fd(readable))
    };
    let (end, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors, which are this test's.
    let [reader, _writer] = unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
        ends.map(|end| OwnedFd::from_raw_fd(end))
    };
    let null = std::fs::File::open("/dev/zero").unwrap();
    let proc = std::fs::File::open("/proc/self/status").unwrap();
    for fd in [path, plain, OwnedFd::from(end), reader, null.into(), proc.into()] {
        assert_eq!(rude(&sock, &ask("bad", 0, 8192), Some(&fd)), libc::EOPNOTSUPP, "{fd:?}");
    }
    assert_eq!(rude(&sock, &ask("bad", 0, 8192), Some(&readable)), libc::EINVAL);
    assert_eq!(rude(&sock, &ask("bad", 0, 8192), None), libc::EINVAL);
    for (offset, len) in [(0, 0), (0, 12288), (4095, 1), (8192, 4096), (u64::MAX - 4095, 4096), (0, u64::MAX)]
    {
        assert_eq!(rude(&sock, &ask("bad", offset, len), Some(&open)), libc::EINVAL, "{offset} {len}");
    }
    for name in ["", "host", "0000:03:00.0", "a b", "*"] {
        assert_eq!(rude(&sock, &ask(name, 0, 8192), Some(&open)), libc::EINVAL, "{name:?}");
    }
    assert_eq!(rude(&sock, &ask("good", 0, 8192), Some(&open)), 0);
    assert_eq!(rude(&sock, &ask("good", 0, 8192), Some(&open)), libc::EINVAL, "the name is taken");
    // A user has so many publishers and no more.
    let refused = (0..100)
        .find_map(|n| Some(rude(&sock, &ask(&format!("p{n}"), 0, 8192), Some(&open))).filter(|e| *e != 0));
    assert_eq!(refused, Some(libc::EUSERS));
    drop(sock);
    // Nothing is left, and others are served.
    until("all are withdrawn", || daemon.all.publishers().len() == 1);
    let mut good = daemon.open();
    let buffer = good.allocate(&[], PAGE, 1, 1, true, "").unwrap();
    good.free(buffer).unwrap();
}

/// A garbled publication with descriptors of any kind, and packets with more descriptors than one.
#[test]
fn descriptors_that_come_with_garbage_are_closed() {
    let daemon = Daemon::new("");
    let before = std::fs::read_dir("/proc/self/fd").unwrap().count();
    for n in 0..200 {
        let sock = socket::connect(&daemon.name).unwrap();
        let (end, other) = std::os::unix::net::UnixStream::pair().unwrap();
        let packet: &[u8] = if n % 2 == 0 { &[8, 255, 255] } else { &[8] };
        // It may have been ended for what its user has sent before.
        let _ = rights::send_fd(&sock, packet, end.as_fd());
        drop(end);
        // The daemon closes its copy: the other end reads the end.
        let other = OwnedFd::from(other);
        until("it is closed", || socket::hung_up(&other));
    }
    until("all are closed", || std::fs::read_dir("/proc/self/fd").unwrap().count() < before + 20);
    assert!(daemon.open().list(&[]).is_ok());
}

/// One that is stopped, and takes no notices.
#[test]
fn a_stopped_user_holds_up_neither_the_daemon_nor_a_publisher() {
    let daemon = Daemon::new("");
    let mut owner = daemon.open();
    let fd = memory(1 << 20);
    owner.publish(&publication("card", 1 << 20), fd.as_fd()).unwrap();
    let mut user = Process::new(&daemon);
    assert_eq!(user.say("allocate 4096 mlx5_0"), "card 4");
    user.signal(libc::SIGSTOP);
    let begin = Instant::now();
    assert_eq!(owner.unpublish("card", Drain::IfIdle).unwrap_err().errno(), libc::EBUSY);
    assert_eq!(owner.unpublish("card", Drain::Revoke).unwrap(), 1);
    let mut other = daemon.open();
    for _ in 0..100 {
        owner.publish(&publication("card", 1 << 20), fd.as_fd()).unwrap();
        let buffer = other.allocate(&["mlx5_0"], PAGE, 1, 1, false, "").unwrap();
        assert_eq!(owner.unpublish("card", Drain::Revoke).unwrap(), 1);
        assert!(other.is_revoked(buffer.handle).unwrap());
        other.free(buffer).unwrap();
    }
    assert!(begin.elapsed() < Duration::from_secs(30));
    user.signal(libc::SIGCONT);
    assert!(user.say("why").contains("card was unpublished"));
}

/// More notices, and more publishers, than a socket has room for.
#[test]
fn a_thousand_revocations_and_publishers_reach_a_process_that_takes_its_time() {
    let daemon = Daemon::new("");
    let mut owner = daemon.open();
    let fd = memory(4 << 20);
    owner.publish(&publication("card", 4 << 20), fd.as_fd()).unwrap();
    let (mut user, mut other) = (daemon.open(), daemon.open());
    let many = |of: &mut Connection, count| -> Vec<_> {
        (0..count).map(|_| of.allocate(&["mlx5_0"], PAGE, 1, 1, false, "").unwrap()).collect()
    };
    let (held, others) = (many(&mut user, 600), many(&mut other, 400));
    // One of the users does it, and has its answer behind its own notices.
    assert_eq!(other.unpublish("card", Drain::Revoke).unwrap(), 1000);
    assert!(others.iter().all(|b| other.is_revoked(b.handle).unwrap()));
    // The daemon serves others while this one has not read a notice.
    let host = owner.allocate(&[], PAGE, 1, 1, true, "").unwrap();
    owner.free(host).unwrap();
    let mut all = Vec::new();
    while all.len() < 600 {
        match user.revoked().unwrap() {
            Some((handle, _)) => all.push(handle),
            None => assert!(socket::wait(&user.fd(), 60_000), "{} notices have come", all.len()),
        }
    }
    assert!(held.iter().all(|b| all.contains(&b.handle)));
    held.into_iter().for_each(|b| user.free(b).unwrap());
    others.into_iter().for_each(|b| other.free(b).unwrap());
    for n in 0..1000 {
        let fd = memory(4096);
        let region = p2pmem::publisher::Region::of_file(&format!("p{n}"), None, fd, 0, 4096);
        daemon.all.publish(Arc::new(region)).unwrap();
    }
    assert_eq!(user.list(&[]).unwrap().len(), 1001);
}

#[test]
fn a_process_has_rules_of_its_own_and_routes() {
    let daemon = Daemon::new("quota 64K publisher=card");
    let mut owner = daemon.open();
    let fd = memory(1 << 20);
    owner.publish(&publication("card", 1 << 20), fd.as_fd()).unwrap();
    let (mut one, mut other) = (daemon.open(), daemon.open());
    let ask = |of: &mut Connection, client: &str, len| {
        let buffer = of.allocate(&[client], len, 1, 1, true, "a")?;
        let publisher = buffer.publisher.clone();
        of.free(buffer).map(|()| publisher)
    };
    assert_eq!(ask(&mut one, "mlx5_0", PAGE).unwrap(), "card");
    assert_eq!(one.add_rule("deny publisher").unwrap_err().errno(), libc::EINVAL);
    one.add_rule("deny publisher=card client=mlx5_0 job=a").unwrap();
    assert_eq!(ask(&mut one, "mlx5_0", PAGE).unwrap(), "host");
    assert_eq!(ask(&mut other, "mlx5_0", PAGE).unwrap(), "card", "another process has no such rule");
    // A rule of one's own takes nothing away from the daemon's.
    other.add_rule("pin publisher=card").unwrap();
    assert_eq!(ask(&mut other, "mlx5_0", 1 << 17).unwrap_err().errno(), libc::ENOMEM);
    other.add_rule("quota 4K").unwrap();
    assert_eq!(ask(&mut other, "mlx5_0", 2 * PAGE).unwrap_err().errno(), libc::ENOMEM);
    let refused = (0..100).find_map(|_| other.add_rule("max-distance 4").err()).unwrap();
    assert_eq!(refused.errno(), libc::EINVAL);
    let (reach, why) = one.route("card", "mlx5_0").unwrap();
    assert_eq!((reach.map, reach.distance), (0, 4), "{why}");
    assert_eq!(one.route("none", "mlx5_0").unwrap_err().errno(), libc::ENOENT);
    assert_eq!(one.route("card", "none").unwrap_err().errno(), libc::ENODEV);
    assert!(one.list(&["none"]).is_err_and(|e| e.errno() == libc::ENODEV));
}

#[test]
fn the_end_of_the_daemon_is_an_error_at_its_users_and_the_next_one_serves() {
    let daemon = Daemon::new("");
    let session = Session::open(&daemon.name).unwrap();
    let wanted = |c: &mut Connection| c.allocate(&["mlx5_0"], PAGE, 1, 1, true, "");
    let fd = memory(8192);
    session.with(|c| c.publish(&publication("card", 8192), fd.as_fd())).unwrap();
    let (one, two) = (session.take(wanted).unwrap(), session.take(wanted).unwrap());
    let (said, says) = std::sync::mpsc::channel();
    one.on_revoke(move |why| said.send(why.to_owned()).unwrap()).unwrap();
    let name = daemon.name.clone();
    drop(daemon);
    assert_eq!(says.recv_timeout(Duration::from_secs(60)).unwrap(), "the daemon has ended");
    for buffer in [&one, &two] {
        assert!(matches!(buffer.pieces(), Err(Error::Revoked(_))));
        assert_eq!(buffer.token().unwrap_err().errno(), libc::ESTALE);
    }
    assert_eq!(session.with(|c| c.list(&[])).unwrap_err().errno(), libc::ECONNRESET);
    one.free().unwrap();
    two.free().unwrap();
    assert_eq!(Session::open(&name).unwrap_err().errno(), libc::ECONNREFUSED);
    let next = Daemon::named(&name);
    let session = Session::open(&name).unwrap();
    session.with(|c| c.publish(&publication("card", 8192), fd.as_fd())).unwrap();
    assert_eq!(session.take(wanted).unwrap().known().unwrap().publisher, "card");
    drop(session);
    until("it is withdrawn", || next.all.publishers().len() == 1);
}

/// A notice comes by a thread of the library, without a call of the program's.
#[test]
fn a_notice_of_a_revocation_comes_by_itself() {
    let daemon = Daemon::new("");
    let mut owner = daemon.open();
    let fd = memory(8192);
    owner.publish(&publication("card", 8192), fd.as_fd()).unwrap();
    let session = Session::open(&daemon.name).unwrap();
    let buffer = session.take(|c| c.allocate(&["mlx5_0"], PAGE, 1, 1, false, "")).unwrap();
    let wider = buffer.widen(&["0000:07:00.0"]).unwrap();
    let (called, calls) = (Arc::new(AtomicBool::new(false)), std::sync::mpsc::channel());
    let never = called.clone();
    let notice = wider.on_revoke(move |_| never.store(true, Ordering::Relaxed)).unwrap();
    wider.cancel_notice(notice);
    let said = calls.0;
    buffer.on_revoke(move |why| said.send(why.to_owned()).unwrap()).unwrap();
    drop(owner);
    let why = calls.1.recv_timeout(Duration::from_secs(60)).unwrap();
    assert!(why.contains("the process that published card has ended"), "{why}");
    assert!(wider.why().is_some() && !called.load(Ordering::Relaxed));
    // At once, where it was before.
    let (said, says) = std::sync::mpsc::channel();
    wider.on_revoke(move |why| said.send(why.to_owned()).unwrap()).unwrap();
    assert!(says.try_recv().is_ok());
}

/// Users, where this process may become others.
#[test]
fn memory_of_a_user_is_for_others_if_both_agree() {
    // SAFETY: geteuid(2) cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: only root becomes other users");
        return;
    }
    let daemon = Daemon::new("");
    let Some(mut owner) = Process::of_user(&daemon, 1001) else { return };
    let mut same = Process::of_user(&daemon, 1001).unwrap();
    let (mut one, mut two) =
        (Process::of_user(&daemon, 1002).unwrap(), Process::of_user(&daemon, 1003).unwrap());
    assert_eq!(owner.say(&format!("publish own {NEAR} 8192")), "done");
    assert_eq!(same.say("allocate 4096 mlx5_0"), "own 4");
    assert_eq!((same.say("write 5"), one.say("list mlx5_0")), ("done".into(), "host 0 2".into()));
    let token = same.say("token");
    assert_eq!(one.say(&format!("join {token}")), format!("error {}", libc::EPERM));
    // Nor root, without a way to say that another user's writes are expected.
    let mut root = Process::of_user(&daemon, 0).unwrap();
    assert_eq!(root.say(&format!("join {token}")), format!("error {}", libc::EPERM));
    assert_eq!(one.say("others 8192 mlx5_0"), "host 0");
    assert_eq!((one.say("free"), same.say("free")), ("done".into(), "done".into()));
    assert_eq!(one.say("unpublish own"), format!("error {}", libc::EPERM));
    assert_eq!(same.say("unpublish own"), "0");
    assert_eq!(owner.say(&format!("publish-all own {NEAR} 8192")), "done");
    // Not without a word of the requesting process; and no part of it.
    assert_eq!(one.say("allocate 8192 mlx5_0"), "host 0");
    assert_eq!((one.say("free"), one.say("others 4096 mlx5_0")), ("done".into(), "host 0".into()));
    assert_eq!((one.say("free"), one.say("others 8192 mlx5_0")), ("done".into(), "own 4".into()));
    // What one other user has had, and may have mapped, no second one gets.
    assert_eq!((one.say("free"), two.say("others 8192 mlx5_0")), ("done".into(), "host 0".into()));
    assert_eq!((one.say("others 8192 mlx5_0"), one.say("free")), ("own 4".into(), "done".into()));
    assert_eq!(same.say("allocate 4096 mlx5_0"), "own 4");
}

/// Publishers and users, 64 of them, that are killed at any time.
#[test]
fn publishers_and_users_that_are_killed_leave_nothing() {
    let daemon = Daemon::new("");
    let mut ties = p2pmem::topology::Ties::new(Some(5));
    let role = |n: usize| if n % 4 == 0 { format!("storm-publish {n}") } else { format!("storm-use {n}") };
    let start = |n: usize| {
        let mut process = Process::new(&daemon);
        process.order(&role(n));
        process
    };
    let mut all: Vec<Process> = (0..64).map(start).collect();
    for n in 64..128 {
        let victim = ties.pick(all.len());
        assert!(all[victim].is_running(), "it failed");
        all[victim].kill();
        all[victim] = start(n);
    }
    // All of them have got somewhere.
    until("some have memory", || daemon.all.publishers().iter().any(|p| p.name != "host" && p.buffers > 0));
    for process in &mut all {
        assert!(process.is_running(), "it failed");
        process.kill();
    }
    until("nothing is left", || {
        let left = daemon.all.publishers();
        left.len() == 1 && left[0].available == SIZE && left[0].buffers == 0
    });
    let sock = socket::connect(&daemon.name).unwrap();
    assert!(sock.as_raw_fd() < 300, "{}", sock.as_raw_fd());
}

/// Processes as those of two containers, that meet at a socket with a path.
#[test]
fn a_process_of_another_network_namespace_has_memory_by_a_path() {
    let path = std::env::temp_dir().join(format!("strait-p2pmem-{}.sock", std::process::id()));
    let daemon = Daemon::named(path.to_str().unwrap());
    let namespaces = libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS | libc::CLONE_NEWNS;
    let Some(mut owner) = Process::in_namespaces(&daemon, namespaces) else {
        eprintln!("skipped: no namespaces for this user");
        return;
    };
    let mut user = Process::in_namespaces(&daemon, namespaces).unwrap();
    assert_eq!(owner.say("publish card 0000:03:00.0 8192"), "done");
    assert_eq!(user.say("list mlx5_0"), "card 4 0 host 0 2");
    assert_eq!((user.say("allocate 4096 mlx5_0"), user.say("write 6")), ("card 4".into(), "done".into()));
    assert_eq!(owner.say("own"), "6");
    let mut third = Process::new(&daemon);
    let token = user.say("token");
    assert_eq!(third.say(&format!("join {token}")), "card");
    assert_eq!(third.say("read"), "6");
    owner.kill();
    for process in [&mut user, &mut third] {
        assert!(process.say("why").contains("has ended"));
    }
    // An abstract name is one of a network namespace.
    let abstracted = Daemon::new("");
    assert!(Process::in_namespaces(&abstracted, namespaces).is_none());
    drop(daemon);
    // The next daemon takes the path over.
    let daemon = Daemon::named(path.to_str().unwrap());
    assert_eq!(Process::new(&daemon).say("list"), "host 0 2");
    std::fs::remove_file(&path).unwrap();
}
