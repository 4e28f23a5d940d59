//! Queue pairs of an iWARP device: what connects them, and who is not let in.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use below::{Below as _, Dest, Did, Message, NotSent, Offer, Poll, Remote as _};
use rdma_sys::cm_bindings::RDMA_CM_EVENT_REJECTED;
use rdma_sys::{
    Access, Channel, CmChannel, CmEvent, CmId, CmLibrary, CmSaid, Context, Cq, Device, Library, Pd, Qp,
    QpInit,
};
use verbs::{Options, Verbs};

use crate::device::{fail, open, options, set};
use crate::lone::{happens, join, say};

const WAIT: Duration = Duration::from_secs(60);
const NONCE: std::ops::Range<usize> = 20..36;
const HOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn two() -> (Verbs, Verbs) {
    set("sv0:iwarp", &[]);
    (open(), open())
}

fn offers(one: &mut Verbs, other: &mut Verbs) -> (Offer, Offer) {
    (one.offer().expect("a queue pair"), other.offer().expect("a queue pair"))
}

/// Sends until that is refused for another reason than that there is no room, or done.
fn send(by: &mut Verbs, to: Dest, beside: &mut Verbs) -> Result<(), NotSent> {
    let start = Instant::now();
    loop {
        let message =
            Message { who: 1, is_frame: false, front: b"now", middle: &[], body: &[], off: 0, len: 0 };
        match by.send(to, &message) {
            Err(NotSent::Busy) => {}
            outcome => return outcome,
        }
        assert_eq!((by.poll(Poll::All), beside.poll(Poll::All)), (None, None), "while they connect");
        assert!(start.elapsed() < WAIT, "neither connected nor refused");
    }
}

fn refusal(by: &mut Verbs, to: Dest, beside: &mut Verbs) -> String {
    match send(by, to, beside) {
        Err(NotSent::Error(why)) => why,
        outcome => panic!("{outcome:?}"),
    }
}

/// A message each way, by those that are connected, or connect.
fn talk(one: &mut Verbs, to_other: Dest, other: &mut Verbs, to_one: Dest) {
    send(one, to_other, other).expect("a connection");
    let Did::Came(buffer, 3) = happens(other) else { panic!("not the message") };
    assert_eq!(other.came_by(buffer), Some(to_one));
    other.give_back(buffer);
    say(other, to_one, one);
}

/// The end of a peer's connection, of which the last messages had this.
fn loses(by: &mut Verbs) -> String {
    match happens(by) {
        Did::Failed(1, why) => why,
        did => panic!("{did:?}"),
    }
}

#[test]
fn messages_go_both_ways_and_accesses_do_not() {
    let (mut a, mut b) = two();
    let (to_b, to_a) = join(&mut a, &mut b);
    talk(&mut a, to_b, &mut b, to_a);
    let about = a.about();
    assert_eq!(
        (about.reads, about.writes, about.publishes, about.data, about.atomics),
        (None, false, false, false, false)
    );
    assert!(
        about.detail.contains("sv0 port 1, 127.0.0.1, MTU 1024, iWARP: memory goes in frames"),
        "{}",
        about.detail
    );
}

#[test]
fn either_may_agree_first() {
    let (mut a, mut b) = two();
    let (of_a, of_b) = offers(&mut a, &mut b);
    // The request of the one that begins is there before the other one has heard of it.
    let to_b = a.connect(of_a.number, &of_b.address, true).expect("a queue pair");
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(50) {
        assert_eq!((a.poll(Poll::All), b.poll(Poll::All)), (None, None));
    }
    let to_a = b.connect(of_b.number, &of_a.address, false).expect("a queue pair");
    talk(&mut a, to_b, &mut b, to_a);
}

/// One that knows where an endpoint listens, by librdmacm alone.
struct Stranger {
    id: CmId,
    channel: CmChannel,
    qp: Qp,
}

impl Stranger {
    fn new() -> Stranger {
        let Options { library, manager, .. } = options();
        let library = Library::open_at(&library.expect("the stand-in")).expect("the stand-in");
        let device = Device::list(&library).expect("devices").remove(0);
        let context = Context::open(&device).expect("a device");
        let pd = Pd::new(&context).expect("a domain");
        let events = Channel::new(&context).expect("a channel");
        let cq = Cq::new(&context, 16, Some(&events), 0, 0).expect("a queue");
        let init =
            QpInit { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, ..Default::default() };
        let qp = Qp::new(&pd, &cq, &cq, None, init).expect("a queue pair");
        qp.init_for_manager(Access::LOCAL_READ).expect("INIT");
        let library = CmLibrary::open(manager.as_deref()).expect("the stand-in");
        let channel = CmChannel::new(&library).expect("a channel");
        let id = CmId::new(&channel).expect("an id");
        Stranger { id, channel, qp }
    }

    fn said<'a>(&self, bytes: &'a [u8]) -> CmSaid<'a> {
        CmSaid { qpn: self.qp.number(), bytes, serves: 0, starts: 0 }
    }

    fn event(&self, mut meanwhile: impl FnMut()) -> CmEvent {
        let start = Instant::now();
        loop {
            if let Some(event) = self.channel.event().expect("events") {
                return event;
            }
            meanwhile();
            assert!(start.elapsed() < WAIT, "no event");
        }
    }

    /// Connects to where that was announced, with these bytes: what comes of it.
    fn call(&self, announced: &[u8], bytes: &[u8], mut meanwhile: impl FnMut()) -> CmEvent {
        let port = u16::from_le_bytes([announced[16], announced[17]]);
        self.id.resolve((HOST, 0).into(), (HOST, port).into(), WAIT).expect("an address");
        assert!(matches!(self.event(&mut meanwhile), CmEvent::Resolved(_)));
        self.id.resolve_route(WAIT).expect("a route");
        assert!(matches!(self.event(&mut meanwhile), CmEvent::Routed(_)));
        self.id.connect(&self.said(bytes)).expect("a request");
        self.event(meanwhile)
    }
}

fn is_rejected(event: &CmEvent) -> bool {
    matches!(event, CmEvent::Failed(_, RDMA_CM_EVENT_REJECTED, _))
}

#[test]
fn a_stranger_is_rejected_and_the_peer_is_not() {
    let (mut a, mut b) = two();
    let (of_a, of_b) = offers(&mut a, &mut b);
    let mut wrong = of_b.address[NONCE].to_vec();
    wrong[15] ^= 1;
    for bytes in [&wrong[..], &[], &of_b.address[NONCE][..15], &[0; 56]] {
        let event = Stranger::new().call(&of_b.address, bytes, || assert_eq!(b.poll(Poll::All), None));
        assert!(is_rejected(&event), "{bytes:?}: {event:?}");
    }
    let to_a = b.connect(of_b.number, &of_a.address, false).expect("a queue pair");
    let event = Stranger::new().call(&of_b.address, &wrong, || assert_eq!(b.poll(Poll::All), None));
    assert!(is_rejected(&event), "{event:?}");
    let to_b = a.connect(of_a.number, &of_b.address, true).expect("a queue pair");
    talk(&mut a, to_b, &mut b, to_a);
    // What was the peer's once is nobody's.
    let nonce = &of_b.address[NONCE];
    let event = Stranger::new().call(&of_b.address, nonce, || assert_eq!(b.poll(Poll::All), None));
    assert!(is_rejected(&event), "{event:?}");
    say(&mut a, to_b, &mut b);
}

/// Strangers are rejected for the nonce, and for nothing else that they do: one that has it is answered.
#[test]
fn the_nonce_is_what_lets_in() {
    let (mut a, mut b) = two();
    let (of_a, of_b) = offers(&mut a, &mut b);
    b.connect(of_b.number, &of_a.address, false).expect("a queue pair");
    let nonce = &of_b.address[NONCE];
    match Stranger::new().call(&of_b.address, nonce, || assert_eq!(b.poll(Poll::All), None)) {
        CmEvent::Established(_, bytes) => assert_eq!(bytes, of_a.address[NONCE]),
        event => panic!("{event:?}"),
    }
}

#[test]
fn what_accepts_without_the_nonce_is_not_the_peer() {
    let (mut a, mut b) = two();
    let (of_a, mut of_b) = offers(&mut a, &mut b);
    let impostor = Stranger::new();
    impostor.id.bind(SocketAddr::new(HOST, 0)).expect("an address");
    let port = impostor.id.listen().expect("a port");
    of_b.address[16..18].copy_from_slice(&port.to_le_bytes());
    let to_b = a.connect(of_a.number, &of_b.address, true).expect("a queue pair");
    let CmEvent::Request(id, nonce) = impostor.event(|| assert_eq!(a.poll(Poll::All), None)) else {
        panic!("no request")
    };
    // It sends back what it has got, which is all that it knows.
    id.accept(&impostor.said(&nonce)).expect("accepted");
    let why = refusal(&mut a, to_b, &mut b);
    assert!(why.contains("what has accepted its connection is not the peer"), "{why}");
}

#[test]
fn a_peer_that_rejects_is_refused_by_name() {
    let (mut a, mut b) = two();
    let (of_a, mut of_b) = offers(&mut a, &mut b);
    of_b.address[NONCE].fill(9);
    let to_b = a.connect(of_a.number, &of_b.address, true).expect("a queue pair");
    let why = refusal(&mut a, to_b, &mut b);
    assert!(why.contains("the peer has rejected the connection"), "{why}");
    a.part(to_b);
}

#[test]
fn what_is_no_address_of_iwarp_is_refused() {
    let (mut a, mut b) = two();
    let (of_a, of_b) = offers(&mut a, &mut b);
    for address in [&of_b.address[..28], &[0; 36], &[1; 36]] {
        let why = a.connect(of_a.number, address, true).expect_err("no queue pair");
        assert!(why.contains("no queue pair of iWARP") || why.contains("its address is"), "{why}");
    }
    let to_b = a.connect(of_a.number, &of_b.address, true).expect("a queue pair");
    let again = a.connect(of_a.number, &of_b.address, true).expect_err("connected twice");
    assert!(again.contains("no queue pair"), "{again}");
    let why = a.join_second(to_b, &[0; 28]).expect_err("a second one");
    assert!(why.contains("iWARP"), "{why}");
}

#[test]
fn a_peer_that_parts_before_it_is_connected_is_no_peer() {
    let (mut a, mut b) = two();
    for is_agreed in [false, true] {
        let (of_a, of_b) = offers(&mut a, &mut b);
        if is_agreed {
            let to_a = b.connect(of_b.number, &of_a.address, false).expect("a queue pair");
            b.part(to_a);
        } else {
            b.withdraw(of_b.number);
        }
        let to_b = a.connect(of_a.number, &of_b.address, true).expect("a queue pair");
        assert!(refusal(&mut a, to_b, &mut b).contains("rejected"));
        a.part(to_b);
    }
    let (to_b, to_a) = join(&mut a, &mut b);
    talk(&mut a, to_b, &mut b, to_a);
}

#[test]
fn the_end_of_a_connection_is_reported() {
    let (mut a, mut b) = two();
    let (to_b, to_a) = join(&mut a, &mut b);
    talk(&mut a, to_b, &mut b, to_a);
    b.part(to_a);
    let why = loses(&mut a);
    assert!(why.contains("its connection has ended") || why.contains("flush"), "{why}");
    a.part(to_b);
    // Both have room for others.
    let (to_b, to_a) = join(&mut a, &mut b);
    talk(&mut a, to_b, &mut b, to_a);
    drop(b);
    loses(&mut a);
}

#[test]
fn calls_that_fail_are_named() {
    for (call, at_once) in
        [(c"rdma_resolve_addr", true), (c"rdma_resolve_route", false), (c"rdma_connect", false)]
    {
        let (mut a, mut b) = two();
        let (of_a, of_b) = offers(&mut a, &mut b);
        fail(call, libc::ENETUNREACH);
        let why = match a.connect(of_a.number, &of_b.address, true) {
            Ok(to_b) if !at_once => refusal(&mut a, to_b, &mut b),
            Err(why) if at_once => why,
            outcome => panic!("{outcome:?}"),
        };
        assert!(why.contains(call.to_str().expect("a name")), "{why}");
        fail(call, 0);
    }
}

#[test]
fn an_accept_that_fails_ends_both() {
    let (mut a, mut b) = two();
    let (of_a, of_b) = offers(&mut a, &mut b);
    fail(c"rdma_accept", libc::ENOMEM);
    let to_b = a.connect(of_a.number, &of_b.address, true).expect("a queue pair");
    let to_a = b.connect(of_b.number, &of_a.address, false).expect("a queue pair");
    let why = refusal(&mut a, to_b, &mut b);
    assert!(why.contains("librdmacm reports event") || why.contains("rejected"), "{why}");
    assert!(refusal(&mut b, to_a, &mut a).contains("rdma_accept"));
}

#[test]
fn an_address_that_is_not_the_devices_is_refused() {
    set("sv0:iwarp", &[]);
    let why = verbs::open(&options(), Ipv4Addr::new(192, 0, 2, 1).into()).expect_err("no device").join("; ");
    assert!(why.contains("it has not the endpoint's address 192.0.2.1"), "{why}");
    set("sv0:iwarp", &[]);
    fail(c"rdma_listen", libc::EADDRINUSE);
    let why = verbs::open(&options(), HOST).expect_err("no device").join("; ");
    assert!(why.contains("rdma_listen"), "{why}");
}
