//! What an agent of `stream` carries by: a context of `xpu`, whose drain copies to the peer's memory and
//! stores words behind. The drain's thread polls the agent, too.

use std::time::Duration;

use stream::{Carrier, Error, Feed, Job, Post, SPARE};
use wire::session::JobKey;
use xpu::command::{Op, Raw};
use xpu::layout::flag;
use xpu::{Context, Options, Pace, Producer, RingRequest};

/// Between two polls that find nothing, in the modes that sleep.
const SLEEP: Duration = Duration::from_micros(50);
const LONG_SLEEP: Duration = Duration::from_micros(100);

/// Commands under way: of 2^n.
const LOG2_COMMANDS: u32 = 9;

/// The peer's number, and that of the region that it writes; that which is copied from.
const PEER: u32 = 1;
const OWN: u32 = 0;
const NEAR: u32 = 1;

struct ByContext {
    context: Context,
    ring: Option<Producer>,
    /// Addresses of the memory.
    memory: [usize; 2],
    polls: &'static str,
    shm: bool,
    /// What says, by 16 bits, that the peer has the same key.
    tag: [u8; TAG],
}

/// Bytes of a blob before the context's.
const TAG: usize = 2;

/// Opens one: for peers of other hosts with a key.
pub(super) fn open(key: Option<&[u8]>) -> Result<Box<dyn Carrier>, Error> {
    let mode = setting(&settings::XPU_MODE).map(|mode| mode.to_ascii_lowercase());
    let (pace, polls) = match mode.as_deref() {
        Some("performance") => (Pace::POLLS, "which polls without a pause"),
        Some("economy") => (Pace::sleeps(LONG_SLEEP), "which sleeps 100 microseconds between polls"),
        _ => (Pace::adapts(SLEEP), "which polls, and sleeps 50 microseconds where nothing happens"),
    };
    let links = setting(&settings::LINKS);
    let shm = links.is_none_or(|all| all.split(',').any(|link| link.trim() == "shm"));
    let key = key.map(JobKey::from_secret);
    if !shm && key.is_none() {
        return Err(Error::Invalid(
            "FI_STRAIT_LINKS has no shm, and there is no key for another link: pass one",
        ));
    }
    let tag = key.as_ref().map_or([0; TAG], JobKey::tag);
    let context = Context::open(Options { key, pace, shm, ..Options::default() }).map_err(carrier)?;
    Ok(Box::new(ByContext { context, ring: None, memory: [0; 2], polls, shm, tag }))
}

/// A setting's text, if it is one.
fn setting(of: &settings::Setting) -> Option<String> {
    let text = of.text(std::env::var_os(of.variable())?).ok()?;
    of.read(&text).complaint.is_none().then(|| text.trim().to_owned())
}

fn carrier(e: xpu::Error) -> Error {
    Error::Carrier { why: e.to_string(), errno: e.errno() }
}

impl Carrier for ByContext {
    unsafe fn register(&mut self, own: (usize, usize), near: (usize, usize)) -> Result<(), Error> {
        for ((at, len), wanted) in [(own, OWN), (near, NEAR)] {
            // SAFETY: the caller's promise; words are accessed by atomics, and slots only while they are one
            // side's.
            let number = unsafe { self.context.register(at, len) }.map_err(carrier)?;
            assert_eq!(number, wanted, "regions have the numbers 0 and 1");
        }
        self.memory = [own.0, near.0];
        self.ring =
            Some(self.context.open_ring(RingRequest::new(LOG2_COMMANDS)).map_err(carrier)?.producer());
        Ok(())
    }

    unsafe fn window(&mut self, at: usize, len: usize) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.context.register(at, len) }.map(|_| ()).map_err(carrier)
    }

    fn blob(&self) -> Vec<u8> {
        [&self.tag[..], &self.context.blob()].concat()
    }

    fn accepts(&self, peer: &[u8]) -> Result<(), Error> {
        if !peer.starts_with(&self.tag) {
            let why = "the peer has another key: open both sides with the same one".into();
            return Err(Error::Carrier { why, errno: libc::EACCES });
        }
        Ok(())
    }

    fn by_memory(&self) -> bool {
        self.shm
    }

    fn begin(&mut self, peer: &[u8], feed: Feed) -> Result<(), Error> {
        let (mine, peer) = (self.context.blob(), peer.get(TAG..).unwrap_or_default());
        self.context.connect(0, &[&mine, peer]).map_err(carrier)?;
        let (Some(there), Some(ring)) = (self.context.peer(PEER, OWN), self.ring.clone()) else {
            return Err(Error::Blob("its agent has no memory"));
        };
        // No message is ever sent: the receive fails when the peer is lost.
        let watches = Raw {
            op: Op::Recv as u8,
            peer: PEER,
            region: OWN,
            local: (self.memory[OWN as usize] + SPARE) as u64,
            length: 8,
            ..Raw::default()
        };
        let first = ring.post(&[watches]).map_or(0, |ticket| ticket + 1);
        let near = self.memory[NEAR as usize];
        let windows = (NEAR + 1..).map_while(|n| self.context.region_of_peer(PEER, n));
        let windows = windows.map(|w| (w.base, w.key)).collect();
        let (remote, key) = (there.remote, there.key);
        let post = ByRing { ring, near, remote, key, windows, next: first.into() };
        self.context.feed_by(Box::new(Fed { post, feed }));
        self.context.begin().map_err(carrier)?;
        Ok(())
    }

    fn describe(&self) -> String {
        let by = if self.shm { "by shared memory or TCP" } else { "by TCP" };
        format!("{}, {by}", self.polls)
    }

    fn close(&mut self) {
        if let Err(e) = self.context.close() {
            // Its memory stays then, as the context's `Drop` does it.
            debug_assert!(false, "{e}");
        }
    }
}

struct Fed {
    post: ByRing,
    feed: Feed,
}

impl xpu::Feed for Fed {
    fn feed(&mut self) -> usize {
        (self.feed)(&self.post)
    }
}

/// The ring, and where the peer's memory is.
struct ByRing {
    ring: Producer,
    near: usize,
    remote: u64,
    key: u64,
    /// Memory that the peer has registered: addresses there, and keys.
    windows: Vec<(u64, u64)>,
    /// The ticket behind the last command.
    next: std::cell::Cell<u64>,
}

impl ByRing {
    /// The command's ticket.
    fn put(&self, command: Raw) -> Option<u64> {
        let ticket = self.ring.post(&[command])?;
        self.next.set(ticket + 1);
        Some(ticket)
    }
}

impl Post for ByRing {
    fn post(&self, from: usize, len: usize, at: usize, value: u64, fenced: bool) -> bool {
        let signal = Raw {
            op: Op::Signal as u8,
            flags: if fenced { flag::FENCE } else { flag::SIGNAL_WEAK },
            peer: PEER,
            operand: self.remote + at as u64,
            value,
            context: self.key,
            ..Raw::default()
        };
        let command = match len {
            0 => signal,
            _ => Raw {
                op: Op::PutSignal as u8,
                region: NEAR,
                local: (self.near + from) as u64,
                remote: self.remote + from as u64,
                key: self.key,
                length: len as u64,
                ..signal
            },
        };
        self.put(command).is_some()
    }

    fn job(&self, job: &Job) -> Option<u64> {
        // One that is not there fails at the target.
        let (base, key) = self.windows.get(job.region as usize).copied().unwrap_or_default();
        let command = Raw {
            op: if job.puts { Op::Put } else { Op::Get } as u8,
            peer: PEER,
            region: NEAR,
            local: (self.near + job.near) as u64,
            remote: base + job.offset,
            key,
            length: job.len as u64,
            ..Raw::default()
        };
        self.put(match job.signal {
            Some(at) => Raw {
                op: Op::PutSignal as u8,
                flags: flag::SIGNAL_WEAK,
                operand: self.remote + at as u64,
                value: 1,
                context: self.key,
                ..command
            },
            None => command,
        })
    }

    fn is_done(&self, job: u64) -> bool {
        self.ring.done() > job
    }

    fn done(&self) -> u64 {
        self.ring.done()
    }

    fn is_lost(&self) -> bool {
        self.ring.failed() > 0 || self.ring.error() != 0
    }

    fn is_idle(&self) -> bool {
        self.ring.done() >= self.next.get()
    }
}
