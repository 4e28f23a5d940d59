//! The thread that is the devices of a process.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::packet::Packet;
use crate::settings::settings;
use crate::state::{State, let_others, lock};

fn bell() -> &'static OwnedFd {
    static BELL: OnceLock<OwnedFd> = OnceLock::new();
    BELL.get_or_init(|| {
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        assert!(fd >= 0, "verbs stand-in: no eventfd");
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        std::thread::Builder::new()
            .name("verbs-stand-in".into())
            .spawn(run)
            .expect("verbs stand-in: no thread");
        fd
    })
}

/// Has the thread see to what was posted.
pub fn wake() {
    if settings().polled {
        return;
    }
    let one = 1u64;
    unsafe { libc::write(bell().as_raw_fd(), (&raw const one).cast(), 8) };
}

fn run() {
    // The bell is there once its initialiser, which this thread's creator runs, is done.
    let bell = bell().as_raw_fd();
    loop {
        let (fds, next) = {
            let mut state = lock();
            let Err(next) = state.turn() else {
                // The program may take what has come, also while packets go round.
                drop(state);
                let_others();
                continue;
            };
            let mut fds = vec![(bell, libc::POLLIN)];
            fds.extend(state.devices.values().map(|d| (d.listener.as_raw_fd(), libc::POLLIN)));
            fds.extend(state.connections.polled());
            fds.extend(state.manager.polled());
            (fds, next)
        };
        let fd = |(fd, events)| libc::pollfd { fd, events, revents: 0 };
        let mut polled: Vec<libc::pollfd> = fds.into_iter().map(fd).collect();
        let left = next.map(|at| at.saturating_duration_since(Instant::now()));
        let left = left.unwrap_or(Duration::from_secs(3600));
        let time = libc::timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos().into() };
        unsafe { libc::ppoll(polled.as_mut_ptr(), polled.len() as _, &time, std::ptr::null()) };
        let mut count = 0u64;
        unsafe { libc::read(bell, (&raw mut count).cast(), 8) };
    }
}

impl State {
    /// Does all that can be done now, and says when there is something again.
    pub fn turn_over(&mut self) -> Option<Instant> {
        loop {
            if let Err(next) = self.turn() {
                return next;
            }
        }
    }

    /// Does some of it. An error: there is nothing; when there is something again.
    fn turn(&mut self) -> Result<(), Option<Instant>> {
        self.connections.flush();
        let listeners: Vec<*const OwnedFd> = self.devices.values().map(|d| &raw const d.listener).collect();
        listeners.into_iter().for_each(|l| self.connections.accept(unsafe { &*l }));
        let mut packets: Vec<Packet> = self.connections.receive();
        packets.extend(self.inbox.drain(..));
        let mut busy = self.manage() || !packets.is_empty();
        for packet in packets {
            // A port that is down hears nothing, and no port what is sent to another one.
            let heard = self.qps.get(&packet.to_qpn).is_some_and(|qp| {
                qp.path.port == packet.to_port && self.devices[&qp.device].is_up(qp.path.port)
            });
            if heard {
                self.arrived(packet);
            }
        }
        let mut next = self.deliver_due();
        let numbers: Vec<u32> = self.qps.keys().copied().collect();
        for qpn in numbers {
            busy |= self.transmit_answers(qpn);
            next = [next, self.time_out(qpn)].into_iter().flatten().min();
            busy |= self.transmit(qpn);
            let sending = self.qps.get(&qpn).map(|qp| &qp.sending);
            let late = sending.and_then(|s| [s.paused, s.deadline].into_iter().flatten().min());
            next = [next, late].into_iter().flatten().min();
        }
        if busy { Ok(()) } else { Err([next, self.deliver_due()].into_iter().flatten().min()) }
    }
}
