//! A daemon in a thread, and processes that do what they are asked by lines.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use ipc::memfd::{self, Writers};
use p2pmem::daemon::{Connection, Publication, Server, Session, SharedBuffer, Wanted};
use p2pmem::orchestrator::Listed;
use p2pmem::publisher::{Host, Kind, PAGE};
use p2pmem::{Drain, Error, Orchestrator, Rules, Topology};

const SWITCHES: &str = include_str!("../trees/switches-intel.tree");
pub const SIZE: u64 = 64 << 20;

/// A daemon in a thread.
pub struct Daemon {
    pub name: String,
    pub all: Orchestrator,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    pub fn new(rules: &str) -> Daemon {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        Daemon::of(&format!("strait-p2pmem-publish/{}/{n}", std::process::id()), rules)
    }

    pub fn named(name: &str) -> Daemon {
        Daemon::of(name, "")
    }

    fn of(name: &str, rules: &str) -> Daemon {
        let all =
            Orchestrator::new(Topology::parse(SWITCHES).unwrap(), Rules::parse(rules).unwrap(), Some(1));
        all.publish(Arc::new(Host::new(SIZE))).unwrap();
        let mut server = Server::new(name, all.clone()).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let until = stop.clone();
        let turns = move || {
            while !until.load(Ordering::Relaxed) {
                server.serve_once(Duration::from_millis(20));
            }
        };
        Daemon { name: name.into(), all, stop, thread: Some(std::thread::spawn(turns)) }
    }

    pub fn open(&self) -> Connection {
        Connection::open(&self.name).unwrap()
    }

    pub fn listed(&self, name: &str) -> Option<Listed> {
        self.all.publishers().into_iter().find(|p| p.name == name)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().unwrap().join();
    }
}

/// A process that does what lines say ([`run`]), killed on drop.
pub struct Process {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Process {
    pub fn new(daemon: &Daemon) -> Process {
        Process::started(daemon, |_| {}).unwrap()
    }

    /// One in namespaces of its own, but for users and files; `None` where that is not allowed.
    pub fn in_namespaces(daemon: &Daemon, namespaces: libc::c_int) -> Option<Process> {
        Process::started(daemon, |command| {
            // SAFETY: a process of one thread, which has just been forked.
            let enter = move || match unsafe { libc::unshare(namespaces) } {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            };
            // SAFETY: unshare(2) alone is called between fork(2) and execve(2).
            unsafe { command.pre_exec(enter) };
        })
    }

    /// One of another user; `None` where that may not run this program.
    pub fn of_user(daemon: &Daemon, uid: u32) -> Option<Process> {
        let made = Process::started(daemon, |command| {
            command.uid(uid).gid(uid).current_dir("/");
        });
        if made.is_none() {
            eprintln!("skipped: uid {uid} may not run this program");
        }
        made
    }

    fn started(daemon: &Daemon, how: impl FnOnce(&mut Command)) -> Option<Process> {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "process_of_others", "--nocapture"])
            .env("STRAIT_P2PMEM_TEST_OTHERS", &daemon.name)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        how(&mut command);
        let mut child = command.spawn().ok()?;
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut process = Process { child, to, from };
        process.answer().filter(|a| a == "ready").map(|_| process)
    }

    fn answer(&mut self) -> Option<String> {
        let mut line = String::new();
        // The test's own lines are passed over.
        while self.from.read_line(&mut line).ok()? > 0 {
            if let Some(at) = line.find("> ") {
                return Some(line[at + 2..].trim_end().to_owned());
            }
            line.clear();
        }
        None
    }

    /// Has it do something, and waits for nothing.
    pub fn order(&mut self, line: &str) {
        writeln!(self.to, "{line}").unwrap();
    }

    /// Has it do something: what it says.
    pub fn say(&mut self, line: &str) -> String {
        self.order(line);
        self.answer().unwrap_or_else(|| panic!("it ended at {line:?}: {:?}", self.child.wait()))
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: a child of this process that was not waited for.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a process has.
struct Has {
    session: Session,
    given: Option<SharedBuffer>,
    /// Where its buffer is, also after it was revoked.
    at: usize,
    own: Option<ipc::Mapping>,
}

/// Does what the lines of the standard input say, if this is such a process.
pub fn run() {
    let Ok(name) = std::env::var("STRAIT_P2PMEM_TEST_OTHERS") else { return };
    // Another user's process that is started is no test of its own.
    let session = match Session::open(&name) {
        Ok(session) => session,
        Err(e) => return println!("\n> {e}"),
    };
    let mut has = Has { session, given: None, at: 0, own: None };
    println!("\n> ready");
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        match has.does(words[0], &words[1..]) {
            Ok(text) => println!("\n> {text}"),
            Err(e) => println!("\n> error {}", e.errno()),
        }
    }
}

impl Has {
    fn does(&mut self, what: &str, words: &[&str]) -> Result<String, Error> {
        let done = || Ok("done".to_owned());
        match what {
            "publish" | "publish-all" => {
                self.publish(words[0], words[1], words[2].parse().unwrap(), what == "publish-all")?;
                done()
            }
            "unpublish" => self.session.with(|c| c.unpublish(words[0], Drain::Revoke)).map(|n| n.to_string()),
            "list" => {
                let all = self.session.with(|c| c.list(words))?;
                let each = all.iter().map(|p| format!("{} {} {}", p.name, p.distance, p.map));
                Ok(each.collect::<Vec<_>>().join(" "))
            }
            "allocate" | "others" => {
                self.allocate(words[0].parse().unwrap(), &words[1..], what == "others")?;
                let known = self.given.as_ref().unwrap().known()?;
                Ok(format!("{} {}", known.publisher, known.reach[0].distance))
            }
            "token" => {
                let token = self.given.as_ref().unwrap().token()?;
                Ok(token.iter().map(|b| format!("{b:02x}")).collect())
            }
            "join" => {
                let byte = |n: usize| u8::from_str_radix(&words[0][2 * n..2 * n + 2], 16).unwrap();
                let token = std::array::from_fn(byte);
                let given = self.session.take(|c| c.open_shared(token))?;
                self.keep(given)?;
                Ok(self.given.as_ref().unwrap().known()?.publisher.clone())
            }
            "write" => {
                // SAFETY: the buffer is mapped; other processes may write it too, a byte at a time.
                unsafe { self.place().write_volatile(words[0].parse().unwrap()) };
                done()
            }
            // SAFETY: as above.
            "read" => Ok(unsafe { self.place().read_volatile() }.to_string()),
            // SAFETY: as above, of what this process has published.
            "own" => Ok(unsafe { self.own.as_ref().unwrap().base().read_volatile() }.to_string()),
            "pieces" => self.given.as_ref().unwrap().pieces().map(|p| p.len().to_string()),
            "why" => {
                // The notice may be on its way.
                for _ in 0..6000 {
                    if let Some(why) = self.given.as_ref().unwrap().why() {
                        return Ok(why);
                    }
                    std::thread::sleep(Duration::from_millis(5));
                }
                Ok("nothing".into())
            }
            "free" => {
                self.given.take().unwrap().free()?;
                done()
            }
            "fork" => Ok(fork().to_string()),
            "storm-publish" => self.storm_publish(words[0]),
            "storm-use" => self.storm_use(words[0].parse().unwrap()),
            _ => panic!("{what}"),
        }
    }

    fn place(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.at)
    }

    fn publish(&mut self, name: &str, function: &str, len: usize, all_users: bool) -> Result<(), Error> {
        let fd = memfd::create(c"published", len, Writers::All).unwrap();
        self.own = Some(ipc::Mapping::new(&fd, len, None).unwrap());
        let function = Some(function.parse().unwrap());
        let of = Publication { name, function, kind: Kind::File, offset: 0, len: len as u64, all_users };
        self.session.with(|c| c.publish(&of, fd.as_fd()))
    }

    fn allocate(&mut self, len: u64, clients: &[&str], others: bool) -> Result<(), Error> {
        let wanted = Wanted { clients, len, align: 1, segments: 1, host: true, others, job: "" };
        let given = self.session.take(|c| c.request(&wanted))?;
        self.keep(given)
    }

    fn keep(&mut self, given: SharedBuffer) -> Result<(), Error> {
        self.at = given.pieces()?[0].addr();
        self.given = Some(given);
        Ok(())
    }

    /// Publishes and takes back, for ever.
    fn storm_publish(&mut self, seed: &str) -> Result<String, Error> {
        let mut ties = p2pmem::topology::Ties::new(Some(seed.parse().unwrap()));
        for round in 0.. {
            let name = format!("storm-{seed}-{round}");
            match self.publish(&name, "0000:07:00.0", 16 * PAGE as usize, false) {
                // As many as a user may have.
                Err(e) => assert_eq!(e.errno(), libc::EUSERS, "{e}"),
                Ok(()) => {
                    std::thread::sleep(Duration::from_millis(ties.pick(40) as u64));
                    match ties.pick(2) {
                        0 => drop(self.session.with(|c| c.unpublish(&name, Drain::Revoke))?),
                        _ => match self.session.unpublish(&name, Drain::Wait(Duration::from_millis(20))) {
                            Err(e) if e.errno() == libc::EBUSY => {
                                self.session.with(|c| c.unpublish(&name, Drain::Revoke))?;
                            }
                            other => drop(other?),
                        },
                    }
                }
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(String::new())
    }

    /// Takes memory, looks whether it stays its own, and frees it, for ever.
    fn storm_use(&mut self, seed: usize) -> Result<String, Error> {
        let mut ties = p2pmem::topology::Ties::new(Some(seed as u64));
        let mut held: Vec<SharedBuffer> = Vec::new();
        loop {
            let len = (1 + ties.pick(4) as u64) * PAGE;
            match self.session.take(|c| c.allocate(&["mlx5_0"], len, 1, 1, ties_host(seed), "storm")) {
                Ok(given) => {
                    if let Ok(pieces) = given.pieces() {
                        let at = std::ptr::with_exposed_provenance_mut::<u8>(pieces[0].addr());
                        // SAFETY: it is mapped until it is freed, whatever becomes of its publisher.
                        unsafe { at.write_bytes(seed as u8, pieces[0].len()) };
                    }
                    held.push(given);
                }
                Err(e) => assert!([libc::ENOMEM, libc::EUSERS].contains(&e.errno()), "{e}"),
            }
            if held.len() > 8 || ties.pick(2) == 0 && !held.is_empty() {
                let given = held.swap_remove(ties.pick(held.len()));
                let at = given.known()?.pieces()[0].addr();
                // SAFETY: as above.
                let byte = unsafe { std::ptr::with_exposed_provenance::<u8>(at).read_volatile() };
                // Of one that was revoked the publisher may have given it to another.
                assert!(given.why().is_some() || byte == seed as u8, "written by another process");
                given.free()?;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// The number of a process that was forked from this one, and does nothing for so long that tests are over.
fn fork() -> i32 {
    // SAFETY: the child calls alarm(2), pause(2) and _exit(2) alone.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::alarm(600);
            libc::pause();
            libc::_exit(0);
        }
        child
    }
}

/// Some take host memory too.
fn ties_host(seed: usize) -> bool {
    seed % 2 == 0
}
