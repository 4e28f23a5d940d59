//! The daemon: what its clients get, what hostile ones do not, and that what dies gives its memory back.

use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use ipc::socket;
use p2pmem::daemon::wire::{Answer, Ask, MOST};
use p2pmem::daemon::{Connection, Remote, Server};
use p2pmem::publisher::{Host, PAGE, Region, windows};
use p2pmem::topology::recording;
use p2pmem::{Drain, Orchestrator, Rules, Topology};

const SWITCHES: &str = include_str!("trees/switches-intel.tree");
const SIZE: u64 = 64 << 20;

/// A daemon in a thread.
struct Daemon {
    name: String,
    all: Orchestrator,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    fn new(rules: &str) -> Daemon {
        let all =
            Orchestrator::new(Topology::parse(SWITCHES).unwrap(), Rules::parse(rules).unwrap(), Some(1));
        all.publish(Arc::new(Host::new(SIZE))).unwrap();
        Daemon::of(all)
    }

    fn of(all: Orchestrator) -> Daemon {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("strait-p2pmem-test/{}/{n}", std::process::id());
        let mut server = Server::new(&name, all.clone()).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let until = stop.clone();
        let turns = move || {
            while !until.load(Ordering::Relaxed) {
                server.serve_once(Duration::from_millis(20));
            }
        };
        Daemon { name, all, stop, thread: Some(std::thread::spawn(turns)) }
    }

    fn open(&self) -> Connection {
        Connection::open(&self.name).unwrap()
    }

    fn free(&self) -> u64 {
        self.all.publishers()[0].available
    }

    /// All is back.
    fn is_whole(&self) {
        while self.free() != SIZE {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(self.all.publishers()[0].buffers, 0);
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().unwrap().join();
    }
}

fn bytes(of: &Remote) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(of.pieces()[0].addr())
}

#[test]
fn a_client_gets_memory_shares_it_and_gives_it_back() {
    let daemon = Daemon::new("");
    let mut one = daemon.open();
    let buffer = one.allocate(&["mlx5_0"], 2 * PAGE, 1, 1, true, "job").unwrap();
    assert_eq!((buffer.publisher.as_str(), buffer.kind.as_str()), ("host", "host"));
    assert_eq!((buffer.reach[0].client.as_str(), buffer.pieces()[0].len()), ("0000:04:00.0", 8192));
    // SAFETY: it is mapped, and only this test uses it.
    unsafe { bytes(&buffer).write(0x42) };
    let token = one.share(&buffer).unwrap();
    let mut other = daemon.open();
    let same = other.open_shared(token).unwrap();
    // SAFETY: it is mapped, and only this test uses it.
    assert_eq!(unsafe { bytes(&same).read() }, 0x42);
    let wider = one.widen(&buffer, &["eth0", "card0"]).unwrap();
    assert_eq!(wider.reach.len(), 2);
    let listed = other.list(&[]).unwrap();
    assert_eq!((listed.len(), listed[0].buffers, listed[0].available), (1, 1, SIZE - 2 * PAGE));
    one.free(buffer).unwrap();
    one.free(wider).unwrap();
    assert_eq!(daemon.free(), SIZE - 2 * PAGE, "the other process has it");
    assert_eq!(other.open_shared(token).unwrap_err().errno(), libc::ENOENT, "its owner has it no more");
    drop(one);
    // SAFETY: it is mapped still, and only this test uses it.
    assert_eq!(unsafe { bytes(&same).read() }, 0x42);
    drop(other);
    daemon.is_whole();
}

#[test]
fn refusals_have_their_words() {
    let daemon = Daemon::new("quota 8K");
    let mut one = daemon.open();
    let error = one.allocate(&["mlx9"], 1, 1, 1, true, "").unwrap_err();
    assert_eq!(error.errno(), libc::ENODEV);
    assert!(error.to_string().contains("strait topo"));
    let error = one.allocate(&[], 3 * PAGE, 1, 1, true, "").unwrap_err();
    assert!(error.to_string().contains("quota 8K"), "{error}");
    let error = one.allocate(&["mlx5_0"], 1, 1, 1, false, "").unwrap_err();
    assert!(error.to_string().contains("wants no host memory"), "{error}");
    assert_eq!(one.allocate(&[], 0, 1, 1, true, "").unwrap_err().errno(), libc::EINVAL);
    assert_eq!(one.allocate(&["x"; 40], 1, 1, 1, true, "").unwrap_err().errno(), libc::EINVAL);
    assert_eq!(one.open_shared([7; 16]).unwrap_err().errno(), libc::ENOENT);
    // Memory of the daemon's own address space is not for others.
    let mut own = vec![0u8; 3 * PAGE as usize];
    let at = own.as_mut_ptr().expose_provenance().next_multiple_of(PAGE as usize);
    // SAFETY: nothing is mapped of it, and it outlives the daemon's thread, which ends before.
    let region = unsafe { Region::of_memory("own", None, at, 2 * PAGE as usize) };
    daemon.all.publish(Arc::new(region)).unwrap();
    daemon.all.set_rules(Rules::parse("pin publisher=own").unwrap());
    assert_eq!(one.allocate(&[], 1, 1, 1, true, "").unwrap_err().errno(), libc::EOPNOTSUPP);
    assert_eq!(daemon.all.publishers()[1].buffers, 0);
    assert!(Connection::open("strait-p2pmem-test/none").unwrap_err().to_string().contains("strait p2pmemd"));
    let again = Server::new(&daemon.name, daemon.all.clone()).unwrap_err();
    assert!(again.to_string().contains("another daemon"), "{again}");
}

#[test]
fn a_publisher_is_taken_out_and_its_users_are_notified() {
    let daemon = Daemon::new("");
    let mut one = daemon.open();
    let mut root = daemon.open();
    let buffer = one.allocate(&[], PAGE, 1, 1, true, "").unwrap();
    assert_eq!(root.unpublish("host", Drain::IfIdle).unwrap_err().errno(), libc::EBUSY);
    assert_eq!(
        root.unpublish("host", Drain::Wait(Duration::from_millis(1))).unwrap_err().errno(),
        libc::EBUSY
    );
    assert_eq!(one.revoked().unwrap(), None);
    assert_eq!(root.unpublish("host", Drain::Revoke).unwrap(), 1);
    assert!(socket::wait(&one.fd(), 60_000));
    assert_eq!(one.revoked().unwrap(), Some((buffer.handle, "host was unpublished".into())));
    assert_eq!(one.revoked().unwrap(), None);
    // SAFETY: it stays mapped until it is freed.
    unsafe { bytes(&buffer).write(1) };
    one.free(buffer).unwrap();
    assert_eq!(root.unpublish("host", Drain::Revoke).unwrap_err().errno(), libc::ENOENT);
}

#[test]
fn a_revocation_is_reported_before_it_is_answered() {
    let daemon = Daemon::new("");
    let mut own = daemon.open();
    for _ in 0..50 {
        let buffer = own.allocate(&[], PAGE, 1, 1, true, "").unwrap();
        assert_eq!(own.unpublish("host", Drain::Revoke).unwrap(), 1);
        assert!(own.is_revoked(buffer.handle).unwrap());
        own.free(buffer).unwrap();
        daemon.all.publish(Arc::new(Host::new(SIZE))).unwrap();
    }
}

#[test]
fn windows_are_mapped_by_the_client_itself() {
    let dir = std::env::temp_dir().join(format!("strait-daemon-{}", std::process::id()));
    let (cpu, raw) = recording::parse(SWITCHES).unwrap();
    recording::lay_out(&cpu, &raw, &dir).unwrap();
    let daemon = Daemon::new("");
    for window in windows(&dir, &daemon.all.topology()) {
        daemon.all.publish(Arc::new(window)).unwrap();
    }
    let mut one = daemon.open();
    let buffer = one.allocate(&["mlx5_0"], PAGE, 1, 1, true, "").unwrap();
    assert_eq!((buffer.publisher.as_str(), buffer.reach[0].distance), ("0000:03:00.0", 4));
    assert!(buffer.pieces()[0].may_vanish() && p2pmem::peer::is_window(buffer.pieces()[0].addr(), 4096));
    let error = one.share(&buffer).unwrap_err();
    assert_eq!(error.errno(), libc::EOPNOTSUPP);
    // For a further device it is the same mapping: another one would be other memory.
    let wider = one.widen(&buffer, &["card0"]).unwrap();
    assert_eq!(wider.pieces()[0].addr(), buffer.pieces()[0].addr());
    one.free(wider).unwrap();
    assert!(p2pmem::peer::is_window(buffer.pieces()[0].addr(), 4096), "one of two handles was freed");
    // The device goes: the daemon finds out by itself.
    std::fs::remove_dir_all(dir.join("bus/pci/devices/0000:03:00.0/p2pmem").canonicalize().unwrap()).unwrap();
    assert!(socket::wait(&one.fd(), 60_000));
    let (handle, why) = one.revoked().unwrap().unwrap();
    assert!(handle == buffer.handle && why.contains("gone"), "{why}");
    std::fs::remove_dir_all(&dir).unwrap();
}

/// A tree that changes under a daemon that runs: what comes is served to clients that are connected, what
/// goes is revoked.
#[test]
fn devices_come_and_go_while_the_daemon_runs() {
    let dir = std::env::temp_dir().join(format!("strait-daemon-changes-{}", std::process::id()));
    let (cpu, raw) = recording::parse(SWITCHES).unwrap();
    let is_late = |r: &recording::Raw| r.path.ends_with("0000:03:00.0");
    let (late, first): (Vec<_>, Vec<_>) = raw.into_iter().partition(is_late);
    recording::lay_out(&cpu, &first, &dir).unwrap();
    let daemon = Daemon::of(Orchestrator::of_host(&dir, Rules::default(), 0).unwrap());
    let mut one = daemon.open();
    let ask = |one: &mut Connection| one.allocate(&["mlx5_0"], PAGE, 1, 1, false, "");
    let link = dir.join("bus/pci/devices/0000:03:00.0");
    let mut last = None;
    for round in 0..3 {
        // Until the daemon has looked: it is at most a request later.
        if let Ok(buffer) = ask(&mut one) {
            assert_ne!(buffer.publisher, "0000:03:00.0", "{round}");
            one.free(buffer).unwrap();
        }
        recording::lay_out(&cpu, &late, &dir).unwrap();
        let buffer = loop {
            match ask(&mut one) {
                Ok(buffer) if buffer.publisher == "0000:03:00.0" => break buffer,
                Ok(other) => one.free(other).unwrap(),
                Err(e) => assert_eq!(e.errno(), libc::ENOMEM, "{e}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        assert_eq!(buffer.reach[0].distance, 4);
        // SAFETY: a page of the buffer.
        unsafe { bytes(&buffer).write_volatile(round) };
        // The old files stay, so that none that comes has the number of one that has gone.
        std::fs::rename(link.canonicalize().unwrap(), dir.join(format!("gone-{round}"))).unwrap();
        std::fs::remove_file(&link).unwrap();
        assert!(socket::wait(&one.fd(), 60_000), "the client is notified");
        let (handle, why) = one.revoked().unwrap().unwrap();
        assert!(handle == buffer.handle && why.contains("gone"), "{why}");
        assert!(last.replace(handle) != Some(handle));
        one.free(buffer).unwrap();
    }
    drop(daemon);
    std::fs::remove_dir_all(&dir).unwrap();
}

fn limit_descriptors(to: Option<u64>) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place, and then one that is read.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        let was = limit.rlim_cur;
        limit.rlim_cur = to.unwrap_or(was);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
        was
    }
}

/// Not a test: what the process of the next one does.
#[test]
fn process_short_of_descriptors() {
    let Ok(name) = std::env::var("STRAIT_P2PMEM_TEST_SHORT") else { return };
    let mut daemon = Connection::open(&name).unwrap();
    let used = std::fs::File::open("/dev/null").unwrap();
    // The next one that is opened is over the limit.
    let was = limit_descriptors(Some(used.as_raw_fd() as u64));
    drop(used);
    let fill = std::fs::File::open("/dev/null");
    let _more: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
    let error = daemon.allocate(&[], 3 * PAGE, 1, 1, true, "").unwrap_err();
    assert!(error.errno() == libc::EMFILE && error.to_string().contains("ulimit -n"), "{error}");
    limit_descriptors(Some(was));
    drop(fill);
    // Nothing is left of it, here and at the daemon.
    let listed = daemon.list(&[]).unwrap();
    assert_eq!((listed[0].buffers, listed[0].available), (0, SIZE));
    let buffer = daemon.allocate(&[], PAGE, 1, 1, true, "").unwrap();
    daemon.free(buffer).unwrap();
    println!("done");
}

#[test]
fn a_client_without_descriptors_has_that_error_and_goes_on() {
    let daemon = Daemon::new("");
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "process_short_of_descriptors", "--nocapture"])
        .env("STRAIT_P2PMEM_TEST_SHORT", &daemon.name)
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&child.stdout), String::from_utf8_lossy(&child.stderr));
    assert!(child.status.success() && out.contains("done"), "{out}{err}");
    daemon.is_whole();
}

/// A connection that says what it likes.
fn rude(daemon: &Daemon) -> OwnedFd {
    socket::connect(&daemon.name).unwrap()
}

/// What comes back; `None` at the end of the connection.
fn heard(sock: &OwnedFd) -> Option<Answer> {
    let mut bytes = [0; MOST];
    assert!(socket::wait(sock, 60_000), "nothing comes");
    match socket::receive(sock, &mut bytes) {
        Ok(0) => None,
        Ok(len) => Some(Answer::parse(&bytes[..len]).unwrap()),
        Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => None,
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn hostile_packets_end_their_own_connection_alone() {
    let daemon = Daemon::new("");
    let mut good = daemon.open();
    let mine = good.allocate(&[], PAGE, 1, 1, true, "").unwrap();
    let long = [Ask::List { from: 0, clients: Vec::new() }.to_bytes(), vec![0; MOST]].concat();
    let many = Ask::Allocate {
        len: 1,
        align: 1,
        segments: 1,
        host: true,
        others: false,
        job: String::new(),
        clients: Vec::new(),
    };
    let mut many = many.to_bytes();
    // 255 clients that are not there.
    *many.last_mut().unwrap() = 255;
    for packet in [&b"\xff"[..], &[1], &[7, 255, 255], &long, &many, &[6, 6]] {
        let sock = rude(&daemon);
        socket::send(&sock, packet).unwrap();
        assert_eq!(heard(&sock), None, "{:?}", &packet[..packet.len().min(8)]);
    }
    // Handles and tokens of others are nothing to it.
    let sock = rude(&daemon);
    for ask in [
        Ask::Free { handle: mine.handle },
        Ask::Offer { handle: mine.handle },
        Ask::Widen { handle: mine.handle, clients: Vec::new() },
        Ask::Open { token: [0; 16] },
    ] {
        socket::send(&sock, &ask.to_bytes()).unwrap();
        assert!(matches!(heard(&sock), Some(Answer::Failed { errno: libc::ENOENT, .. })), "{ask:?}");
    }
    // Descriptors that come unasked are closed.
    let before = std::fs::read_dir("/proc/self/fd").unwrap().count();
    for _ in 0..100 {
        let file = std::fs::File::open("/dev/null").unwrap();
        ipc::rights::send_fd(&sock, &Ask::Offer { handle: 1 }.to_bytes(), std::os::fd::AsFd::as_fd(&file))
            .unwrap();
        heard(&sock);
    }
    let after = std::fs::read_dir("/proc/self/fd").unwrap().count();
    assert!(after < before + 50, "{before} descriptors, then {after}");
    // One that asks and never reads its answers is cut off.
    let silent = rude(&daemon);
    let cut = (0..1_000_000).any(|_| {
        let lost = |e: std::io::Error| e.kind() != std::io::ErrorKind::WouldBlock;
        socket::send(&silent, &Ask::List { from: 0, clients: Vec::new() }.to_bytes()).is_err_and(lost)
    });
    assert!(cut, "it goes on for ever");
    good.free(mine).unwrap();
    daemon.is_whole();
}

#[test]
fn any_packets_leave_the_daemon_whole() {
    let daemon = Daemon::new("quota 1M");
    let (socks, name) = (std::sync::Mutex::new(Vec::new()), daemon.name.clone());
    bolero::check!().with_iterations(2000).for_each(|bytes: &[u8]| {
        let mut socks = socks.lock().unwrap();
        if socks.len() > 8 {
            socks.remove(0);
        }
        let sock = socket::connect(&name).unwrap();
        // As it is, and as the body of each message.
        let _ = socket::send(&sock, bytes);
        for op in 1..13 {
            let _ = socket::send(&sock, &[&[op], bytes].concat());
        }
        socks.push(sock);
    });
    drop(socks);
    // It still serves.
    let mut good = daemon.open();
    let buffer = good.allocate(&["card0"], PAGE, 1, 1, true, "").unwrap();
    good.free(buffer).unwrap();
    daemon.is_whole();
}

/// Not a test: what the processes of the next one do.
#[test]
fn process_of_many() {
    let Ok(name) = std::env::var("STRAIT_P2PMEM_TEST_DAEMON") else { return };
    let seed: usize = std::env::var("STRAIT_P2PMEM_TEST_SEED").unwrap().parse().unwrap();
    let mut ties = p2pmem::topology::Ties::new(Some(seed as u64));
    let mut daemon = Connection::open(&name).unwrap();
    let mut held: Vec<Remote> = Vec::new();
    println!("begun");
    loop {
        let pages = 1 + ties.pick(16) as u64;
        match daemon.allocate(&["mlx5_0"], pages * PAGE, 1, 1, true, "many") {
            Ok(buffer) => {
                let mark = seed as u8;
                // SAFETY: it is mapped, and no other process has it.
                unsafe {
                    assert_eq!(bytes(&buffer).read(), 0, "of another process");
                    bytes(&buffer).write_bytes(mark, buffer.pieces()[0].len());
                }
                held.push(buffer);
            }
            Err(e) => assert!([libc::ENOMEM, libc::EUSERS].contains(&e.errno()), "{e}"),
        }
        if held.len() > 20 || ties.pick(3) == 0 && !held.is_empty() {
            let buffer = held.swap_remove(ties.pick(held.len()));
            // SAFETY: it is mapped, and no other process has it.
            assert_eq!(unsafe { bytes(&buffer).read() }, seed as u8, "written by another process");
            daemon.free(buffer).unwrap();
        }
        // Not all of the machine's time.
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn process(daemon: &Daemon, seed: usize) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "process_of_many", "--nocapture"])
        .env("STRAIT_P2PMEM_TEST_DAEMON", &daemon.name)
        .env("STRAIT_P2PMEM_TEST_SEED", seed.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    assert!(lines.any(|line| line.is_ok_and(|l| l.contains("begun"))), "it ended at once");
    child
}

#[test]
fn processes_that_are_killed_give_all_back() {
    let daemon = Daemon::new("");
    let mut children: Vec<Child> = (0..64).map(|n| process(&daemon, n)).collect();
    let mut ties = p2pmem::topology::Ties::new(Some(11));
    for n in 0..64 {
        let victim = ties.pick(children.len());
        assert!(children[victim].try_wait().unwrap().is_none(), "it failed");
        children[victim].kill().unwrap();
        children[victim].wait().unwrap();
        children[victim] = process(&daemon, 64 + n);
    }
    assert!(daemon.free() < SIZE);
    for mut child in children {
        assert!(child.try_wait().unwrap().is_none(), "it failed");
        child.kill().unwrap();
        child.wait().unwrap();
    }
    daemon.is_whole();
    // Not a descriptor is left of 128 processes: a new connection's is not far up.
    let sock = rude(&daemon);
    assert!(sock.as_raw_fd() < 300, "{}", sock.as_raw_fd());
}
