//! Queue pairs of an iWARP device: what connects them, and who is not let in.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use below::{Below as _, Dest, Did, Message, NotSent, Offer, Poll, Remote as _};
use ipc::Ports;
use rdma_sys::cm_bindings::RDMA_CM_EVENT_REJECTED;
use rdma_sys::{
    Access, Channel, CmChannel, CmEvent, CmId, CmLibrary, CmSaid, Context, Cq, Device, Library, Pd, Qp,
    QpInit,
};
use verbs::{Options, Verbs};

use crate::device::{calls, fail, hold_connects, open, options, set};
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

fn short() -> Message<'static> {
    Message { who: 1, is_frame: false, front: b"now", middle: &[], body: &[], off: 0, len: 0 }
}

/// Sends until that is refused for another reason than that there is no room, or done.
fn send(by: &mut Verbs, to: Dest, beside: &mut Verbs) -> Result<(), NotSent> {
    let start = Instant::now();
    loop {
        match by.send(to, &short()) {
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
    let Did::Came(buffer, 3, by) = happens(other) else { panic!("not the message") };
    assert_eq!(by, Some(to_one));
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

/// The other one may agree as late as it likes: nothing is under way before.
#[test]
fn the_end_that_begins_connects_when_it_is_to_send() {
    let (mut a, mut b) = two();
    let (of_a, of_b) = offers(&mut a, &mut b);
    let to_b = a.connect(of_a.number, &of_b.address, (HOST, true)).expect("a queue pair");
    for _ in 0..100 {
        assert_eq!((a.poll(Poll::All), b.poll(Poll::All)), (None, None));
    }
    assert_eq!(calls(c"rdma_resolve_addr"), 0);
    let to_a = b.connect(of_b.number, &of_a.address, (HOST, false)).expect("a queue pair");
    // The other one does not begin, whatever it is to send.
    assert_eq!(b.send(to_a, &short()), Err(NotSent::Busy));
    assert_eq!(calls(c"rdma_resolve_addr"), 0);
    talk(&mut a, to_b, &mut b, to_a);
}

/// Begins to connect, until rdma_connect was called so often.
fn begin(by: &mut Verbs, to: Dest, beside: &mut Verbs, times: u64) {
    assert_eq!(by.send(to, &short()), Err(NotSent::Busy));
    let start = Instant::now();
    while calls(c"rdma_connect") < times {
        assert_eq!((by.poll(Poll::All), beside.poll(Poll::All)), (None, None), "while they connect");
        assert!(start.elapsed() < WAIT, "no call");
    }
}

#[test]
fn a_call_that_does_not_return_stops_nothing_else() {
    let (mut a, mut b) = two();
    let (to_b, to_a) = join(&mut a, &mut b);
    talk(&mut a, to_b, &mut b, to_a);
    hold_connects(true);
    let (late_b, late_a) = join(&mut a, &mut b);
    begin(&mut a, late_b, &mut b, 2);
    for _ in 0..40 {
        talk(&mut a, to_b, &mut b, to_a);
        assert_eq!(a.send(late_b, &short()), Err(NotSent::Busy));
    }
    hold_connects(false);
    talk(&mut a, late_b, &mut b, late_a);
}

#[test]
fn a_queue_pair_stays_until_what_connects_it_has_returned() {
    let (mut a, mut b) = two();
    hold_connects(true);
    let (to_b, to_a) = join(&mut a, &mut b);
    begin(&mut a, to_b, &mut b, 1);
    let before = calls(c"ibv_destroy_qp");
    a.part(to_b);
    // Longer than a queue pair that is closed may take.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(2500) {
        assert_eq!((a.poll(Poll::All), b.poll(Poll::All)), (None, None));
    }
    assert_eq!(calls(c"ibv_destroy_qp"), before, "what rdma_connect names");
    hold_connects(false);
    let start = Instant::now();
    while calls(c"ibv_destroy_qp") == before {
        let _ = (a.poll(Poll::All), b.poll(Poll::All));
        assert!(start.elapsed() < WAIT, "it stays");
    }
    b.part(to_a);
    let (to_b, to_a) = join(&mut a, &mut b);
    talk(&mut a, to_b, &mut b, to_a);
}

#[test]
fn an_endpoint_is_closed_while_it_connects() {
    let (mut a, mut b) = two();
    hold_connects(true);
    let (to_b, _) = join(&mut a, &mut b);
    begin(&mut a, to_b, &mut b, 1);
    let before = calls(c"ibv_destroy_qp");
    // This returns, and destroys what nothing uses.
    drop(a);
    assert_eq!(calls(c"ibv_destroy_qp"), before);
    hold_connects(false);
    let start = Instant::now();
    while calls(c"ibv_destroy_qp") == before {
        let _ = b.poll(Poll::All);
        assert!(start.elapsed() < WAIT, "it stays");
    }
}

/// The device has connected them and received, and this side has not heard of it.
#[test]
fn a_peer_that_parts_while_messages_come_gives_its_places_back_once() {
    let (mut a, mut b) = two();
    let (to_b, to_a) = join(&mut a, &mut b);
    begin(&mut a, to_b, &mut b, 1);
    let long = [7; 2000];
    let message = Message { who: 1, is_frame: true, front: &long, middle: &[], body: &[], off: 0, len: 0 };
    let start = Instant::now();
    let mut is_sent = false;
    while !is_sent || b.keeps(1) {
        is_sent = is_sent || b.send(to_a, &message).is_ok();
        assert_eq!(b.poll(Poll::All), None);
        assert!(start.elapsed() < WAIT, "not received");
    }
    a.part(to_b);
    while let Some(did) = a.poll(Poll::All) {
        if let Did::Came(buffer, ..) = did {
            a.give_back(buffer);
        }
    }
    b.part(to_a);
    let mut all = Vec::new();
    for _ in 0..4 {
        all.push(join(&mut a, &mut b));
    }
    for round in 0..20 {
        for (to_b, to_a) in &all {
            talk(&mut a, *to_b, &mut b, *to_a);
            assert_eq!((a.poll(Poll::All), b.poll(Poll::All)), (None, None), "round {round}");
        }
    }
}

fn chosen(devices: &str, change: impl FnOnce(&mut Options)) -> (String, String) {
    set(devices, &[]);
    let mut options = options();
    change(&mut options);
    let (found, refused) = verbs::open(&options, HOST).expect("a device");
    (found.about().detail.to_owned(), refused.join("; "))
}

#[test]
fn a_device_of_iwarp_comes_after_others() {
    let (detail, _) = chosen("sv0:iwarp;sv1", |_| {});
    assert!(detail.starts_with("sv1 port 1"), "{detail}");
    let (detail, _) = chosen("sv0:iwarp;sv1", |options| options.device = Some("sv0".into()));
    assert!(detail.starts_with("sv0 port 1"), "{detail}");
    let (detail, _) = chosen("sv0:iwarp;sv1", |options| options.device = Some("sv0,sv1".into()));
    assert!(detail.starts_with("sv0 port 1"), "{detail}");
}

#[test]
fn a_device_of_iwarp_comes_after_infiniband() {
    let (detail, _) = chosen("sv0:iwarp;sv1:ib", |_| {});
    assert!(detail.starts_with("sv1 port 1"), "{detail}");
}

#[test]
fn a_device_of_iwarp_is_no_rail() {
    let (detail, refused) = chosen("sv0;sv1:iwarp;sv2", |options| options.rails = 3);
    assert!(detail.contains("rail sv2") && !detail.contains("sv1"), "{detail}");
    assert!(refused.contains("sv1 port 1: as a rail"), "{refused}");
}

#[test]
fn no_gid_is_asked_of_a_device_of_iwarp() {
    let (detail, _) = chosen("sv0:iwarp", |options| options.gid = Some(7));
    assert!(detail.starts_with("sv0 port 1"), "{detail}");
}

#[test]
fn connections_are_listened_for_at_ports_of_the_range() {
    set("sv0:iwarp", &[]);
    let options = Options { ports: Ports::between(7000, 7001), ..options() };
    let mut all: Vec<Verbs> = (0..2).map(|_| verbs::open(&options, HOST).expect("a port").0).collect();
    let port = |at: &mut Verbs| {
        let address = at.offer().expect("a queue pair").address;
        u16::from_le_bytes([address[16], address[17]])
    };
    let mut ports: Vec<u16> = all.iter_mut().map(port).collect();
    ports.sort_unstable();
    assert_eq!(ports, [7000, 7001]);
    let why = verbs::open(&options, HOST).expect_err("no port").join("; ");
    assert!(why.contains("no port from 7000 to 7001 is free (FI_STRAIT_PORTS)"), "{why}");
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
    // No peer connects before both have agreed.
    let early = b.offer().expect("a queue pair").address;
    let event = Stranger::new().call(&early, &early[NONCE], || assert_eq!(b.poll(Poll::All), None));
    assert!(is_rejected(&event), "{event:?}");
    let to_a = b.connect(of_b.number, &of_a.address, (HOST, false)).expect("a queue pair");
    let event = Stranger::new().call(&of_b.address, &wrong, || assert_eq!(b.poll(Poll::All), None));
    assert!(is_rejected(&event), "{event:?}");
    let to_b = a.connect(of_a.number, &of_b.address, (HOST, true)).expect("a queue pair");
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
    b.connect(of_b.number, &of_a.address, (HOST, false)).expect("a queue pair");
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
    let to_b = a.connect(of_a.number, &of_b.address, (HOST, true)).expect("a queue pair");
    assert_eq!(a.send(to_b, &short()), Err(NotSent::Busy));
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
    let to_b = a.connect(of_a.number, &of_b.address, (HOST, true)).expect("a queue pair");
    let why = refusal(&mut a, to_b, &mut b);
    assert!(why.contains("the peer has rejected the connection"), "{why}");
    a.part(to_b);
}

#[test]
fn what_is_no_address_of_iwarp_is_refused() {
    let (mut a, mut b) = two();
    let (of_a, of_b) = offers(&mut a, &mut b);
    for address in [&of_b.address[..28], &[0; 36], &[1; 36]] {
        let why = a.connect(of_a.number, address, (HOST, true)).expect_err("no queue pair");
        assert!(why.contains("no queue pair of iWARP"), "{why}");
    }
    // This end connects nowhere but to the peer's endpoint.
    let mut elsewhere = of_b.address.clone();
    elsewhere[15] = 2;
    let why = a.connect(of_a.number, &elsewhere, (HOST, true)).expect_err("no queue pair");
    assert!(why.contains("it announces the address 127.0.0.2, and its endpoint's is 127.0.0.1"), "{why}");
    let to_b = a.connect(of_a.number, &of_b.address, (HOST, true)).expect("a queue pair");
    let again = a.connect(of_a.number, &of_b.address, (HOST, true)).expect_err("connected twice");
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
            let to_a = b.connect(of_b.number, &of_a.address, (HOST, false)).expect("a queue pair");
            b.part(to_a);
        } else {
            b.withdraw(of_b.number);
        }
        let to_b = a.connect(of_a.number, &of_b.address, (HOST, true)).expect("a queue pair");
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
    for call in [c"rdma_resolve_addr", c"rdma_resolve_route", c"rdma_connect"] {
        let (mut a, mut b) = two();
        let (of_a, of_b) = offers(&mut a, &mut b);
        fail(call, libc::ENETUNREACH);
        let to_b = a.connect(of_a.number, &of_b.address, (HOST, true)).expect("a queue pair");
        let why = refusal(&mut a, to_b, &mut b);
        assert!(why.contains(call.to_str().expect("a name")), "{why}");
        fail(call, 0);
    }
}

#[test]
fn an_accept_that_fails_ends_both() {
    let (mut a, mut b) = two();
    let (of_a, of_b) = offers(&mut a, &mut b);
    fail(c"rdma_accept", libc::ENOMEM);
    let to_b = a.connect(of_a.number, &of_b.address, (HOST, true)).expect("a queue pair");
    let to_a = b.connect(of_b.number, &of_a.address, (HOST, false)).expect("a queue pair");
    let why = refusal(&mut a, to_b, &mut b);
    assert!(
        why.contains("librdmacm reports RDMA_CM_EVENT_CONNECT_ERROR") || why.contains("rejected"),
        "{why}"
    );
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
