//! The watchdog: a thread of each endpoint that ends every wait of a stream, a graph or the CPU.
//!
//! A lane's first word names what its stream waits for. The watchdog fails the endpoint when the peer has
//! ended or closed and the word is not raised, or when nothing has changed for the time limit. It sets the
//! error words of both sides, and from then on raises each word that is waited for: streams pass, and kernels
//! move nothing.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ipc::process::Name;

use crate::Kind;
use crate::carried::Carried;
use crate::error::Error;
use crate::layout::{AT, BEGUN, CLOSED, ERROR, LANES, line_of};
use crate::limit::Limit;
use crate::shared::{Peer, Shared};

/// Between two polls of the lanes.
const TICK: Duration = Duration::from_millis(2);
/// For so long no lane has waited before the watchdog rests, which a graph that is launched does not end.
const QUIET: Duration = Duration::from_millis(100);
/// How long it rests at most.
const REST: Duration = Duration::from_millis(20);
/// What was raised so often in a row, and is waited for still, waits in a context that is gone.
const AGAIN: u32 = 10_000;
/// How long a word is still waited for when the peer has ended or closed: what it had queued may be done.
const GRACE: Duration = Duration::from_millis(10);

/// How often a kernel that waits says so again before the end of its peer fails it. What the lane's word says
/// may be old: the kernel has yet to find a flag that was raised before the end, as while its process has no
/// time on the device. Its device's memory is not read here, since calls of the driver may wait for the
/// kernel. So the lane's word is taken back, which a kernel finds between two polls. One that says the same
/// again, and then once more, has polled in between.
const SAID_AGAIN: u32 = 2;
/// After this no kernel is asked any more.
const ASKS_WITHIN: Duration = Duration::from_secs(1);

/// What a lane waits for, since when.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Wait {
    code: u32,
    begun: u32,
    limit: Limit,
}

/// Begins to watch an endpoint, as soon as it has a peer.
pub(crate) fn start(shared: Arc<Shared>) -> Result<JoinHandle<()>, Error> {
    let builder = std::thread::Builder::new().name("strait-stream".into());
    Ok(builder.spawn(move || {
        while !shared.stop.load(Acquire) {
            match shared.peer.get() {
                Some(peer) => watch(&shared, peer),
                None => std::thread::sleep(TICK),
            }
        }
    })?)
}

fn watch(shared: &Shared, peer: &Peer) {
    // An agent says what it knows: the process may be of another host.
    let mapped = peer.agent.is_none();
    let (mut process, mut gone) = (None, false);
    let mut waits: [Option<Wait>; LANES] = [None; LANES];
    // Since when the peer is known to have ended or closed.
    let mut over: Option<Instant> = None;
    // What each lane has said since then that it waits for, and how often. A peer that has ended raises no
    // word again, so that what is said again is the same wait.
    let mut asked = [const { Vec::new() }; LANES];
    let mut waited_at = Instant::now();
    // What was raised behind a failure, and how often in a row the same.
    let (mut raised, mut again) = ([0; LANES], 0u32);
    while !shared.stop.load(Acquire) {
        if shared.failure().is_some() {
            propagate(shared, peer);
            let now = satisfy(shared);
            again = if now == raised { again.saturating_add(1) } else { 0 };
            raised = now;
            if now == [0; LANES] || again > AGAIN {
                std::thread::sleep(TICK);
            } else {
                std::thread::yield_now();
            }
            continue;
        }
        if waits.iter().any(Option::is_some) {
            waited_at = Instant::now();
        }
        let length = pause(waited_at.elapsed());
        if length > TICK {
            // The endpoint's end wakes it.
            std::thread::park_timeout(length);
        }
        // Again where there were too few descriptors.
        if mapped && process.is_none() && !gone {
            (process, gone) = find(peer);
        }
        if sleep(process.as_ref(), if length > TICK { Duration::ZERO } else { TICK }) {
            // It stays readable from now on.
            (gone, process) = (true, None);
        }
        // By one time for all, since the process may be stopped at any point.
        let now = Instant::now();
        for wait in waits.iter_mut().flatten() {
            wait.limit.poll(now);
        }
        gone |= peer.agent.as_ref().is_some_and(Carried::is_lost);
        let closed = shared.own.word(0, CLOSED).load(Acquire) != 0;
        if gone || closed {
            over.get_or_insert_with(Instant::now);
        }
        for lane in 0..LANES as u32 {
            let wait = &mut waits[lane as usize];
            *wait = examine(shared, lane, *wait);
            let Some(Wait { code, limit, .. }) = *wait else { continue };
            let (asked, over) = (&mut asked[lane as usize], over.map(|o| o.elapsed()));
            let lasted = limit.lasted();
            let Some(why) = ends(waited(lasted, asked), over, closed, shared.timeout) else { continue };
            if shared.direct().is_some()
                && lasted < shared.timeout
                && over.is_some_and(|over| over < ASKS_WITHIN)
                && !is_sure(asked, code)
            {
                let _ = shared.lanes.word(lane, AT).compare_exchange(code, 0, AcqRel, Relaxed);
                *wait = None;
                continue;
            }
            let (kind, index) = named(shared, code);
            shared.fail(why, kind, index);
            break;
        }
    }
}

/// The peer's process; and whether it has ended, whose pid another one may have by then.
fn find(peer: &Peer) -> (Option<OwnedFd>, bool) {
    if peer.name.has_ended() {
        return (None, true);
    }
    let process = ipc::pidfd::open(peer.pid as i32).ok();
    // With too few descriptors it may be another process's by now.
    (process.filter(|_| Name::of(peer.pid) == Some(peer.name)), false)
}

/// Why a wait that has lasted so long ends now, if it does. `over`: for how long the peer is known to have
/// ended, or `closed`: what it had raised before may have come only then.
fn ends(lasted: Duration, over: Option<Duration>, closed: bool, timeout: Duration) -> Option<i32> {
    match over {
        Some(over) if lasted.min(over) >= GRACE => Some(if closed { libc::EPIPE } else { libc::ECONNRESET }),
        _ if lasted >= timeout => Some(libc::ETIMEDOUT),
        _ => None,
    }
}

/// How long a lane has waited: one that was asked has had its time, whichever block says now what it waits
/// for. Each is still asked as often as another ([`is_sure`]).
fn waited(lasted: Duration, asked: &[(u32, u32)]) -> Duration {
    if asked.is_empty() { lasted } else { lasted.max(GRACE) }
}

/// Whether a kernel has said often enough that it waits for this; it is counted.
fn is_sure(asked: &mut Vec<(u32, u32)>, code: u32) -> bool {
    let at = asked.iter().position(|(of, _)| *of == code).unwrap_or_else(|| {
        // Of a lane's kernel each block waits for another one.
        asked.push((code, 0));
        asked.len() - 1
    });
    asked[at].1 += 1;
    asked[at].1 > SAID_AGAIN
}

/// What a lane waits for now.
fn examine(shared: &Shared, lane: u32, before: Option<Wait>) -> Option<Wait> {
    let code = shared.waits_for(lane);
    if code == 0 || line_of(code) >= shared.layout.lines() {
        return None;
    }
    if shared.direct().is_none() && shared.own.word(line_of(code), 0).load(Acquire) != 0 {
        return None;
    }
    let begun = shared.lanes.word(lane, BEGUN).load(Acquire);
    Some(before.filter(|w| (w.code, w.begun) == (code, begun)).unwrap_or_else(|| Wait {
        code,
        begun,
        limit: Limit::begin(shared.timeout, Instant::now()),
    }))
}

/// Which operation a lane's word is of.
fn named(shared: &Shared, code: u32) -> (Kind, u32) {
    let (line, layout) = (line_of(code), &shared.layout);
    match code >> 24 {
        1 => (Kind::Send, line.wrapping_sub(layout.credit(0))),
        2 => (Kind::Receive, line.wrapping_sub(layout.flag(0))),
        3 if line < layout.carried() => (Kind::Put, line.wrapping_sub(layout.signal_credit(0))),
        // An agent's: of no signal.
        3 => (Kind::Put, 0),
        5 => (Kind::Get, 0),
        _ => (Kind::Wait, line.wrapping_sub(layout.signal(0))),
    }
}

/// Brings a failure that a kernel of this side has found to the peer.
fn propagate(shared: &Shared, peer: &Peer) {
    let word = shared.own.word(0, ERROR).load(Acquire);
    let theirs = crate::failure::of_peer(word);
    let _ = peer.words.word(0, ERROR).compare_exchange(0, theirs, Release, Acquire);
}

/// Raises what is waited for; what that is, lane by lane, and 0 for nothing.
fn satisfy(shared: &Shared) -> [u32; LANES] {
    let mut raised = [0; LANES];
    // Where kernels wait, these look at the error word.
    let lanes = if shared.direct().is_some() { 0 } else { LANES as u32 };
    for lane in 0..lanes {
        let code = shared.waits_for(lane);
        if code != 0 && line_of(code) < shared.layout.lines() {
            shared.own.word(line_of(code), 0).store(1, Release);
            raised[lane as usize] = code;
        }
    }
    raised
}

/// How long nothing is looked at, where no lane has waited for some time.
fn pause(quiet: Duration) -> Duration {
    if quiet < QUIET { TICK } else { REST }
}

/// Sleeps for so long, or until the process has ended: then `true`.
fn sleep(process: Option<&OwnedFd>, length: Duration) -> bool {
    let Some(process) = process else {
        std::thread::sleep(length);
        return false;
    };
    let mut fd = libc::pollfd { fd: process.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, which is valid for the call.
    unsafe { libc::poll(&mut fd, 1, length.as_millis() as libc::c_int) > 0 }
}

#[cfg(test)]
pub(crate) mod tests;
