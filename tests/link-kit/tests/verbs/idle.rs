//! Connections by which nothing goes: they give back what they have, and the next operation connects anew.

use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use below::{Remote as _, Stop};
use engine::{Atomic, Ctx, Error, OpFlags};
use hmem::{AtomicOp, Datatype, Span};
use link_api::{
    Event, FrameLink as _, HandleNote, Link as _, PeerId, RmaLink as _, SleepLink as _, WaitFd, Way,
};
use link_kit::text;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use stand_in::program::{self, Program};
use testkit::{from_any, msg, pattern, read, there, write};
use verbs::Verbs;

use crate::counted::Counts;
use crate::device::{open, set};
use crate::duo::{Duo, Over, filled, link_with};
use crate::rma::{BOTH, access, known};

const SOON: Duration = Duration::from_millis(5);
const WAIT: Duration = Duration::from_secs(15);
/// How long after a message was lost the connection may take to report the end of the peer.
const GRACE: Duration = Duration::from_millis(100);

/// A link that closes connections by which nothing has gone for this long, if at all.
fn link(idle: Option<Duration>, counts: &Arc<Counts>) -> Over<Verbs> {
    link_with(open(), counts, |options| (options.idle, options.grace) = (idle, GRACE))
}

/// How many there are of what is made and ended by these calls.
fn left(made: &std::ffi::CStr, ended: &std::ffi::CStr) -> u64 {
    let stand_in = Program::open(program::path("verbs_stand_in"));
    stand_in.calls(made) - stand_in.calls(ended)
}

fn pairs() -> u64 {
    left(c"ibv_create_qp", c"ibv_destroy_qp")
}

/// Two links, of which each has had a message from the other one.
struct Two {
    links: [Over<Verbs>; 2],
    /// As each knows the other one.
    to: [PeerId; 2],
    start: Instant,
    /// Frames that came, of each link.
    came: [Vec<u8>; 2],
}

impl Two {
    fn new(device: &str, idle: [Option<Duration>; 2]) -> Two {
        set(device, &[]);
        let counts = Arc::new(Counts::default());
        let mut links = idle.map(|idle| link(idle, &counts));
        let names = links.each_ref().map(|link| link.addr());
        let to = [links[0].peer(&names[1]), links[1].peer(&names[0])];
        let mut two = Two { links, to, start: Instant::now(), came: Default::default() };
        two.send(0, 0);
        two.send(1, 0);
        two.come([1, 1]);
        two
    }

    fn wait(&self, what: &str) {
        assert!(self.start.elapsed() < WAIT, "{what}");
    }

    /// One poll of a link.
    fn poll(&mut self, i: usize) {
        match self.links[i].poll() {
            Some(Event::Frame(frame)) => {
                let mut byte = [0];
                assert_eq!((frame.from, self.links[i].read(&frame, 0, &mut byte)), (self.to[i], 1));
                self.links[i].release(frame);
                self.came[i].push(byte[0]);
            }
            Some(other) => panic!("{other:?}"),
            None => {}
        }
    }

    fn try_send(&mut self, from: usize, byte: u8) -> bool {
        self.links[from].send(self.to[from], &[byte], &[], 0, 0).is_ok()
    }

    /// Sends a frame as soon as there is a way, and room.
    fn send(&mut self, from: usize, byte: u8) {
        while !self.try_send(from, byte) {
            self.wait("no way, or no room");
            self.poll(0);
            self.poll(1);
        }
    }

    /// Until so many have come.
    fn come(&mut self, n: [usize; 2]) {
        while self.came.each_ref().map(Vec::len) != n {
            self.wait("frames do not come");
            self.poll(0);
            self.poll(1);
        }
    }

    fn is_closed(&self, i: usize) -> bool {
        self.links[i].describe(self.to[i]).contains("not connected")
    }

    /// Until neither has a queue pair.
    fn close(&mut self) {
        while !self.is_closed(0) || !self.is_closed(1) || pairs() > 0 {
            self.wait("it is not closed");
            self.poll(0);
            self.poll(1);
        }
    }

    /// Until this link has proposed, which has the other one do nothing.
    fn propose(&mut self, i: usize) {
        while self.links[i].has_room_to_spare(self.to[i], 1) {
            self.wait("it proposes nothing");
            self.poll(i);
            sleep(Duration::from_micros(100));
        }
        assert!(!self.is_closed(i));
    }
}

fn closes(device: &str, idle: [Option<Duration>; 2]) {
    let mut two = Two::new(device, idle);
    for n in 1..6 {
        two.close();
        two.send(n % 2, n as u8);
        two.come([1 + n.div_ceil(2), 1 + n / 2]);
    }
    two.close();
    // Both at once.
    while !(two.try_send(0, 7) | two.try_send(1, 7)) {
        two.poll(0);
        two.poll(1);
    }
}

#[test]
fn an_idle_connection_is_closed_and_either_end_connects_anew() {
    closes("sv0", [Some(SOON), Some(SOON)]);
}

#[test]
fn one_end_that_asks_is_enough() {
    closes("sv0", [Some(SOON), None]);
}

#[test]
fn a_queue_pair_that_is_given_back_is_another_peers() {
    // A completion queue of this size serves one peer without a shared receive queue.
    closes("sv0:nosrq,cqe=64", [None, Some(SOON)]);
}

/// A message that is sent before its end has heard of a proposal, which has come before: it is declined, and no
/// message is lost.
#[test]
fn a_message_that_crosses_a_proposal_is_taken_and_the_connection_stays() {
    let mut two = Two::new("sv0", [Some(SOON), None]);
    for n in 1..20 {
        two.propose(0);
        assert!(two.try_send(1, n) && !two.try_send(0, 0), "only the one that proposes waits");
        // Taken before the answer, and behind it.
        if n % 2 == 0 {
            two.come([1 + usize::from(n), usize::from(n)]);
        }
        two.send(0, n);
        two.come([1 + usize::from(n), 1 + usize::from(n)]);
        assert!(!two.is_closed(0) && !two.is_closed(1) && pairs() == 2);
    }
    let all: Vec<u8> = (0..20).collect();
    assert_eq!(two.came, [all.clone(), all]);
    two.close();
}

/// The one that proposes has room again, and does not say so until it is answered: then it does.
#[test]
fn a_sender_that_waits_for_room_has_it_once_the_proposal_is_declined() {
    let mut two = Two::new("sv0", [Some(Duration::from_millis(500)), None]);
    two.propose(0);
    let (made, mut sent) = (Program::open(program::path("verbs_stand_in")).calls(c"ibv_create_qp"), 1);
    while two.try_send(1, 5) {
        sent += 1;
    }
    while two.came[0].len() < sent {
        two.wait("frames do not come");
        two.poll(0);
    }
    assert!(!two.try_send(1, 5), "room that was not reported");
    for _ in 0..100 {
        two.send(1, 6);
        sent += 1;
    }
    two.come([sent, 1]);
    let now = Program::open(program::path("verbs_stand_in")).calls(c"ibv_create_qp");
    assert_eq!(now, made, "it had to be closed for that");
    two.close();
}

/// The peer has closed, and its answer is late: meanwhile the device of the one that proposes finds nothing there
/// that would acknowledge the last message, though that has come.
#[test]
fn an_answer_that_is_later_than_the_device_is_patient_closes_and_ends_nothing() {
    let mut two = Two::new("sv0", [Some(SOON), None]);
    for n in 1..4 {
        two.propose(0);
        let (at, _) = two.links[0].next_mark(two.to[0]).expect("a connection");
        assert!(two.links[0].below().expect("a device").stop(Stop::Connection(at)));
        let late = Instant::now() + 2 * GRACE;
        while Instant::now() < late {
            two.poll(0);
        }
        two.close();
        two.send(0, n);
        two.send(1, n);
        two.come([1 + usize::from(n); 2]);
    }
}

#[test]
fn two_that_propose_at_once_close_without_an_answer() {
    let mut two = Two::new("sv0", [Some(SOON), Some(SOON)]);
    for n in 1..10 {
        // Neither reads what the other one has said before it has proposed.
        while !two.is_closed(0) || !two.is_closed(1) {
            two.wait("it is not closed");
            sleep(2 * SOON);
            (0..40).for_each(|_| two.poll(0));
            (0..40).for_each(|_| two.poll(1));
        }
        two.send(0, n);
        two.come([1, 1 + usize::from(n)]);
    }
}

/// Memory that is lent keeps its connection, and so do accesses.
#[test]
fn a_connection_by_which_memory_is_lent_stays_however_often_its_end_is_proposed() {
    let mut two = Two::new("sv0", [Some(SOON), None]);
    let memory = Span::leak(100_000);
    let handles =
        two.links[1].export_handles(two.to[1], &[memory], Way::Get).expect("memory that can be lent");
    two.links[1].note_handle(two.to[1], HandleNote::Exported(&handles[0]));
    for n in 1..10 {
        two.propose(0);
        two.send(0, n);
        two.come([1, 1 + usize::from(n)]);
        assert!(!two.is_closed(0) && !two.is_closed(1));
    }
    two.links[1].note_handle(two.to[1], HandleNote::Retired(&[]));
    two.close();
    assert_eq!(left(c"ibv_alloc_mw", c"ibv_dealloc_mw"), 0);
}

/// An end that is closed, or ends, while it waits for its answer, and one that is asked then.
#[test]
fn a_peer_that_ends_while_a_proposal_is_under_way_is_reported_and_its_messages_have_come() {
    for (ends, stays) in [(0, 1), (1, 0)] {
        let mut two = Two::new("sv0", [Some(SOON), None]);
        two.propose(0);
        assert!(two.try_send(1, 9));
        let Two { links: [zero, one], to, start, .. } = two;
        let (gone, mut left) = if ends == 0 { (zero, one) } else { (one, zero) };
        drop(gone);
        let mut came = 0;
        loop {
            assert!(start.elapsed() < WAIT, "the end is not reported");
            match left.poll() {
                Some(Event::Frame(frame)) => {
                    left.release(frame);
                    came += 1;
                }
                Some(Event::Closed(who, _)) => break assert_eq!(who, to[stays]),
                Some(other) => panic!("{other:?}"),
                None => {}
            }
        }
        assert_eq!(came, usize::from(ends == 1), "frames that were sent before");
    }
}

/// The timer of a sleeper ends its sleep for this, and no poll has to.
#[test]
fn a_sleeper_wakes_to_close_an_idle_connection() {
    let mut two = Two::new("sv0", [Some(SOON), None]);
    while !two.is_closed(0) {
        two.wait("it is not closed");
        if two.links[0].arm() {
            let fd = two.links[0].wait_fd(WaitFd::All).expect("a descriptor");
            let mut polled = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: one descriptor, and room for its events.
            assert_eq!(unsafe { libc::poll(&mut polled, 1, 20_000) }, 1, "nothing ends the sleep");
        }
        two.poll(0);
        // As its own process would.
        (0..40).for_each(|_| two.poll(1));
    }
}

/// The engine over two that close whenever they can.
fn duo(device: &str, idle: Duration) -> Duo<Verbs> {
    set(device, &[]);
    Duo::linked(|counts| link(Some(idle), counts))
}

/// Has both make progress until neither has a queue pair. So many were refused.
fn close(duo: &mut Duo<Verbs>, refused: u64) {
    let start = Instant::now();
    while pairs() > refused {
        assert!(start.elapsed() < WAIT, "it is not closed");
        assert!(duo.a.next().is_none() && duo.b.next().is_none());
    }
}

/// The key of a registration is the queue pair's: with that it goes, and it is asked for again.
#[test]
fn keys_end_with_the_queue_pair_and_are_asked_for_anew() {
    let mut duo = duo("sv0", SOON);
    let target = filled(1_000, 3);
    let mr = known(&mut duo, target, 9, BOTH);
    let (to, remote) = (duo.a.peer, [there(0, 1_000, 9)]);
    for i in 0..4 {
        close(&mut duo, 0);
        assert_eq!(left(c"ibv_alloc_mw", c"ibv_dealloc_mw"), 0);
        let mut by_device = 0;
        for n in 0..10 {
            let local = [filled(1_000, 10 * i + n)];
            assert_eq!(access(&mut duo, &write(to, &local, &remote, 1)).err, None);
            assert!(text(&[target]) == text(&local));
            by_device += duo.counts.take()[2];
        }
        assert!(by_device > 0, "accesses by the device");
    }
    close(&mut duo, 0);
    // No peer has a key to be taken back.
    duo.b.domain.mr_close(mr).expect("memory without a peer");
    let back = [Span::leak(1_000)];
    assert_eq!(access(&mut duo, &read(to, &back, &remote, 1)).err, Some(Error::BadKey));
}

/// What is done between closings, which may come at any time.
#[derive(Clone, Copy, Debug)]
enum Step {
    Message(usize),
    Back(usize),
    Write(usize),
    WriteWithData(usize),
    Read(usize),
    Add,
    Several(usize),
    /// So many polls in which nothing is asked.
    Idle(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let len = || prop_oneof![1..600usize, 10_000..100_000usize];
    let one = prop_oneof![
        len().prop_map(Step::Message),
        len().prop_map(Step::Back),
        len().prop_map(Step::Write),
        len().prop_map(Step::WriteWithData),
        len().prop_map(Step::Read),
        Just(Step::Add),
        (2..40usize).prop_map(Step::Several),
        (0..300usize).prop_map(Step::Idle),
        (0..300usize).prop_map(Step::Idle),
    ];
    proptest::collection::vec(one, 1..40)
}

fn run(duo: &mut Duo<Verbs>, memory: Span, steps: &[Step], added: &mut u64) {
    const WORD: usize = 100_000;
    let to = duo.a.peer;
    for (seed, step) in steps.iter().enumerate() {
        match *step {
            Step::Message(len) => duo.send(&[filled(len, seed)], &[Span::leak(len)]),
            Step::Back(len) => {
                std::mem::swap(&mut duo.a, &mut duo.b);
                duo.send(&[filled(len, seed)], &[Span::leak(len)]);
                std::mem::swap(&mut duo.a, &mut duo.b);
            }
            Step::Write(len) => {
                let (local, remote) = ([filled(len, seed)], [there(0, len, 9)]);
                assert_eq!(access(duo, &write(to, &local, &remote, 1)).err, None);
                assert!(text(&[memory])[..len] == pattern(len, seed));
            }
            Step::WriteWithData(len) => {
                let (local, remote) = ([filled(len, seed)], [there(0, len, 9)]);
                let op = engine::Rma { data: Some(seed as u64), ..write(to, &local, &remote, 1) };
                duo.post(|a| a.domain.rma(a.ep, &op));
                let (of_a, of_b) = duo.complete(1, 1);
                assert_eq!((of_a[0].err, of_b[0].err, of_b[0].data), (None, None, seed as u64));
                assert!(text(&[memory])[..len] == pattern(len, seed));
            }
            Step::Read(len) => {
                let (local, remote) = ([Span::leak(len)], [there(0, len, 9)]);
                assert_eq!(access(duo, &read(to, &local, &remote, 1)).err, None);
                assert!(text(&local) == text(&[memory])[..len]);
            }
            Step::Add => {
                let (operand, result, remote) = (Span::leak(8), [Span::leak(8)], there(WORD as u64, 8, 9));
                hmem::write(&[operand], 0, &5u64.to_le_bytes());
                let op = Atomic {
                    to,
                    op: AtomicOp::Sum,
                    datatype: Datatype::Uint64,
                    operand: &[operand],
                    compare: &[],
                    result: &result,
                    remote: std::slice::from_ref(&remote),
                    data: None,
                    ctx: Ctx(1),
                    flags: OpFlags::COMPLETION,
                };
                duo.post(|a| a.domain.atomic(a.ep, &op));
                assert_eq!(duo.complete(1, 0).0[0].err, None);
                assert_eq!(text(&result), added.to_le_bytes());
                *added += 5;
                assert_eq!(text(&[memory])[WORD..WORD + 8], added.to_le_bytes());
            }
            Step::Several(n) => {
                // Messages with no receive yet, which come in order.
                for i in 0..n {
                    let local = [filled(100, seed + i)];
                    duo.post(|a| a.domain.send(a.ep, &msg(to, &local, i)));
                }
                let all: Vec<Span> = (0..n).map(|_| Span::leak(100)).collect();
                for (i, dst) in all.iter().enumerate() {
                    duo.b.domain.recv(duo.b.rx, &from_any(&[*dst], i)).expect("a receive");
                }
                let (of_a, of_b) = duo.complete(n, n);
                assert!(of_a.iter().chain(&of_b).all(|c| c.err.is_none()));
                for (i, dst) in all.iter().enumerate() {
                    assert!(text(&[*dst]) == pattern(100, seed + i), "message {i}");
                }
            }
            Step::Idle(polls) => {
                for _ in 0..polls {
                    assert!(duo.a.next().is_none() && duo.b.next().is_none());
                }
            }
        }
    }
}

fn nothing_is_lost(device: &str, idle: Duration) {
    set(device, &[]);
    // While a device looks for how much goes inline.
    drop(open());
    let refused = pairs();
    let mut duo = duo(device, idle);
    let memory = Span::leak(100_008);
    known(&mut duo, memory, 9, BOTH);
    let (mut added, stand_in) = (0, Program::open(program::path("verbs_stand_in")));
    let before = stand_in.calls(c"ibv_destroy_qp");
    let mut runner = TestRunner::default();
    for n in 1..=24 {
        let all = steps().new_tree(&mut runner).expect("steps").current();
        run(&mut duo, memory, &all, &mut added);
        // Where all is quick nothing may have been idle for so long.
        if n % 4 == 0 {
            close(&mut duo, 3 * refused);
        }
    }
    let closed = stand_in.calls(c"ibv_destroy_qp") - before;
    assert!(closed >= 10, "{closed} queue pairs were given back");
}

#[test]
fn nothing_is_lost_repeated_or_reordered_where_connections_are_closed_at_any_time() {
    nothing_is_lost("sv0:glob", Duration::from_micros(1));
}

#[test]
fn nothing_is_lost_where_they_are_closed_after_a_while() {
    nothing_is_lost("sv0:glob", Duration::from_millis(1));
}

#[test]
fn nothing_is_lost_on_a_small_device() {
    nothing_is_lost("sv0:glob,nosrq,inline=16,sge=1,reads=1", Duration::from_micros(200));
}
