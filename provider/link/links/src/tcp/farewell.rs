//! The end of an endpoint, or of its process: what was sent arrives before the connections end.
//!
//! A closed socket answers what comes with a reset. The kernel then drops what it has sent and the other host
//! has not acknowledged. So a connection is closed once all of it is acknowledged: from then on the
//! receiver's kernel has it, and keeps it for the receiver after a reset, too. All connections are waited for
//! together, for a limited time.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use wire::Addr;

use super::channel::connection::Channel;
use super::channel::rails::Rails;
use super::peer::Peer;
use super::sock::{self, Awaited, would_block};

/// Between two looks, the first time and later on: the kernel does not wake a sleeper for an acknowledgement.
const NAPS: std::ops::RangeInclusive<Duration> = Duration::from_micros(50)..=Duration::from_millis(5);
/// Most bytes that are taken off a connection in one look, in so many calls.
const DROPPED: usize = 1 << 20;
const CALLS: usize = 8;

/// A connection that is about to end.
#[derive(Debug)]
struct Leaving {
    channel: Box<Channel>,
    to: Addr,
    /// Its end was sent behind all else.
    finished: bool,
}

impl Leaving {
    /// Goes on with it. Whether all of it is acknowledged, or nothing more can be.
    fn is_over(&mut self) -> bool {
        if self.channel.is_over() {
            return true;
        }
        self.channel.flush();
        if self.channel.pending() == 0 && !self.finished {
            sock::finish(self.channel.fd());
            self.finished = true;
        }
        // What comes is dropped: two sides that both wait for room, and both close, would wait for each
        // other.
        !self.goes_on() || self.finished && sock::owed(self.channel.fd()) == 0
    }

    /// Drops what has come. Whether the other end may still receive something.
    fn goes_on(&self) -> bool {
        for _ in 0..CALLS {
            match sock::discard_some(self.channel.fd(), DROPPED) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(e) => return would_block(&e),
            }
        }
        true
    }

    fn awaited(&self) -> Awaited {
        Awaited::new(self.channel.fd(), self.channel.pending() > 0)
    }
}

/// Ends the connections to all peers, each behind what was sent on it, within `most` for all of them.
pub(super) fn say(own: Addr, peers: &mut [Peer], most: Duration) {
    let until = Instant::now() + most;
    let mut leaving = Vec::new();
    for peer in peers {
        let to = peer.addr;
        for mut channel in [peer.channel.take(), peer.next.take()].into_iter().flatten() {
            let rails = channel.take_rails().into_iter().flat_map(Rails::into_channels);
            leaving.extend(rails.map(|channel| Leaving { channel, to, finished: false }));
            leaving.push(Leaving { channel, to, finished: false });
        }
    }
    let mut nap = *NAPS.start();
    loop {
        leaving.retain_mut(|one| !one.is_over());
        let left = until.saturating_duration_since(Instant::now());
        if leaving.is_empty() || left.is_zero() {
            break;
        }
        let mut awaited: Vec<Awaited> = leaving.iter().map(Leaving::awaited).collect();
        sock::wait_for_any(&mut awaited, nap.min(left));
        nap = (2 * nap).min(*NAPS.end());
    }
    for one in leaving {
        let bytes = one.channel.pending() + sock::owed(one.channel.fd());
        LOST.fetch_add(bytes as u64, Ordering::Relaxed);
        log::warn!(
            "{own} -> {}: closed after {} ms with {bytes} bytes that were not acknowledged, which may be lost",
            one.to,
            most.as_millis()
        );
    }
}

/// Bytes of this process that were given up so.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Bytes that connections of this process over TCP had sent, or were to send, when they were ended, and that
/// were not acknowledged within [`linger`](super::TcpOptions::linger): they may be lost.
pub fn lost_at_ends() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// The longest that an endpoint of this process waits, in milliseconds.
static MOST: AtomicU64 = AtomicU64::new(0);

/// What is sent by an endpoint that waits for `most` arrives also where the process exits without closing it.
/// The caller is a library that is never unloaded, or a program.
pub(super) fn stay_at_exit(most: Duration) {
    static ONCE: Once = Once::new();
    MOST.fetch_max(u64::try_from(most.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    ONCE.call_once(|| {
        // SAFETY: the function is there when the process exits, since its object is never unloaded.
        if unsafe { libc::atexit(at_exit) } != 0 {
            log::warn!("exit(3) does not wait for what was sent: atexit(3) has no room");
        }
    });
}

/// The same behind all handlers of atexit(3): those that were registered before an endpoint was opened run
/// after the handler above, and may send.
#[used]
#[cfg(not(any(test, loom, miri)))]
#[unsafe(link_section = ".fini_array")]
static AT_FINI: extern "C" fn() = at_exit;

extern "C" fn at_exit() {
    static IN_VAIN: AtomicBool = AtomicBool::new(false);
    let wait = || {
        if !IN_VAIN.load(Ordering::Relaxed) {
            let most = Duration::from_millis(MOST.load(Ordering::Relaxed));
            IN_VAIN.store(!wait_at_exit(most), Ordering::Relaxed);
        }
    };
    // Nothing is left to be done about a panic.
    let _ = std::panic::catch_unwind(wait);
}

/// Waits until all that the process has sent to peers is acknowledged; not what it has said to callers that
/// have not shown that they have the key, of which one could keep it waiting. The connections stay as they
/// are, for handlers that run after this one; and no lock of an endpoint is taken, which a thread may have
/// that does not go on. A completed message needs none: all of it was given to the kernel. In a forked child
/// its parent's descriptors are no sockets. `false`: the time was over.
fn wait_at_exit(most: Duration) -> bool {
    let start = Instant::now();
    let mut nap = *NAPS.start();
    loop {
        let mut owed = 0;
        let looked = ipc::each_marked(|fd| owed += sock::owed(&fd));
        if looked && owed == 0 {
            return true;
        }
        let left = most.saturating_sub(start.elapsed());
        if left.is_zero() {
            log::warn!(
                "exit after {} ms with {owed} bytes that were not acknowledged, which may be lost",
                most.as_millis()
            );
            return false;
        }
        std::thread::sleep(nap.min(left));
        nap = (2 * nap).min(*NAPS.end());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};

    use ipc::Unshared;

    use super::*;

    const CHILD: &str = "STRAIT_TEST_AT_EXIT";
    const MOST: Duration = Duration::from_millis(300);

    /// Descriptors are of a process, and so this has one of its own.
    #[test]
    fn exit_waits_for_what_was_sent_to_peers_and_not_for_strangers() {
        if std::env::var_os(CHILD).is_none() {
            let name = "tcp::farewell::tests::exit_waits_for_what_was_sent_to_peers_and_not_for_strangers";
            let mut child = std::process::Command::new(std::env::current_exe().unwrap());
            return assert!(child.args(["--exact", name]).env(CHILD, "1").status().unwrap().success());
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap();
        near.set_nonblocking(true).unwrap();
        while near.write(&[0; 4096]).is_ok() {}
        let near = Unshared::new(near.into());
        assert!(sock::owed(&near) > 0);
        let took = || {
            let start = Instant::now();
            wait_at_exit(MOST);
            start.elapsed()
        };
        assert!(took() < MOST, "for a connection that is no peer's");
        near.mark();
        assert!(took() >= MOST);
        drop(far);
        assert!(took() < MOST, "for a connection that has ended");
    }
}
