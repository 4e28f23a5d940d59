//! What a link does with addresses for rails that it is told, by peers that a test plays.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use crate::caller::read;
use crate::pair::{event, open, options, take, until};
use hmem::Span;
use link::{TcpLink, TcpOptions};
use link_api::{
    Connect, Event, FrameLink as _, Gone, LandAt, Landing, Link as _, OpId, Parting, PeerId, Refused,
    RmaLink as _, Setting, SleepLink as _,
};
use wire::Addr;
use wire::session::{
    Answerer, COVERED, Hello, JobKey, Keys, MAC, Opener, RECORD, RailNote, Role, VERDICT, Verdict,
};

const LONG: usize = 200_000;

fn railed(rails: usize) -> TcpOptions {
    let mut options = options("key");
    options.rails = rails;
    options.rails_at = vec![[127, 0, 0, 9].into()];
    options
}

fn listener(ip: [u8; 4]) -> (TcpListener, Addr) {
    let listener = TcpListener::bind((std::net::IpAddr::from(ip), 0)).expect("a free port");
    listener.set_nonblocking(true).unwrap();
    let at = Addr::new(listener.local_addr().unwrap());
    (listener, at)
}

fn accept(listener: &TcpListener, link: &mut TcpLink) -> TcpStream {
    let mut found = None;
    until("a call", || {
        assert!(link.poll().is_none(), "nothing was to come");
        found = listener.accept().ok();
        found.is_some()
    });
    let stream = found.unwrap().0;
    stream.set_nonblocking(false).unwrap();
    stream
}

/// A peer that a link has called.
struct Called {
    stream: TcpStream,
    keys: Keys,
    name: Addr,
    peer: PeerId,
}

/// Answers a call with this key, in place of the job's if it is one of a rail, and says this at the end.
/// `None`: the caller goes before that.
fn answer(
    stream: &mut TcpStream,
    link: &mut TcpLink,
    name: Addr,
    (of_rail, role): (Option<&JobKey>, Role),
    verdict: Verdict,
) -> Option<Keys> {
    let hello = read(stream, link, Hello::LEN);
    assert_eq!(Hello::decode(hello.first_chunk().unwrap()).map(|hello| hello.role), Ok(role));
    let own = Hello { role: Role::Answerer, instance: 3, name, other: link.addr(), nonce: [4; 32] };
    let mut answerer = Answerer::new(&JobKey::from_secret(b"key"), own);
    let said = answerer.hear_any(&hello, |_| of_rail.cloned()).unwrap();
    stream.write_all(&said).unwrap();
    let proof = read(stream, link, MAC);
    let proven = answerer.hear_proof((proof.len() == MAC).then_some(&proof)?).ok()?;
    let verdict = proven.verdict(verdict);
    assert_eq!(verdict.len(), VERDICT);
    stream.write_all(&verdict).unwrap();
    if role == Role::Caller {
        assert!(proven.is_confirmation(&read(stream, link, MAC)), "it confirms");
    }
    Some(proven.keys())
}

impl Called {
    fn new(link: &mut TcpLink) -> Called {
        let (listener, name) = listener([127, 0, 0, 1]);
        let peer = link.peer(&name);
        assert_eq!(link.connect(peer, Connect::Now), Err(Refused::Busy));
        let mut stream = accept(&listener, link);
        let keys = answer(&mut stream, link, name, (None, Role::Caller), Verdict::Accepted);
        Called { stream, keys: keys.expect("it has the key"), name, peer }
    }

    fn say(&mut self, note: &RailNote) {
        let note = note.encode();
        let header = self.keys.sealer.seal_note(&note);
        self.stream.write_all(&[&header[..], &note].concat()).unwrap();
    }

    /// Tells of these addresses.
    fn tell(&mut self, all: &[Addr]) {
        self.say(&RailNote::At(all.to_vec()));
    }

    fn answer_rail(
        &self,
        rail: &mut TcpStream,
        link: &mut TcpLink,
        key: &JobKey,
        verdict: Verdict,
    ) -> Option<Keys> {
        answer(rail, link, self.name, (Some(key), Role::Rail(1)), verdict)
    }

    fn key(&self) -> JobKey {
        self.keys.rails.clone().expect("that of a connection")
    }

    /// The next record of the connection has to be this note.
    fn hears(&mut self, link: &mut TcpLink, note: &RailNote) {
        let header: [u8; RECORD] = read(&mut self.stream, link, RECORD).try_into().unwrap();
        let heard = read(&mut self.stream, link, Opener::note_len(&header).expect("a note"));
        self.keys.opener.open_note(&header, &heard).unwrap();
        assert_eq!(RailNote::decode(&heard).as_ref(), Some(note));
    }

    /// The next record of the connection is a frame, with this header, or says that the next frame is on the
    /// rail.
    fn hears_next(&mut self, link: &mut TcpLink) -> Option<[u8; RECORD]> {
        let header: [u8; RECORD] = read(&mut self.stream, link, RECORD).try_into().unwrap();
        let Some(len) = Opener::note_len(&header) else { return Some(header) };
        let note = read(&mut self.stream, link, len);
        self.keys.opener.open_note(&header, &note).unwrap();
        assert_eq!(RailNote::decode(&note), Some(RailNote::Next(1)));
        None
    }

    /// The link sends a long frame; it comes on the connection.
    fn gets_long(&mut self, link: &mut TcpLink, seed: u8) {
        send(link, self.peer, seed);
        get(&mut self.stream, link, &mut self.keys, seed);
    }

    /// A frame of this peer's is taken, and the connection has no rail.
    fn goes_on_without(&mut self, link: &mut TcpLink) {
        let header = self.keys.sealer.seal(5, b"hello");
        self.stream.write_all(&[&header[..], b"hello"].concat()).unwrap();
        assert_eq!(take(link, &mut open(options("key"))), (self.peer, b"hello".to_vec()));
        assert!(!link.describe(self.peer).contains("rails"), "{}", link.describe(self.peer));
        (0..3).for_each(|seed| self.gets_long(link, seed));
    }
}

fn send(link: &mut TcpLink, to: PeerId, seed: u8) {
    let body = [Span::leak(LONG)];
    hmem::write(&body, 0, &vec![seed; LONG]);
    until("room", || {
        assert!(link.poll().is_none(), "nothing was to come");
        link.send(to, &[], &body, 0, LONG).is_ok()
    });
}

fn send_short(link: &mut TcpLink, to: PeerId) {
    until("room", || link.send(to, b"hello", &[], 0, 0).is_ok());
}

fn get(stream: &mut TcpStream, link: &mut TcpLink, keys: &mut Keys, seed: u8) {
    let header: [u8; RECORD] = read(stream, link, RECORD).try_into().unwrap();
    get_rest(stream, link, keys, &header, seed);
}

fn get_rest(stream: &mut TcpStream, link: &mut TcpLink, keys: &mut Keys, header: &[u8; RECORD], seed: u8) {
    assert_eq!(Opener::len(header, LONG), Ok(LONG));
    let frame = read(stream, link, LONG);
    keys.opener.open(header, &frame[..COVERED]).unwrap();
    assert!(frame == vec![seed; LONG]);
}

/// The link has closed this one.
fn is_closed(stream: &mut TcpStream, link: &mut TcpLink) {
    assert_eq!(read(stream, link, 1), []);
}

/// A peer that has a rail, which is up.
fn with_rail(a: &mut TcpLink) -> (Called, TcpStream, Keys) {
    let mut called = Called::new(a);
    let (listener, at) = listener([127, 0, 0, 2]);
    called.tell(&[at]);
    let mut rail = accept(&listener, a);
    let key = called.key();
    let keys = called.answer_rail(&mut rail, a, &key, Verdict::Accepted).expect("it is its peer");
    called.hears(a, &RailNote::Up(1));
    (called, rail, keys)
}

#[test]
fn a_rail_is_made_to_an_address_that_was_told_and_is_used() {
    let mut a = open(railed(2));
    let (mut called, mut rail, mut keys) = with_rail(&mut a);
    assert!(a.describe(called.peer).contains("over 2 rails"));
    let mut on_rail = 0;
    for seed in 0..20 {
        send(&mut a, called.peer, seed);
        let header = called.hears_next(&mut a);
        match header {
            None => get(&mut rail, &mut a, &mut keys, seed),
            Some(header) => get_rest(&mut called.stream, &mut a, &mut called.keys, &header, seed),
        }
        on_rail += u32::from(header.is_none());
        // Nothing is known of either's rate.
        assert!(seed > 0 || on_rail == 1);
    }
    // And the other way.
    let header = keys.sealer.seal(5, b"hello");
    rail.write_all(&[&header[..], b"hello"].concat()).unwrap();
    called.say(&RailNote::Next(1));
    assert_eq!(take(&mut a, &mut open(options("key"))), (called.peer, b"hello".to_vec()));
}

/// What waits on the rail takes longer than what does on the connection, so that what follows would wait for
/// it.
#[test]
fn long_frames_do_not_queue_up_on_a_rail_that_stalls() {
    let mut a = open(railed(2));
    let (mut called, _rail, _keys) = with_rail(&mut a);
    let (mut here, mut on_rail) = (0, 0);
    for seed in 0..60 {
        send(&mut a, called.peer, seed);
        match called.hears_next(&mut a) {
            None => on_rail += 1,
            Some(header) => {
                get_rest(&mut called.stream, &mut a, &mut called.keys, &header, seed);
                here += 1;
            }
        }
    }
    assert_eq!(here + on_rail, 60);
    assert!(on_rail > 0 && on_rail <= 8, "{on_rail} frames of {LONG} bytes");
}

/// The connection is one of this host, so that addresses of this host may be named; nothing else that no rail
/// can have is called.
#[test]
fn addresses_that_no_rail_can_have_are_not_called() {
    let mut a = open(railed(4));
    let mut called = Called::new(&mut a);
    let low = (600..1000).find_map(|port| TcpListener::bind(("127.0.0.8", port)).ok());
    let mut told = Vec::new();
    if let Some(low) = &low {
        low.set_nonblocking(true).unwrap();
        told.push(Addr::new(low.local_addr().unwrap()));
    }
    let (good, at) = listener([127, 0, 0, 2]);
    for ip in [[255, 255, 255, 255], [224, 0, 0, 1], [192, 0, 2, 7], [0, 0, 0, 1]] {
        told.push(Addr::new((std::net::IpAddr::from(ip), at.port()).into()));
    }
    told.push(at);
    called.tell(&told);
    let mut rail = accept(&good, &mut a);
    // It is the first one: none of those before has a place.
    let key = called.key();
    called.answer_rail(&mut rail, &mut a, &key, Verdict::Accepted).expect("it is its peer");
    called.hears(&mut a, &RailNote::Up(1));
    if let Some(low) = low {
        assert_eq!(low.accept().expect_err("a service was called").kind(), ErrorKind::WouldBlock);
    }
}

#[test]
fn no_more_rails_are_made_than_are_wanted() {
    let mut a = open(railed(3));
    let mut called = Called::new(&mut a);
    let all: Vec<_> = (2..7).map(|n| listener([127, 0, 0, n])).collect();
    let told: Vec<_> = all.iter().map(|(_, at)| *at).collect();
    called.tell(&told);
    let _kept = [accept(&all[0].0, &mut a), accept(&all[1].0, &mut a)];
    for (listener, _) in &all[2..] {
        assert_eq!(listener.accept().expect_err("one too many").kind(), ErrorKind::WouldBlock);
    }
}

#[test]
fn what_answers_without_the_key_of_the_connection_gets_no_frame() {
    let job = JobKey::from_secret(b"key");
    let other = Called::new(&mut open(railed(2))).key();
    for wrong in [&job, &other] {
        let mut a = open(railed(2));
        let mut called = Called::new(&mut a);
        let (listener, at) = listener([127, 0, 0, 2]);
        called.tell(&[at]);
        let mut rail = accept(&listener, &mut a);
        assert!(called.answer_rail(&mut rail, &mut a, wrong, Verdict::Accepted).is_none());
        is_closed(&mut rail, &mut a);
        called.goes_on_without(&mut a);
    }
    // It has the key, and declines; it says what is no answer at all.
    let mut a = open(railed(2));
    let mut called = Called::new(&mut a);
    let (listener, at) = listener([127, 0, 0, 2]);
    called.tell(&[at]);
    let mut rail = accept(&listener, &mut a);
    assert!(called.answer_rail(&mut rail, &mut a, &called.key(), Verdict::Full).is_some());
    is_closed(&mut rail, &mut a);
    called.goes_on_without(&mut a);
    let mut a = open(railed(2));
    let mut called = Called::new(&mut a);
    called.tell(&[at]);
    let mut rail = accept(&listener, &mut a);
    rail.write_all(&[b'x'; Hello::LEN + MAC]).unwrap();
    read(&mut rail, &mut a, Hello::LEN);
    is_closed(&mut rail, &mut a);
    called.goes_on_without(&mut a);
}

#[test]
fn an_address_at_which_nothing_answers_is_given_up() {
    let mut options = railed(2);
    options.timeout = Duration::from_secs(1);
    let mut a = open(options);
    let mut called = Called::new(&mut a);
    let (silent, at) = listener([127, 0, 0, 2]);
    called.tell(&[at]);
    let mut rail = accept(&silent, &mut a);
    assert_eq!(read(&mut rail, &mut a, Hello::LEN).len(), Hello::LEN);
    // Frames go on the connection meanwhile.
    called.gets_long(&mut a, 1);
    is_closed(&mut rail, &mut a);
    called.goes_on_without(&mut a);
    // One where nothing listens any more.
    let mut a = open(railed(2));
    let mut called = Called::new(&mut a);
    drop(silent);
    called.tell(&[at]);
    called.goes_on_without(&mut a);
}

#[test]
fn the_side_that_was_called_tells_of_addresses_once_and_of_nothing_else() {
    let (_silent, at) = listener([127, 0, 0, 2]);
    let told = RailNote::At(vec![at]);
    for notes in [&[told.clone(), told][..], &[RailNote::Up(1)], &[RailNote::Next(1)]] {
        let mut a = open(railed(2));
        let mut called = Called::new(&mut a);
        notes.iter().for_each(|note| called.say(note));
        match event(&mut a, &mut open(options("key"))) {
            Event::Closed(peer, why) => assert_eq!((peer, why), (called.peer, Gone::Denied)),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn the_end_of_a_connection_is_that_of_its_rails() {
    let mut a = open(railed(2));
    let (mut called, mut rail, _) = with_rail(&mut a);
    // Which is known although a frame is awaited from the rail. What was not read makes it a reset.
    send_short(&mut a, called.peer);
    assert_eq!(called.stream.peek(&mut [0]).unwrap(), 1);
    called.say(&RailNote::Next(1));
    until("its turn", || {
        assert!(a.poll().is_none());
        a.arm()
    });
    drop(called.stream);
    match event(&mut a, &mut open(options("key"))) {
        Event::Closed(peer, Gone::Reset) => assert_eq!(peer, called.peer),
        other => panic!("{other:?}"),
    }
    is_closed(&mut rail, &mut a);
}

/// Half of a long frame has come on a rail, and lands.
fn lands(a: &mut TcpLink) -> (Called, TcpStream, OpId, Span, Vec<u8>) {
    a.set(Setting::Early);
    let (mut called, mut rail, mut keys) = with_rail(a);
    let frame = vec![7; LONG];
    let header = keys.sealer.seal(LONG as u32, &frame[..COVERED]);
    rail.write_all(&header).unwrap();
    rail.write_all(&frame[..LONG / 2]).unwrap();
    called.say(&RailNote::Next(1));
    let Event::Begun(begun) = event(a, &mut open(options("key"))) else { panic!("it has not begun") };
    let dst = Span::leak(LONG);
    let Landing::InFlight(op) = a.land(begun, Some(LandAt { off: 0, dst: &[dst], doff: 0, len: LONG }))
    else {
        panic!("half of it is not all")
    };
    (called, rail, op, dst, frame[LONG / 2..].to_vec())
}

#[test]
fn a_frame_lands_from_a_rail_as_it_comes_unless_that_is_cancelled() {
    for cancelled in [false, true] {
        let mut a = open(railed(2));
        let (mut called, mut rail, op, dst, rest) = lands(&mut a);
        if cancelled {
            a.cancel(op);
        }
        rail.write_all(&rest).unwrap();
        let header = called.keys.sealer.seal(5, b"hello");
        called.stream.write_all(&[&header[..], b"hello"].concat()).unwrap();
        let mut other = open(options("key"));
        if !cancelled {
            match event(&mut a, &mut other) {
                Event::Done(done, ok) => assert_eq!((done, ok), (op, true)),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(take(&mut a, &mut other), (called.peer, b"hello".to_vec()));
        let mut end = [0];
        assert_eq!(hmem::read(&[dst], LONG - 1, &mut end), 1);
        assert_eq!(end, [if cancelled { 0 } else { 7 }]);
    }
}

#[test]
fn a_peer_that_is_cut_off_ends_what_lands_from_its_rail() {
    let mut a = open(railed(2));
    let (called, mut rail, op, ..) = lands(&mut a);
    a.dismiss(called.peer, Parting::CutOff);
    let mut other = open(options("key"));
    match event(&mut a, &mut other) {
        Event::Done(done, ok) => assert_eq!((done, ok), (op, false)),
        other => panic!("{other:?}"),
    }
    assert!(matches!(event(&mut a, &mut other), Event::Closed(peer, _) if peer == called.peer));
    is_closed(&mut rail, &mut a);
}

#[test]
fn a_frame_goes_on_a_rail_only_with_room_for_its_note() {
    let mut a = open(railed(2));
    let (called, rail, _keys) = with_rail(&mut a);
    // The peer does not receive.
    while a.send(called.peer, &[0; 1000], &[], 0, 0).is_ok() {}
    assert_eq!(a.send(called.peer, &[], &[Span::leak(LONG)], 0, LONG), Err(Refused::Busy));
    rail.set_nonblocking(true).unwrap();
    assert_eq!(rail.peek(&mut [0]).expect_err("a frame without a note").kind(), ErrorKind::WouldBlock);
}

#[test]
fn what_waits_for_room_on_a_rail_is_sent_before_the_link_is_closed() {
    // More than the kernel keeps of a rail that is not received from.
    const FRAMES: usize = 200;
    let mut a = open(railed(2));
    let (called, mut rail, _keys) = with_rail(&mut a);
    let (peer, mut stream) = (called.peer, called.stream);
    let conn = std::thread::spawn(move || {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        all
    });
    (0..FRAMES).for_each(|_| send(&mut a, peer, 1));
    // What the kernel has is taken away, so that it has room for the rest, of which the link has not heard.
    let (mut bytes, mut some) = (0, vec![0; LONG]);
    rail.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    while let Ok(n) = rail.read(&mut some) {
        bytes += n;
    }
    rail.set_read_timeout(None).unwrap();
    let rest = std::thread::spawn(move || std::io::copy(&mut rail, &mut std::io::sink()).unwrap());
    drop(a);
    let (rest, all) = (rest.join().unwrap(), conn.join().unwrap());
    bytes += rest as usize;
    // Each frame that the connection says to be on the rail has to be there.
    let (mut at, mut here, mut there) = (0, 0, 0);
    while let Some(header) = all.get(at..).and_then(<[u8]>::first_chunk::<RECORD>) {
        match Opener::note_len(header) {
            Some(len) => (at, there) = (at + RECORD + len, there + 1),
            None => (at, here) = (at + RECORD + Opener::len(header, LONG).unwrap(), here + 1),
        }
    }
    assert_eq!((at, here + there), (all.len(), FRAMES));
    assert_eq!(bytes, there * (RECORD + LONG), "{rest} of them were kept by the link");
}
