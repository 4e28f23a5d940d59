//! Devices that are refused, and completions with an error.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use below::{Below as _, Message, Piece, Remote as _};
use hmem::Span;
use link_api::{
    Direct, Event, FrameLink as _, Gone, Grant, HandleNote, Link as _, Once, PeerId, RmaLink as _,
    SleepLink as _, Way,
};
use link_kit::{Harness as _, name, text};
use rdma_sys as ibv;
use stand_in::program::{self, Program};
use verbs::{Options, Verbs};
use wire::Seg;

use crate::device::{harness, options, port, set};
use crate::support::{Driven, Over};

const WAIT: Duration = Duration::from_secs(30);
type Node = Driven<Over<Verbs>>;

fn refusal(devices: &str, options: &Options) -> String {
    set(devices, &[]);
    match verbs::open(options, Ipv4Addr::LOCALHOST.into()) {
        Ok(_) => panic!("it was opened"),
        Err(why) => why.join("; "),
    }
}

#[test]
fn a_host_without_devices_says_so() {
    assert!(refusal("none", &options()).contains("no RDMA device"));
}

#[test]
fn a_device_that_is_not_there_is_refused_with_those_that_are() {
    let wanted = Options { device: Some("mlx5_9".into()), ..options() };
    let why = refusal("sv0;sv1", &wanted);
    assert!(why.contains("no device mlx5_9") && why.contains("sv0 or sv1"), "{why}");
}

#[test]
fn devices_that_cannot_serve_are_each_refused_with_a_reason() {
    let no_manager = Options { manager: Some("/nowhere/librdmacm.so.1".into()), ..options() };
    let why = refusal("sv0:down;sv1:iwarp;sv2:cqe=32;sv3:msg=4096", &no_manager);
    for part in [
        "sv0: port 1: it is not active",
        "sv1: its connections are iWARP's: librdmacm.so.1 is not here",
        "sv2 port 1: ",
        "sv3: port 1: its messages",
    ] {
        assert!(why.contains(part), "{part}: {why}");
    }
}

#[test]
fn a_gid_that_is_empty_is_refused() {
    let wanted = Options { gid: Some(200), ..options() };
    assert!(refusal("sv0", &wanted).contains("FI_STRAIT_VERBS_GID names entry 200"));
}

#[test]
fn the_gid_of_the_address_is_chosen_else_one_that_is_routed() {
    set("sv0;sv1", &[]);
    let about = |own: &str, options: &Options| {
        let (verbs, _) = verbs::open(options, own.parse().expect("an address")).expect("a device");
        below::Below::about(&verbs).detail.to_owned()
    };
    // The stand-in's first device has 10.1.0.1, its second one 10.1.0.2.
    let first = about("127.0.0.1", &options());
    assert!(first.starts_with("sv0 port 1, GID ") && first.contains(" 10.1.0.1, MTU 1024"), "{first}");
    let second = about("10.1.0.2", &options());
    assert!(
        second.starts_with("sv1 port 1: with the endpoint's address, GID ") && second.contains(" 10.1.0.2,"),
        "{second}"
    );
    let named = Options { device: Some("sv1".into()), gid: Some(0), mtu: Some(512), ..options() };
    let named = about("10.1.0.1", &named);
    assert!(named.starts_with("sv1 port 1, GID 0 fe80:") && named.ends_with("MTU 512"), "{named}");
}

/// What raises an asynchronous event of a device of the stand-in.
fn raises(stand_in: &Program) -> extern "C" fn(usize, u32) {
    // SAFETY: the stand-in's function, with its type.
    unsafe { std::mem::transmute(stand_in.symbol("stand_in_verbs_event")) }
}

/// Two links, of which the first one has sent a frame that has come.
struct Two {
    a: Node,
    b: Node,
    to_b: PeerId,
    to_a: PeerId,
    stand_in: Program,
    start: Instant,
}

impl Two {
    fn new(devices: &str) -> Two {
        let mut h = harness(devices, &[]);
        let (mut a, mut b) = (h.open(), h.open());
        let (to_b, to_a) = (a.peer(&b.addr()), b.peer(&a.addr()));
        let stand_in = Program::open(program::path("verbs_stand_in"));
        let mut two = Two { to_b, to_a, stand_in, start: Instant::now(), a, b };
        two.send_to_b();
        two.frame_from_a();
        two
    }

    fn send_to_b(&mut self) {
        while self.a.send(self.to_b, b"hello", &[], 0, 0).is_err() {
            self.wait("no way to the peer");
            assert!(self.a.poll().is_none());
            assert!(self.b.poll().is_none());
        }
    }

    fn frame_from_a(&mut self) {
        loop {
            match self.b.poll() {
                Some(Event::Frame(frame)) => return self.b.release(frame),
                Some(other) => panic!("{other:?}"),
                None => self.wait("no frame"),
            }
        }
    }

    fn wait(&self, what: &str) {
        assert!(self.start.elapsed() < WAIT, "{what}");
        std::thread::sleep(Duration::from_micros(50));
    }

    /// The next send request of the process ends with this status.
    fn fail(&self, status: ibv::ibv_wc_status) {
        let fail = self.stand_in.symbol("stand_in_verbs_status");
        // SAFETY: the stand-in's function, with its type.
        let fail: extern "C" fn(u64, u32) = unsafe { std::mem::transmute(fail) };
        fail(1, status);
    }

    /// An asynchronous event of the device.
    fn raise(&self, kind: ibv::ibv_event_type) {
        raises(&self.stand_in)(0, kind);
    }

    /// Both see the other one's end, and a frame arrives by a new connection.
    fn both_meet_again(&mut self) {
        self.both_end();
        self.start = Instant::now();
        self.send_to_b();
        self.frame_from_a();
    }

    /// Both see the other one's end.
    fn both_end(&mut self) {
        let mut ended = [false; 2];
        while ended != [true; 2] {
            for (at, (node, peer)) in
                [(&mut self.a, self.to_b), (&mut self.b, self.to_a)].into_iter().enumerate()
            {
                match node.poll() {
                    Some(Event::Closed(which, why)) => {
                        assert_eq!((which, why, ended[at]), (peer, Gone::Reset, false));
                        ended[at] = true;
                    }
                    Some(Event::Frame(frame)) => node.release(frame),
                    Some(other) => panic!("{other:?}"),
                    None => {}
                }
            }
            self.wait("the end of a peer is not reported");
        }
    }
}

/// Whatever the status of a send is, both ends see the end of the peer, and can meet again.
#[test]
fn a_completion_with_an_error_ends_the_peer_at_both_ends_and_they_meet_again() {
    let mut two = Two::new("sv0");
    for status in ibv::IBV_WC_LOC_LEN_ERR..=ibv::IBV_WC_GENERAL_ERR {
        two.fail(status);
        let _ = two.a.send(two.to_b, b"hello", &[], 0, 0);
        two.both_meet_again();
    }
}

/// The request that binds a window ends so, and one that reads lent memory: the memory is lent no more, the
/// access ends once, nothing is read, and both ends meet again.
#[test]
fn an_access_or_a_window_that_ends_with_an_error_ends_the_peer_and_they_meet_again() {
    const LEN: usize = 100_000;
    let mut two = Two::new("sv0");
    let (there, here) = (Span::leak(LEN), Span::leak(LEN));
    for status in [
        ibv::IBV_WC_LOC_LEN_ERR,
        ibv::IBV_WC_LOC_ACCESS_ERR,
        ibv::IBV_WC_MW_BIND_ERR,
        ibv::IBV_WC_RESP_TIMEOUT_ERR,
        ibv::IBV_WC_REM_ABORT_ERR,
    ] {
        two.fail(status);
        assert!(two.b.export_handles(two.to_a, &[there], Way::Get).is_some());
        // The frame that has the key.
        let _ = two.b.send(two.to_a, b"hello", &[], 0, 0);
        two.both_meet_again();
        hmem::write(&[here], 0, &[9; LEN]);
        let handles = two.b.export_handles(two.to_a, &[there], Way::Get).expect("memory that can be lent");
        handles.iter().for_each(|handle| two.a.note_handle(two.to_b, HandleNote::Imported(handle)));
        let remote = [Seg { addr: there.addr().into(), len: (LEN as u64).into() }];
        let access = Direct::new(Grant::Request(name(1, 1)), &remote, std::slice::from_ref(&here), LEN);
        two.fail(status);
        let op = two.a.start(Way::Get, two.to_b, &access).expect("what the handle says");
        loop {
            match two.a.poll() {
                Some(Event::Cut(which)) => break assert_eq!(which, op, "status {status}"),
                Some(other) => panic!("status {status}: {other:?}"),
                None => two.wait("the access is never over"),
            }
        }
        assert!(text(&[here]) == [9; LEN], "status {status}");
        two.both_meet_again();
    }
}

/// An error of a queue pair ends its peers. Both ends meet by others.
#[test]
fn an_event_of_queue_pairs_ends_the_peer_at_both_ends_and_they_meet_again() {
    let mut two = Two::new("sv0");
    for kind in [ibv::IBV_EVENT_QP_FATAL, ibv::IBV_EVENT_QP_REQ_ERR, ibv::IBV_EVENT_QP_ACCESS_ERR] {
        two.raise(kind);
        two.both_meet_again();
    }
}

/// Without a queue that all peers share nothing goes by the device any more.
fn queues_that_fail_end_all(kind: u32, devices: &str) {
    let mut two = Two::new(devices);
    two.raise(kind);
    two.both_end();
    loop {
        assert!(two.a.send(two.to_b, b"hello", &[], 0, 0).is_err());
        match two.a.poll() {
            Some(Event::Closed(which, why)) => break assert_eq!((which, why), (two.to_b, Gone::Unreachable)),
            Some(other) => panic!("{other:?}"),
            None => two.wait("what cannot be sent has no end"),
        }
        // Its own end of the connection.
        assert!(two.b.poll().is_none_or(|event| matches!(event, Event::Closed(..))));
    }
}

#[test]
fn a_completion_queue_that_fails_ends_the_peers_and_nothing_is_sent_any_more() {
    queues_that_fail_end_all(ibv::IBV_EVENT_CQ_ERR, "sv0:nosrq");
}

#[test]
fn a_shared_receive_queue_that_fails_ends_the_peers_and_nothing_is_sent_any_more() {
    queues_that_fail_end_all(ibv::IBV_EVENT_SRQ_ERR, "sv0");
}

/// A queue pair sends again for 2.1 s.
#[test]
fn a_port_that_is_down_for_less_than_a_queue_pair_sends_again_loses_no_frame_and_no_peer() {
    let mut two = Two::new("sv0");
    port(0, 1, false);
    two.send_to_b();
    let down = Instant::now();
    while down.elapsed() < Duration::from_millis(1_300) {
        assert!(two.a.poll().is_none() && two.b.poll().is_none());
        std::thread::sleep(Duration::from_millis(1));
    }
    port(0, 1, true);
    two.frame_from_a();
}

/// The device is gone: peers end, and nothing is sent by it any more.
#[test]
fn a_device_that_is_removed_ends_its_peers() {
    let mut two = Two::new("sv0");
    two.raise(ibv::IBV_EVENT_DEVICE_FATAL);
    two.both_end();
}

/// The text on a path has the way, the call and the errno of a registration that was refused.
#[test]
fn a_registration_that_is_refused_is_in_the_text_on_the_path() {
    let mut two = Two::new("sv0");
    let there = Span::leak(4_096);
    assert!(!two.b.describe(two.to_a).contains("registered"));
    two.stand_in.fail(c"ibv_reg_mr", 0, libc::EFAULT);
    assert!(two.b.export_handles(two.to_a, &[there], Way::Get).is_none());
    let text = two.b.describe(two.to_a);
    assert!(
        text.contains("registered: System for peers by no way (not address: ibv_reg_mr: Bad address"),
        "{text}"
    );
}

/// A device is removed while accesses are under way: each of them ends once, and nothing of the device keeps a
/// sleeper awake.
#[test]
fn accesses_of_a_device_that_is_removed_end() {
    const LEN: usize = 1 << 20;
    set("sv0", &[("DELAY_US", "20000")]);
    let mut two = Two::new("sv0");
    let (there, here) = (Span::leak(LEN), Span::leak(LEN));
    let handles = two.b.export_handles(two.to_a, &[there], Way::Get).expect("memory that can be lent");
    handles.iter().for_each(|handle| two.a.note_handle(two.to_b, HandleNote::Imported(handle)));
    let remote = [Seg { addr: there.addr().into(), len: (LEN as u64).into() }];
    let access = Direct::new(Grant::Request(name(1, 1)), &remote, std::slice::from_ref(&here), LEN);
    let ops = [0; 5].map(|_| two.a.start(Way::Get, two.to_b, &access).expect("what the handle says"));
    let raise = raises(&two.stand_in);
    // It sees that before anything of the peer.
    two.a.with(|a| {
        raise(0, ibv::IBV_EVENT_DEVICE_FATAL);
        assert!(!a.below().expect("a device").try_wait());
        a.progress();
    });
    let (mut over, mut ended) = (Vec::new(), false);
    while over.len() < ops.len() || !ended {
        match two.a.poll() {
            Some(Event::Done(op, _) | Event::Cut(op)) => over.push(op),
            Some(Event::Closed(which, _)) => ended = which == two.to_b,
            Some(other) => panic!("{other:?}"),
            None => two.wait("accesses are never over"),
        }
    }
    over.sort_by_key(|op| op.0);
    assert_eq!(over, ops);
    while !two.a.arm() {
        assert!(two.a.poll().is_none());
        two.wait("what the device has reported keeps it awake");
    }
    // Nothing writes there any more.
    hmem::write(&[here], 0, &[5; LEN]);
    std::thread::sleep(Duration::from_millis(50));
    assert!(text(&[here]) == [5; LEN]);
}

/// Without a shared receive queue a completion queue of this size serves two peers.
#[test]
fn a_peer_for_which_there_is_no_queue_is_unreachable_and_the_others_are_served() {
    let mut h = harness("sv0:nosrq,cqe=64", &[]);
    let (mut all, mut others) = (h.open(), Vec::new());
    let start = Instant::now();
    for n in 0..3 {
        let other = h.open();
        let to = all.peer(&other.addr());
        loop {
            assert!(start.elapsed() < WAIT, "no way, and no end");
            let sent = all.send(to, b"hello", &[], 0, 0).is_ok();
            match all.poll() {
                Some(Event::Closed(which, why)) => {
                    assert_eq!((n, which, why), (2, to, Gone::Unreachable));
                    break;
                }
                Some(other) => panic!("{other:?}"),
                None if sent => {
                    assert!(n < 2, "more peers than there is room for");
                    break;
                }
                None => std::thread::sleep(Duration::from_micros(50)),
            }
        }
        others.push(other);
    }
}

/// What a peer says of its memory is done with its connection and nothing else. A key, an address or a length
/// that is none of a lease is refused by the device of the memory; that ends the connection, and touches
/// nothing.
#[test]
fn a_handle_that_was_forged_touches_nothing_and_ends_its_connection() {
    const LEN: usize = 4_096;
    let mut two = Two::new("sv0");
    let all = Span::leak(3 * LEN);
    hmem::write(&[all], 0, &[7; 3 * LEN]);
    let [there, here] = [all.part(LEN, LEN).expect("the middle"), Span::leak(LEN)];
    type Change = fn(&mut wire::Handle);
    let changes: [(Way, Change); 6] = [
        // Another key, another address, one that is lent to be read, to be written; and more than is lent.
        (Way::Get, |handle| handle.token[1] ^= 0x55),
        (Way::Put, |handle| handle.token[1] ^= 0x55),
        (Way::Get, |handle| handle.token[9] ^= 0x20),
        (Way::Get, |handle| handle.how ^= 1),
        (Way::Put, |handle| handle.how ^= 1),
        (Way::Put, |handle| handle.len = (2 * LEN as u64).into()),
    ];
    for (n, (lent, change)) in changes.into_iter().enumerate() {
        hmem::write(&[here], 0, &[9; LEN]);
        let handles = two.b.export_handles(two.to_a, &[there], lent).expect("memory that can be lent");
        let [mut handle] = handles[..] else { panic!("one handle") };
        let how = handle.how;
        change(&mut handle);
        two.a.note_handle(two.to_b, HandleNote::Imported(&handle));
        let way = match (lent, handle.how == how) {
            (way, true) => way,
            (Way::Get, false) => Way::Put,
            (Way::Put, false) => Way::Get,
        };
        let off = if handle.len.get() as usize > LEN { LEN / 2 } else { 0 };
        let remote = [Seg { addr: (there.addr() + off as u64).into(), len: (LEN as u64).into() }];
        let access = Direct::new(Grant::Request(name(1, 1)), &remote, std::slice::from_ref(&here), LEN);
        let op = two.a.start(way, two.to_b, &access).expect("what the handle says");
        loop {
            match two.a.poll() {
                Some(Event::Cut(which)) => break assert_eq!(which, op, "change {n}"),
                Some(other) => panic!("change {n}: {other:?}"),
                None => two.wait("the access is never over"),
            }
        }
        assert!(text(&[all]) == [7; 3 * LEN] && text(&[here]) == [9; LEN], "change {n}: what was touched");
        two.both_end();
        two.send_to_b();
        two.frame_from_a();
    }
}

/// A message that comes by another queue pair than the peer's under whose name it is: it is dropped, and the
/// peer goes on.
#[test]
fn a_message_by_another_connection_is_no_message_of_the_peer() {
    let mut two = Two::new("sv0");
    let mut h = harness("sv0", &[]);
    let mut c = h.open();
    let (c_to_b, start) = (c.peer(&two.b.addr()), Instant::now());
    while c.send(c_to_b, b"hello", &[], 0, 0).is_err() {
        assert!(start.elapsed() < WAIT, "no way to the peer");
        assert!(c.poll().is_none() && two.b.poll().is_none());
    }
    two.frame_from_a();
    // The mark of the next message from the first one, and bytes that it has not sealed.
    let mark = two.a.with(|a| a.next_mark(two.to_b)).expect("there is a channel").1;
    let bytes = [&mark.encode()[..], &[0; 40]].concat();
    let (front, who) = (&bytes[..], u64::MAX);
    let message = Message { who, is_frame: false, front, middle: &[], body: &[], off: 0, len: 0 };
    c.with(|c| {
        let dest = c.next_mark(c_to_b).expect("there is a channel").0;
        c.below().expect("a device").send(dest, &message).expect("room for one");
    });
    for _ in 0..200 {
        assert!(two.b.poll().is_none());
        std::thread::sleep(Duration::from_micros(50));
    }
    two.send_to_b();
    two.frame_from_a();
}

/// Writes with data take the room of messages. A peer that writes more often than it has room, and one that has
/// not agreed on that, are cut off.
#[test]
fn a_peer_that_writes_with_data_beyond_its_room_is_cut_off() {
    let mut two = Two::new("sv0");
    let window = two.a.with(|a| a.below().expect("a device").about().window) as usize;
    let (empty, once) = (Span::leak(1).part(0, 0).expect("no bytes"), Some(Once::Write(7)));
    let (mut written, start) = (0, Instant::now());
    let dest = two.a.with(|a| a.next_mark(two.to_b)).expect("there is a channel").0;
    // Without bytes the device asks for no key.
    let piece = Piece { way: Way::Put, at: dest, key: 0, first: 0, addr: 0, local: empty, once };
    for _ in 0..window + 1 {
        two.a.with(|a| a.below().expect("a device").access(1 << 54, &piece)).expect("room for one");
    }
    loop {
        assert!(start.elapsed() < WAIT, "it is not cut off");
        // Takes what has come, and reports none of it.
        for _ in 0..100 {
            two.b.with(|b| b.progress());
            std::thread::sleep(Duration::from_micros(100));
        }
        match two.b.poll() {
            Some(Event::Written(from, 7, 0)) => {
                assert_eq!(from, two.to_a);
                written += 1;
            }
            Some(Event::Closed(_, why)) => break assert_eq!(why, Gone::Denied),
            Some(other) => panic!("{other:?}"),
            None => {}
        }
    }
    assert!(written <= window, "{written} of {window}");
}
