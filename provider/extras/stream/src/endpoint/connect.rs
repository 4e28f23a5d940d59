//! How an endpoint comes to have its peer: what is mapped, or carried by an agent.
//!
//! What fails before the peer has been written to leaves the endpoint as it was. Behind that it has failed,
//! and so has the peer's: the peer may already send.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use hmem::Kind as MemoryKind;
use hmem::cuda::{self, Made, Stream};
use hmem::share::{self, Opened, Owner};

use super::permit::Permit;
use super::{Endpoint, Path, Through};
use crate::agent::Agent;
use crate::blob::{Blob, Region};
use crate::carried::Carried;
use crate::error::Error;
use crate::failure::{self, Kind};
use crate::kernel;
use crate::layout::{CHOICE, ERROR, OVER, choice};
use crate::limit::Limit;
use crate::memory::Words;
use crate::pass;
use crate::shared::{Direct, Peer, Places, Shared};
use crate::watch;

/// What maps the peer's words.
const SHARING: &str = "mapping the peer's words, which takes kernel.yama.ptrace_scope=0 or CAP_SYS_PTRACE (open \
                       both sides by an agent otherwise),";

/// Between two polls for the peer.
const PAUSE: Duration = Duration::from_micros(200);

/// Which slots a side writes to.
const DEVICE: u32 = 1;
const HOST: u32 = 2;
/// A device's, and words there, for which kernels wait, if both sides say so.
const DIRECT: u32 = 3;

impl Endpoint {
    /// Maps the peer's memory. Both sides call it, and it waits for the other one.
    pub fn connect(&mut self, blob: &[u8]) -> Result<(), Error> {
        let shared = self.core.shared.clone();
        self.is_of_this_process()?;
        if self.path.is_some() || shared.peer.get().is_some() || self.watch.is_some() {
            return Err(Error::State("the endpoint has had a peer: open another one for another peer"));
        }
        let blob = Blob::decode(blob)?;
        if blob.layout != shared.layout {
            return Err(Error::Blob("it has other slots or signals: open both sides with the same options"));
        }
        let one_queue = has_one_queue(self.slots.as_ref().map(Made::addr));
        let here = blob.boot == self.boot && blob.boot != [0; 16];
        // Its memory is not mapped here, and by TCP the key says whether it is a peer.
        let by_tcp = is_other_user(&blob) && self.carrier.as_ref().is_some_and(|c| !c.by_memory());
        if !here || self.by_agent || blob.by_agent || by_tcp {
            return self.connect_by_agent(&shared, &blob, here, one_queue);
        }
        let pid = blob.process.pid().ok_or(Error::OtherHost)?;
        if pid == std::process::id() {
            return Err(Error::Blob("it is of this process: a peer is another process"));
        }
        if blob.process.has_ended() {
            return Err(Error::Gone);
        }
        let owner = Owner::now(pid as i32);
        let near = self.slots.as_ref().map_or(0, Made::addr);
        if blob.words.export.handle_type.kind() != MemoryKind::System {
            return Err(Error::Blob("its words are not in host memory"));
        }
        // Only as long as this endpoint is there, as the peer's slots.
        let opened = share::open_uncached(owner.pid, owner.id, &blob.words.export, 0).map_err(|e| {
            let otherwise = match is_other_user(&blob) {
                true => Error::OtherUser,
                false => Error::Memory(SHARING, e),
            };
            not_mapped(&blob, None, Some(e), otherwise)
        })?;
        let words = Words::of_peer(opened, blob.words.base, shared.layout.len())?;
        let mut kept = Vec::new();
        let mut mapped = |r: &Region, opened: Opened| -> Result<usize, &'static str> {
            let (at, follow) = opened.place(r.base).ok_or("it is not inside of its allocation")?;
            if (follow as u64) < r.len {
                return Err("it is longer than its allocation");
            }
            kept.push(opened);
            Ok(at)
        };
        let to = match (&blob.slots, &self.slots) {
            (Some(slots), Some(_)) if slots.len >= shared.layout.device_len() as u64 => {
                let opened = share::open_uncached(owner.pid, owner.id, &slots.export, near);
                opened.map_err(|e| e.to_string()).and_then(|o| Ok(mapped(slots, o)?))
            }
            (_, None) => Err(self.no_slots.clone()),
            _ => Err("the peer has no slots in a device's memory".into()),
        };
        let mut regions = Vec::new();
        for r in &blob.regions {
            let refused =
                |e: Option<hmem::Error>, why| not_mapped(&blob, Some(&words), e, Error::NotMapped(why));
            let opened = share::open(owner.pid, owner.id, &r.export, near);
            let opened = opened.map_err(|e| refused(Some(e), e.to_string()))?;
            let at = mapped(r, opened).map_err(|why| refused(None, why.into()))?;
            regions.push((at, r.len));
        }
        let places = Places::new(&self.core.targets, &shared, &words)?;
        let mut why_not = "the peer's side has none that wait, or its options ask for it";
        let (mode, permit) = match &to {
            Err(_) => (HOST, None),
            Ok(_) => match self.kernels_may_wait(&blob)? {
                Ok(permit) => (DIRECT, Some(permit)),
                Err(why) => {
                    why_not = why;
                    (DEVICE, None)
                }
            },
        };
        let chosen = choice(mode, self.number);
        // Whatever ends waits is there before there are any.
        self.watch = Some(watch::start(shared.clone())?);
        let arrive = words.word(0, CHOICE).compare_exchange(0, chosen, AcqRel, Acquire);
        let arrive = match arrive {
            Ok(_) => self.where_messages_arrive(&shared, &blob, &words).inspect_err(|e| {
                let why = failure::of_peer(failure::word(e.errno(), Kind::None, 0));
                let _ = words.word(0, ERROR).compare_exchange(0, why, AcqRel, Relaxed);
            }),
            Err(_) => Err(Error::Blob("another endpoint has connected to it: a blob is for one peer")),
        };
        let (theirs, from) = arrive.inspect_err(|e| shared.fail(e.errno(), Kind::None, 0))?;
        let direct = mode == DIRECT && theirs == DIRECT;
        let permit = permit.filter(|_| direct);
        let path =
            to.as_ref().map_or_else(|why| host(why), |_| between_devices((!direct).then_some(why_not)));
        let (to, name) = (to.unwrap_or(words.at() + shared.layout.head()), blob.process);
        let lines = shared.layout.device_lines();
        let device = self.slots.as_ref().map(Made::device).filter(|_| direct);
        let direct = device.map(|device| Direct { own: from + lines, peer: to + lines, device });
        let (agent, _opened) = (None, kept);
        let peer = Peer { words, name, pid, to, from, regions, _opened, places, agent, direct, permit };
        if shared.peer.set(peer).is_err() {
            return Err(Error::State("the endpoint has a peer"));
        }
        self.path = Some(path.in_queues(one_queue));
        Ok(())
    }

    /// Has the carrier bring words to the peer, whose memory is not mapped.
    fn connect_by_agent(
        &mut self,
        shared: &Arc<Shared>,
        blob: &Blob,
        here: bool,
        one_queue: bool,
    ) -> Result<(), Error> {
        let Some(carrier) = self.carrier.as_mut().filter(|_| !blob.agent.is_empty()) else {
            return Err(if here && is_other_user(blob) { Error::OtherUser } else { Error::OtherHost });
        };
        carrier.accepts(&blob.agent)?;
        let words = self.near.take().ok_or(Error::State("the endpoint has had a peer: open another one"))?;
        self.watch = Some(watch::start(shared.clone()).inspect_err(|e| {
            shared.fail(e.errno(), Kind::None, 0);
        })?);
        let places = Places::new(&self.core.targets, shared, &words)?;
        let head = shared.layout.head();
        words.word(0, CHOICE).store(choice(HOST, self.number), Release);
        let (to, from) = (words.at() + head, shared.own.at() + head);
        let (name, pid, agent) = (blob.process, blob.pid, Some(Carried::default()));
        // The agent knows them by their numbers.
        let (regions, _opened) = (blob.regions.iter().map(|r| (0, r.len)).collect(), Vec::new());
        let (direct, permit) = (None, None);
        let peer = Peer { words, name, pid, to, from, regions, _opened, places, agent, direct, permit };
        if shared.peer.set(peer).is_err() {
            return Err(Error::State("the endpoint has a peer"));
        }
        let begun = carrier.begin(&blob.agent, Agent::feed(shared.clone()));
        let why = match (here, self.by_agent, blob.by_agent) {
            (false, ..) => "the peer is on another host",
            (true, true, _) => "the options ask for it",
            (true, false, true) => "the peer's options ask for it",
            (true, false, false) => "the peer's process is another user's",
        };
        let why = format!("an agent carries messages, {}: {why}", carrier.describe());
        let by_memory = here && carrier.by_memory();
        begun
            .and_then(|()| hears(shared, blob, here, by_memory))
            .inspect_err(|e| shared.fail(e.errno(), Kind::None, 0))?;
        self.path = Some(Path { through: Through::Agent, why }.in_queues(one_queue));
        Ok(())
    }

    /// Whether kernels wait; in `Err`, why not.
    fn kernels_may_wait(&self, blob: &Blob) -> Result<Result<Permit, &'static str>, Error> {
        let devices = blob.slots.as_ref().zip(self.slots.as_ref());
        let apart = |(peer, own): &(&Region, &Made)| peer.export.device != own.export().device;
        let Some((_, slots)) = devices.filter(apart) else {
            // By time slices a kernel that waits would keep the other process from running.
            return Ok(Err("both processes use one device"));
        };
        if self.by_memory_operations {
            return Ok(Err("the options ask for it"));
        }
        // The thread that connects may have a context of another device.
        let Ok(stream) = Stream::legacy(slots.addr()) else {
            return Ok(Err("the context of its slots is gone"));
        };
        if !stream.has_time_limit().is_ok_and(|limited| !limited) {
            return Ok(Err("the driver limits the time of the device's kernels"));
        }
        // A process that is killed while its kernel waits takes with it the contexts of others on its device.
        if !stream.is_by_mps().is_ok_and(|by_mps| !by_mps) {
            return Ok(Err("kernels of several processes are in the device by MPS"));
        }
        if pass::load(stream, kernel::context_id(stream)?).is_err() {
            return Ok(Err("the driver does not load kernels that wait"));
        }
        Ok(Permit::take().ok_or(
            "16 endpoints of this process have kernels that wait, where those with long puts count twice",
        ))
    }

    /// Waits until the peer has said which slots it writes to.
    fn where_messages_arrive(
        &self,
        shared: &Shared,
        blob: &Blob,
        peer: &Words,
    ) -> Result<(u32, usize), Error> {
        let mut limit = Limit::begin(shared.timeout, Instant::now());
        loop {
            if let Some(failure) = shared.failure() {
                return Err(Error::Failed(failure));
            }
            let ends = || (blob.process.has_ended(), peer.word(0, OVER).load(Acquire) != 0);
            let ((ended, over), said) = said_by(shared, ends);
            match said {
                0 => {}
                said => {
                    return match (chosen_by(said, blob)?, &self.slots) {
                        (said @ (DEVICE | DIRECT), Some(slots)) => Ok((said, slots.addr())),
                        (HOST, _) => Ok((HOST, shared.own.at() + shared.layout.head())),
                        _ => Err(Error::Blob("it chose slots that are not there")),
                    };
                }
            }
            if ended {
                return Err(Error::Gone);
            }
            if over {
                return Err(Error::Closed);
            }
            if limit.is_over(Instant::now()) {
                return Err(Error::NotConnected);
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// Waits until the peer's agent has brought its choice of slots.
fn hears(shared: &Shared, blob: &Blob, here: bool, by_memory: bool) -> Result<(), Error> {
    let mut limit = Limit::begin(shared.timeout, Instant::now());
    let agent = || shared.peer.get().and_then(|p| p.agent.as_ref());
    loop {
        if let Some(failure) = shared.failure() {
            return Err(Error::Failed(failure));
        }
        let ends = || (here && blob.process.has_ended(), agent().is_none_or(Carried::is_lost));
        let ((ended, lost), said) = said_by(shared, ends);
        match said {
            0 => {}
            said => {
                return match chosen_by(said, blob)? {
                    HOST => Ok(()),
                    _ => Err(Error::Blob("it chose slots that are not there")),
                };
            }
        }
        // An agent that has not reached it yet does not see its end.
        if ended {
            return Err(Error::Gone);
        }
        if lost {
            return Err(match here && blob.process.pid().is_some() && !blob.process.has_ended() {
                true if by_memory && is_other_user(blob) => Error::OtherUser,
                true => Error::Closed,
                false => Error::Gone,
            });
        }
        if limit.is_over(Instant::now()) {
            return Err(Error::NotConnected);
        }
        std::thread::sleep(PAUSE);
    }
}

/// Whether the peer has ended, and behind that what it has said: a peer that connects, sends and ends has
/// said it before.
fn said_by<T>(shared: &Shared, ends: impl FnOnce() -> T) -> (T, u32) {
    let ended = ends();
    (ended, shared.own.word(0, CHOICE).load(Acquire))
}

/// Why memory of the peer's is not mapped, where `e` refused it: the peer is not there any more, this process
/// has too little, or `otherwise`. `words`: the peer's, once they are mapped.
fn not_mapped(blob: &Blob, words: Option<&Words>, e: Option<hmem::Error>, otherwise: Error) -> Error {
    let errno = e.map_or(0, hmem::Error::errno);
    if errno == libc::ESRCH || blob.process.has_ended() {
        return Error::Gone;
    }
    if words.is_some_and(|words| words.word(0, OVER).load(Acquire) != 0) {
        return Error::Closed;
    }
    match (errno, e) {
        // Its descriptor is closed, or another file's by now.
        (libc::EBADF | libc::ESTALE, _) => Error::Closed,
        (libc::EMFILE | libc::ENFILE | libc::ENOMEM, Some(e)) => {
            Error::Memory("mapping the peer's memory", e)
        }
        _ => otherwise,
    }
}

/// Whether the peer says that its process is another user's.
fn is_other_user(blob: &Blob) -> bool {
    // SAFETY: no condition.
    blob.user != unsafe { libc::geteuid() }
}

/// Which slots the peer writes to, if it is the peer that has said so.
fn chosen_by(said: u32, blob: &Blob) -> Result<u32, Error> {
    if said >> 2 != blob.number {
        return Err(Error::Blob("another endpoint has connected to this one: a blob is for one peer"));
    }
    Ok(said & 3)
}

/// Whether streams share one hardware queue, as far as that was found out.
fn has_one_queue(near: Option<usize>) -> bool {
    cuda::find_driver() && cuda::has_one_queue(near) == Ok(Some(true))
}

impl Path {
    /// What is to be known first where a stream that waits holds up all others.
    fn in_queues(self, one: bool) -> Path {
        const ONE: &str = "one hardware queue for all streams: set CUDA_DEVICE_MAX_CONNECTIONS to 2 or more";
        if one { Path { why: format!("{ONE}; {}", self.why), ..self } } else { self }
    }
}

/// `why_not`: why memory operations wait, and not kernels.
fn between_devices(why_not: Option<&str>) -> Path {
    let why = match why_not {
        None => "the peer's device memory is mapped: kernels of the stream wait for words in their device's memory, copy \
                 to the peer's, and raise its words"
            .into(),
        Some(why) => format!(
            "the peer's memory is mapped: kernels of the stream copy, memory operations of the stream wait, not \
             kernels: {why}"
        ),
    };
    Path { through: Through::Device, why }
}

fn host(why: &str) -> Path {
    Path { through: Through::Host, why: format!("messages go through host memory: {why}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blob;

    #[test]
    fn a_peer_that_connects_and_ends_meanwhile_has_connected() {
        let shared = crate::watch::tests::direct();
        let choice = choice(HOST, 7);
        let ends = || {
            shared.own.word(0, CHOICE).store(choice, Release);
            true
        };
        assert_eq!(said_by(&shared, ends), (true, choice));
    }

    #[test]
    fn memory_of_a_peer_that_has_ended_or_closed_is_not_mapped_for_that() {
        let (mut blob, words) = (blob::tests::blob(), Words::new(4096).unwrap());
        let why = |blob: &Blob, errno: i32| {
            let e = (errno != 0).then_some(hmem::Error::os(errno));
            not_mapped(blob, Some(&words), e, Error::NotMapped(String::new())).errno()
        };
        for (errno, wanted) in [
            (0, libc::EOPNOTSUPP),
            (libc::EINVAL, libc::EOPNOTSUPP),
            (libc::EMFILE, libc::EMFILE),
            (libc::ENFILE, libc::ENFILE),
            (libc::ENOMEM, libc::ENOMEM),
            (libc::EBADF, libc::EPIPE),
            (libc::ESTALE, libc::EPIPE),
            (libc::ESRCH, libc::ECONNRESET),
        ] {
            assert_eq!(why(&blob, errno), wanted, "{errno}");
        }
        words.word(0, OVER).store(1, Release);
        assert_eq!([0, libc::EMFILE].map(|errno| why(&blob, errno)), [libc::EPIPE; 2]);
        // Its descriptors are closed by then.
        blob.process.process ^= 1;
        assert_eq!([0, libc::EBADF].map(|errno| why(&blob, errno)), [libc::ECONNRESET; 2]);
    }
}
