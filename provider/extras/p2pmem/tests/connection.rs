//! A connection that several threads use, that a forked process holds too, and whose daemon answers without
//! end.

mod support {
    #[expect(dead_code, reason = "other tests use the rest")]
    pub mod daemon;
    pub mod published;
}

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

use ipc::socket;
use p2pmem::Drain;
use p2pmem::daemon::wire::{Answer, Ask, Published};
use p2pmem::daemon::{Connection, Server, Session};
use p2pmem::publisher::PAGE;
use p2pmem::{Orchestrator, Rules, Topology};
use support::daemon::{Daemon, Process, run};
use support::published::{NEAR, memory, publication, until};

/// Not a test: what the processes of the others do.
#[test]
fn process_of_others() {
    run();
}

/// A drain waits for a buffer that another thread frees by the same connection, whose notices come meanwhile.
#[test]
fn other_threads_use_the_connection_while_a_publisher_drains() {
    let daemon = Daemon::new("");
    let session = Session::open(&daemon.name).unwrap();
    let (fd, other) = (memory(8192), memory(8192));
    session.with(|c| c.publish(&publication("card", 8192), fd.as_fd())).unwrap();
    let wanted = |c: &mut Connection| c.allocate(&["mlx5_0"], PAGE, 1, 1, false, "");
    let held = session.take(wanted).unwrap();
    assert_eq!(held.known().unwrap().publisher, "card");
    let mut owner = daemon.open();
    let (begin, time) = (Instant::now(), Duration::from_secs(300));
    let draining = session.clone();
    let drain = std::thread::spawn(move || draining.unpublish("card", Drain::Wait(time)));
    until("it drains", || daemon.listed("card").is_some_and(|p| p.draining));
    owner.publish(&publication("other", 8192), other.as_fd()).unwrap();
    let revoked = session.take(wanted).unwrap();
    assert_eq!(revoked.known().unwrap().publisher, "other");
    let (said, says) = std::sync::mpsc::channel();
    revoked.on_revoke(move |why| said.send(why.to_owned()).unwrap()).unwrap();
    drop(owner);
    assert!(says.recv_timeout(Duration::from_secs(60)).unwrap().contains("other"));
    assert_eq!(daemon.listed("card").map(|p| (p.draining, p.buffers)), Some((true, 1)));
    held.free().unwrap();
    assert_eq!(drain.join().unwrap().unwrap(), 0);
    assert!(begin.elapsed() < time && daemon.listed("card").is_none());
}

/// The socket stays open in a process that was forked, but what its parent had goes back.
#[test]
fn the_end_of_a_publisher_is_seen_while_a_process_forked_from_it_lives() {
    let daemon = Daemon::new("");
    let mut owner = Process::new(&daemon);
    assert_eq!(owner.say(&format!("publish card {NEAR} 65536")), "done");
    assert_eq!(owner.say("allocate 8192 mlx5_0"), "card 4");
    let child: i32 = owner.say("fork").parse().unwrap();
    let mut user = Process::new(&daemon);
    assert_eq!(user.say("allocate 4096 mlx5_0"), "card 4");
    // The end of the forked process alone changes nothing.
    let other: i32 = owner.say("fork").parse().unwrap();
    // SAFETY: children of the owner, which it has not waited for.
    assert_eq!(unsafe { libc::kill(other, libc::SIGKILL) }, 0);
    assert_eq!(user.say("pieces"), "1");
    owner.kill();
    let why = user.say("why");
    // SAFETY: as above: it does not end by itself.
    assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
    assert!(why.contains("the process that published card has ended"), "{why}");
    assert!(daemon.listed("card").is_none());
}

/// A daemon without a descriptor for the next connection, if this is such a process.
#[test]
fn process_whose_daemon_is_short_of_descriptors() {
    if std::env::var_os("STRAIT_P2PMEM_TEST_SHORT").is_none() {
        return;
    }
    let all = Orchestrator::new(Topology::parse("").unwrap(), Rules::default(), Some(1));
    let name = format!("strait-p2pmem-connection/short/{}", std::process::id());
    let mut server = Server::new(&name, all).unwrap();
    let ask = Ask::List { from: 0, clients: Vec::new() }.to_bytes();
    let answered = |server: &mut Server, client: &OwnedFd| {
        socket::send(client, &ask).unwrap();
        while !socket::wait(client, 0) {
            server.serve_once(Duration::from_secs(1));
        }
        socket::receive(client, &mut [0; 64]).unwrap();
    };
    let first = socket::connect(&name).unwrap();
    answered(&mut server, &first);
    let next = socket::connect(&name).unwrap();
    // No descriptor is free below the limit.
    let most = first.try_clone().unwrap().as_raw_fd() as libc::rlim_t;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let set = |limit: &libc::rlimit| {
        // SAFETY: a valid structure. The process is of this test alone.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, limit) }, 0);
    };
    // SAFETY: a valid place.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) }, 0);
    set(&libc::rlimit { rlim_cur: most, ..limit });
    let begin = Instant::now();
    for _ in 0..500 {
        answered(&mut server, &first);
    }
    let took = begin.elapsed();
    assert_eq!(server.connections(), 1);
    set(&limit);
    assert!(took < Duration::from_secs(3), "a connection that cannot be accepted delays others: {took:?}");
    answered(&mut server, &next);
    assert_eq!(server.connections(), 2);
    println!("done");
}

/// The daemon serves on where accept(2) finds no descriptor, and accepts when there is one.
#[test]
fn a_connection_that_finds_no_descriptor_delays_no_other() {
    let done = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "process_whose_daemon_is_short_of_descriptors", "--nocapture"])
        .env("STRAIT_P2PMEM_TEST_SHORT", "1")
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success() && out.contains("done"), "{out}{err}");
}

/// A list has up to 32 publishers in an answer.
#[test]
fn an_answer_without_end_is_an_error() {
    let name = format!("strait-p2pmem-connection/endless/{}", std::process::id());
    let listener = socket::listen(&name).unwrap();
    let mut own = Connection::open(&name).unwrap();
    let daemon = socket::accept(&listener).unwrap();
    let one = Published {
        name: "host".into(),
        kind: "host".into(),
        function: String::new(),
        size: 1,
        available: 1,
        buffers: 0,
        draining: false,
        own: false,
        map: 2,
        distance: 0,
        why: String::new(),
    };
    let answer = Answer::Publisher(one).to_bytes();
    for _ in 0..33 {
        socket::send(&daemon, &answer).unwrap();
    }
    // What is not refused by then ends with the connection.
    let ends = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(2));
        drop(daemon);
    });
    assert_eq!(own.list(&[]).unwrap_err().errno(), libc::EPROTO);
    assert_eq!(own.list(&[]).unwrap_err().errno(), libc::EPIPE);
    ends.join().unwrap();
}

#[test]
fn names_that_are_too_long_or_taken_have_their_words() {
    let long = "x".repeat(200);
    let error = Connection::open(&long).unwrap_err();
    assert!(error.errno() == libc::EINVAL && error.to_string().contains("107 bytes"), "{error}");
    let daemon = Daemon::new("");
    let name = "x".repeat(65);
    let error = daemon.open().list(&[&name]).unwrap_err();
    assert!(error.to_string().contains("65 bytes: a name has up to 64"), "{error}");
    let error = daemon.open().list(&["x"; 33]).unwrap_err();
    assert!(error.to_string().contains("33 clients"), "{error}");
    // A directory is no daemon.
    let all = Orchestrator::new(Topology::parse("").unwrap(), Rules::default(), Some(1));
    let error = Server::new(env!("CARGO_TARGET_TMPDIR"), all).unwrap_err();
    assert!(error.to_string().contains("no socket"), "{error}");
    let error = Orchestrator::of_host(std::path::Path::new("/sys"), Rules::default(), 4095).unwrap_err();
    assert!(error.errno() == libc::EINVAL && error.to_string().contains("4096"), "{error}");
}
