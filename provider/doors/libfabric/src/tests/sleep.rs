//! Blocking calls, what wakes them, and automatic progress.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::*;

const MANY: c_int = 20_000;

/// A world's endpoint, and the way to it from a second world.
struct Two {
    here: World,
    ep: *mut fi::fid_ep,
    there: World,
    peer: *mut fi::fid_ep,
    to: fi::fi_addr_t,
}

impl Two {
    fn new(here: Setting, there: Setting) -> Two {
        let (here, there) = (World::new(here), World::new(there));
        let ((ep, _), (peer, name)) = (here.ep(), there.ep());
        let to = here.insert(&name);
        Two { here, ep, there, peer, to }
    }

    fn send(&self) {
        let from: *mut c_void = leak([7u8; 8]).cast();
        while call!(self.ep, msg.inject(from, 8, self.to)) == AGAIN {
            let _ = self.here.read();
        }
    }

    fn recv(&self) {
        let into: *mut c_void = leak([0u8; 8]).cast();
        assert_eq!(call!(self.peer, msg.recv(into, 8, NO, fi::FI_ADDR_UNSPEC, into)), 0);
    }

    fn end(self) {
        assert_eq!(close(self.ep), 0);
        assert_eq!(close(self.peer), 0);
        self.here.end();
        self.there.end();
    }
}

fn sread(cq: *mut fi::fid_cq, timeout: c_int) -> isize {
    let mut entry = fi::fi_cq_data_entry::default();
    call!(cq, ops.sread((&raw mut entry).cast(), 1, ptr::null(), timeout))
}

#[test]
fn a_message_wakes_a_reader() {
    for wait in [fi::FI_WAIT_UNSPEC, fi::FI_WAIT_FD, fi::FI_WAIT_YIELD] {
        let two = Two::new(Setting::default(), Setting { wait, ..Setting::default() });
        two.recv();
        let cq = Shared(two.there.cq);
        let reader = thread::spawn(move || (sread(cq.get(), MANY), Instant::now()));
        thread::sleep(Duration::from_millis(50));
        let sent = Instant::now();
        two.send();
        let (n, read) = reader.join().unwrap();
        assert_eq!(n, 1);
        assert!(read.saturating_duration_since(sent) < Duration::from_secs(5));
        assert_eq!(sread(two.there.cq, 20), AGAIN);
        two.end();
    }
}

#[test]
fn progress_by_another_thread_wakes_a_reader() {
    let two = Two::new(Setting::default(), Setting::default());
    two.recv();
    let cq = Shared(two.there.cq);
    let reader = thread::spawn(move || sread(cq.get(), MANY));
    two.send();
    while !reader.is_finished() {
        // It takes the message in; the reader, not polling, must hear of it.
        call!(two.there.cntr, ops.read());
    }
    assert_eq!(reader.join().unwrap(), 1);
    two.end();
}

#[test]
fn counters_are_waited_for() {
    let two = Two::new(Setting::default(), Setting::default());
    let cntr = Shared(two.there.cntr);
    let wait = move |n, ms| call!(cntr.get(), ops.wait(n, ms));
    assert_eq!(wait(1, 10), -fi::FI_ETIMEDOUT);
    let waiter = thread::spawn(move || wait(2, MANY));
    two.recv();
    two.send();
    thread::sleep(Duration::from_millis(20));
    assert_eq!(call!(two.there.cntr, ops.add(1)), 0);
    assert_eq!(waiter.join().unwrap(), 0);
    // An error that the application has added before a wait began does not end it.
    let waiter = thread::spawn(move || wait(9, MANY));
    while !waiter.is_finished() {
        assert_eq!(call!(two.there.cntr, ops.adderr(1)), 0);
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(waiter.join().unwrap(), -fi::FI_EAVAIL);
    two.end();
}

#[test]
fn a_signal_ends_the_next_read() {
    let w = World::new(Setting::default());
    assert_eq!(call!(w.cq, ops.signal()), 0);
    let start = Instant::now();
    assert_eq!(sread(w.cq, MANY), AGAIN);
    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!(sread(w.cq, 5), AGAIN);
    w.end();
}

#[test]
fn a_descriptor_becomes_readable() {
    let two = Two::new(Setting::default(), Setting { wait: fi::FI_WAIT_FD, ..Setting::default() });
    let mut fd: c_int = -1;
    assert_eq!(call_fid!(two.there.cq, control(fi::FI_GETWAIT, (&raw mut fd).cast())), 0);
    let mut fids = [two.there.cq.cast::<fi::fid>()];
    let trywait = |fids: &mut [*mut fi::fid; 1]| call!(two.there.fabric, ops.trywait(fids.as_mut_ptr(), 1));
    let poll = |ms| {
        let mut p = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry.
        unsafe { libc::poll(&raw mut p, 1, ms) }
    };
    two.recv();
    while trywait(&mut fids) != 0 {}
    assert_eq!(poll(10), 0);
    two.send();
    assert_eq!(poll(MANY), 1);
    while two.there.read().is_err() {}
    while trywait(&mut fids) != 0 {}
    assert_eq!(poll(10), 0);
    assert_eq!(call!(two.there.cq, ops.signal()), 0);
    assert_eq!(poll(MANY), 1);
    two.end();
}

#[test]
fn a_change_of_a_counter_that_was_not_read_keeps_from_sleeping() {
    let w = World::new(Setting::default());
    let mut fids = [w.cntr.cast::<fi::fid>()];
    let mut trywait = || call!(w.fabric, ops.trywait(fids.as_mut_ptr(), 1));
    let look = || assert_eq!(call!(w.cntr, ops.read()), 3);
    let adds: [fn(*mut fi::fid_cntr) -> c_int; 2] = [|c| call!(c, ops.add(3)), |c| call!(c, ops.adderr(1))];
    for add in adds {
        let _ = call!(w.cntr, ops.read());
        assert_eq!(trywait(), 0);
        assert_eq!(add(w.cntr), 0);
        assert_eq!(trywait(), -fi::FI_EAGAIN);
        // That was returned once.
        assert_eq!(trywait(), 0);
        assert_eq!(add(w.cntr), 0);
        assert_eq!(call!(w.cntr, ops.set(3)), 0);
        look();
        assert_eq!(trywait(), 0);
    }
    w.end();
}

#[test]
fn a_signal_keeps_from_sleeping_once() {
    let w = World::new(Setting { wait: fi::FI_WAIT_FD, ..Setting::default() });
    let mut fids = [w.cq.cast::<fi::fid>()];
    let mut trywait = || call!(w.fabric, ops.trywait(fids.as_mut_ptr(), 1));
    assert_eq!(trywait(), 0);
    assert_eq!(call!(w.cq, ops.signal()), 0);
    assert_eq!((trywait(), trywait()), (-fi::FI_EAGAIN, 0));
    w.end();
}

#[test]
fn a_signal_that_kept_from_sleeping_ends_a_blocking_read_too() {
    let w = World::new(Setting { wait: fi::FI_WAIT_FD, ..Setting::default() });
    let mut fids = [w.cq.cast::<fi::fid>()];
    let mut trywait = || call!(w.fabric, ops.trywait(fids.as_mut_ptr(), 1));
    let cq = Shared(w.cq);
    // A thread that sleeps in the call, and one that signals while another one looks whether it may sleep on
    // the descriptor.
    for begun in [true, false] {
        let read = move || {
            let start = Instant::now();
            assert_eq!(sread(cq.get(), MANY), AGAIN);
            start.elapsed()
        };
        let early = begun.then(|| thread::spawn(read));
        thread::sleep(Duration::from_millis(50));
        assert_eq!(call!(w.cq, ops.signal()), 0);
        until("the signal is there to be reported", || trywait() == 0);
        let took = early.map_or_else(read, |reader| reader.join().unwrap());
        assert!(took < Duration::from_secs(10), "the read ended after {took:?}");
    }
    w.end();
}

#[test]
fn what_another_thread_has_read_of_a_counter_keeps_from_sleeping() {
    let w = World::new(Setting::default());
    let (fabric, cntr) = (Shared(w.fabric), Shared(w.cntr));
    let trywait = move || {
        let mut fids = [cntr.get().cast::<fi::fid>()];
        call!(fabric.get(), ops.trywait(fids.as_mut_ptr(), 1))
    };
    let looks: [fn(*mut fi::fid_cntr); 2] =
        [|c| assert!(call!(c, ops.read()) > 0), |c| assert_eq!(call!(c, ops.wait(1, MANY)), 0)];
    let _ = call!(w.cntr, ops.read());
    assert_eq!(trywait(), 0);
    for look in looks {
        assert_eq!(call!(w.cntr, ops.add(1)), 0);
        let other = thread::spawn(move || {
            look(cntr.get());
            // What wakes the first thread stands until that one looks, and for a time if it does not.
            let kept = trywait();
            until("it has returned that itself", || trywait() == 0);
            kept
        });
        assert_eq!(other.join().unwrap(), -fi::FI_EAGAIN);
        assert_eq!((trywait(), trywait()), (-fi::FI_EAGAIN, 0));
    }
    w.end();
}

/// Several threads that sleep on the descriptor of a counter are all woken.
#[test]
fn all_threads_asleep_on_a_counter_descriptor_are_woken() {
    const ROUNDS: u64 = 200;
    let w = World::new(Setting { wait: fi::FI_WAIT_FD, ..Setting::default() });
    let (fabric, cntr) = (Shared(w.fabric), Shared(w.cntr));
    let mut fd: c_int = -1;
    assert_eq!(call_fid!(w.cntr, control(fi::FI_GETWAIT, (&raw mut fd).cast())), 0);
    let seen = [const { AtomicU64::new(0) }; 3];
    let watch = move |seen: &AtomicU64| {
        let mut fids = [cntr.get().cast::<fi::fid>()];
        while seen.load(Ordering::Relaxed) < ROUNDS {
            if call!(fabric.get(), ops.trywait(fids.as_mut_ptr(), 1)) == 0 {
                let mut p = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
                // SAFETY: one entry.
                assert_eq!(unsafe { libc::poll(&raw mut p, 1, MANY) }, 1, "nothing woke it");
            }
            seen.store(call!(cntr.get(), ops.read()), Ordering::Relaxed);
        }
    };
    thread::scope(|s| {
        seen.iter().for_each(|seen| drop(s.spawn(move || watch(seen))));
        for n in 1..=ROUNDS {
            assert_eq!(call!(cntr.get(), ops.add(1)), 0);
            until("a thread is not woken", || seen.iter().all(|seen| seen.load(Ordering::Relaxed) >= n));
        }
    });
    w.end();
}

#[test]
fn a_target_that_never_calls_is_served() {
    let auto = Setting { auto: true, ..Setting::default() };
    let two = Two::new(Setting::default(), auto);
    const LEN: usize = 1 << 20;
    let (from, into) = (leak(vec![3u8; LEN]), leak(vec![0u8; LEN]));
    // SAFETY: vectors that stay.
    let (from, into) = unsafe { ((*from).as_mut_ptr(), (*into).as_mut_ptr()) };
    let mr = two.there.register(into.cast(), LEN, 5);
    for len in [8, LEN] {
        let write = || call!(two.ep, rma.write(from.cast(), len, NO, two.to, 0, 5, from.cast()));
        while write() == AGAIN {
            let _ = two.here.read();
        }
        let start = Instant::now();
        let done = loop {
            match two.here.read() {
                Err(AGAIN) => assert!(start.elapsed() < Duration::from_secs(20), "no progress"),
                other => break other,
            }
        };
        assert_eq!(done.map(|e| e.op_context), Ok(from.cast()));
        // Asleep by now, it has to be woken for the next one.
        thread::sleep(Duration::from_millis(50));
    }
    // SAFETY: nothing writes there any more.
    assert_eq!(unsafe { into.add(LEN - 1).read() }, 3);
    assert_eq!(close(mr), 0);
    two.end();
}

/// Calls again and again, for a time, until it is enough.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(10), "{what}");
    }
}

#[test]
fn a_read_of_no_entries_makes_progress() {
    type Call = fn(*mut fi::fid_cq) -> isize;
    let calls: [(&str, Call); 3] = [
        ("fi_cq_read", |cq| call!(cq, ops.read(NO, 0))),
        ("fi_cq_readfrom", |cq| call!(cq, ops.readfrom(NO, 0, ptr::null_mut()))),
        ("fi_cq_sread", |cq| call!(cq, ops.sread(NO, 0, ptr::null(), 1))),
    ];
    let two = Two::new(Setting::default(), Setting::default());
    for (name, call) in calls {
        two.recv();
        two.recv();
        assert_eq!(call(two.there.cq), AGAIN, "{name}");
        two.send();
        until(name, || call(two.there.cq) == 0);
        // One entry is unread from here on, and a message that completes where it is received follows.
        let iov = libc::iovec { iov_base: leak([7u8; 8]).cast(), iov_len: 8 };
        let msg = fi::fi_msg { msg_iov: &raw const iov, iov_count: 1, addr: two.to, ..Default::default() };
        until(name, || {
            let rc = call!(two.ep, msg.sendmsg(&raw const msg, fi::FI_DELIVERY_COMPLETE));
            rc != AGAIN || two.here.read().is_ok()
        });
        until(name, || {
            assert_eq!(call(two.there.cq), 0, "{name}");
            two.here.read().is_ok()
        });
        for _ in 0..2 {
            assert!(two.there.read().is_ok(), "{name}");
        }
        assert_eq!(call(two.there.cq), AGAIN, "{name}");
    }
    two.end();
}
