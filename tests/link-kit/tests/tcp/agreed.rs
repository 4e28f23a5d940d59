//! Which connection the link over TCP takes for that of a peer, where another one is made under the same
//! name.

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use crate::caller::{call_up_to_verdict, read};
use crate::pair::{event, open, open_alone, options, say, take, until};
use link::{TcpLink, TcpOptions};
use link_api::{Connect, Event, FrameLink, Gone, Link, Parting, PeerId, Refused, Sent};
use link_kit::bytes;
use wire::Addr;
use wire::session::{
    Answerer, Caller, Hello, JobKey, Keys, MAC, Next, Opener, RECORD, RailNote, Role, VERDICT, Verdict,
};

/// An endpoint that a test plays.
struct Played {
    listener: TcpListener,
    name: Addr,
}

/// A connection of one.
struct Channel {
    stream: TcpStream,
    keys: Keys,
}

impl Played {
    fn new() -> Played {
        Played::at("127.0.0.1:0")
    }

    fn at(addr: &str) -> Played {
        let listener = TcpListener::bind(addr).expect("a port");
        let name = Addr::new(listener.local_addr().expect("a name"));
        Played { listener, name }
    }

    fn hello(&self, role: Role, instance: u64, other: Addr) -> Hello {
        Hello { role, instance, name: self.name, other, nonce: [instance as u8; 32] }
    }

    fn caller(&self, to: &TcpLink, instance: u64) -> Caller {
        Caller::new(&JobKey::from_secret(b"key"), self.hello(Role::Caller, instance, to.addr()))
    }

    /// Calls as this instance; what comes of it. It does not confirm.
    fn call(&self, to: &mut TcpLink, instance: u64) -> (TcpStream, Caller, Next) {
        let mut stream = TcpStream::connect(to.addr().sock()).expect("a listener");
        let mut caller = self.caller(to, instance);
        let heard = call_up_to_verdict(&mut stream, to, &mut caller).expect("it has the key");
        (stream, caller, heard)
    }

    fn declined(&self, to: &mut TcpLink, instance: u64) -> Option<Verdict> {
        match self.call(to, instance).2 {
            Next::Declined(_, verdict) => Some(verdict),
            _ => None,
        }
    }

    fn connect(&self, to: &mut TcpLink) -> Channel {
        let (mut stream, caller, Next::Connected(_, keys)) = self.call(to, 1) else { panic!("declined") };
        stream.write_all(&caller.confirmation().expect("a call has one")).unwrap();
        Channel { stream, keys }
    }

    /// What it says to a link that calls, of which the hello is read.
    fn answer(&self, stream: &mut TcpStream, link: &mut TcpLink) -> Answerer {
        let own = self.hello(Role::Answerer, 1, link.addr());
        let mut answerer = Answerer::new(&JobKey::from_secret(b"key"), own);
        let said = answerer.hear_hello(&read(stream, link, Hello::LEN)).expect("a hello");
        stream.write_all(&said).unwrap();
        answerer
    }
}

impl Channel {
    fn say(&mut self, frame: &[u8]) {
        let header = self.keys.sealer.seal(frame.len() as u32, frame);
        self.stream.write_all(&[&header[..], frame].concat()).unwrap();
    }

    /// The next frame, behind probes.
    fn hear(&mut self, from: &mut TcpLink) -> Vec<u8> {
        loop {
            let header: [u8; RECORD] = read(&mut self.stream, from, RECORD).try_into().expect("a record");
            if let Some(len) = Opener::note_len(&header) {
                let note = read(&mut self.stream, from, len);
                self.keys.opener.open_note(&header, &note).expect("a note");
                assert_eq!(RailNote::decode(&note), Some(RailNote::Probe));
                continue;
            }
            let frame = read(&mut self.stream, from, Opener::len(&header, 1_000).expect("a frame"));
            self.keys.opener.open(&header, &frame).expect("a record");
            return frame;
        }
    }

    /// Frames go both ways, and nothing else has come.
    fn is_alive(&mut self, to: &mut TcpLink) -> PeerId {
        self.say(b"there");
        let (peer, frame) = take(to, &mut open(options("key")));
        assert_eq!(frame, b"there");
        to.send(peer, b"back", &[], 0, 0).expect("room");
        assert_eq!(self.hear(to), b"back");
        peer
    }
}

#[test]
fn a_caller_by_the_name_of_a_live_peer_does_not_get_its_place() {
    let (mut b, a) = (open(options("key")), Played::new());
    let mut channel = a.connect(&mut b);
    channel.is_alive(&mut b);
    // As the same endpoint, as another one, and once more.
    for instance in [1, 2, 3, 1, 2] {
        assert_eq!(a.declined(&mut b, instance), Some(Verdict::Busy), "as instance {instance}");
        channel.is_alive(&mut b);
    }
    assert!(b.poll().is_none());
}

/// The answerer's hello was said before something else changed at its side, and its own call's after that: it
/// is heard when the first connection is there.
#[test]
fn a_call_that_crosses_and_comes_late_does_not_end_the_connection() {
    // The lower name is the link's, and then the other one's.
    for addr in ["127.0.0.9:0", "127.0.0.1:0"] {
        let (mut b, a) = (open_alone(200, options("key")), Played::at(addr));
        let to_a = b.peer(&a.name);
        assert_eq!(b.connect(to_a, Connect::Now), Err(Refused::Busy));
        let mut called = None;
        a.listener.set_nonblocking(true).unwrap();
        until("a call", || {
            b.progress();
            called = a.listener.accept().ok();
            called.is_some()
        });
        let (mut first, _) = called.unwrap();
        let answerer = a.answer(&mut first, &mut b);
        let proof = read(&mut first, &mut b, MAC);
        // Its own call, up to the proof.
        let mut second = TcpStream::connect(b.addr().sock()).unwrap();
        let mut caller = a.caller(&b, 1);
        second.write_all(&caller.hello()).unwrap();
        let wants = caller.wants();
        let Ok(Next::Say(late)) = caller.hear(&read(&mut second, &mut b, wants)) else { panic!("no answer") };
        let proven = answerer.hear_proof(&proof).expect("a proof");
        first.write_all(&proven.verdict(Verdict::Accepted)).unwrap();
        assert!(proven.is_confirmation(&read(&mut first, &mut b, MAC)));
        let mut channel = Channel { stream: first, keys: proven.keys() };
        channel.is_alive(&mut b);
        second.write_all(&late).unwrap();
        let heard = caller.hear(&read(&mut second, &mut b, VERDICT)).expect("a verdict");
        assert!(matches!(heard, Next::Declined(_, Verdict::Busy)), "{heard:?}");
        assert_eq!(channel.is_alive(&mut b), to_a);
    }
}

/// One that has called as well, and has taken the other side's call meanwhile.
#[test]
fn a_caller_that_has_given_up_its_call_is_no_peer_that_has_ended() {
    let (mut b, a) = (open(options("key")), Played::new());
    let to_a = b.peer(&a.name);
    let (stream, _, heard) = a.call(&mut b, 1);
    assert!(matches!(heard, Next::Connected(..)));
    // Until it has confirmed nothing is sent on it.
    assert_eq!(b.send(to_a, b"hello", &[], 0, 0), Err(Refused::Busy));
    assert!(b.socket(to_a).is_none());
    drop(stream);
    a.listener.set_nonblocking(true).unwrap();
    let mut called = None;
    until("a call", || {
        assert!(b.poll().is_none(), "nothing was to come");
        let _ = b.send(to_a, b"hello", &[], 0, 0);
        called = a.listener.accept().ok();
        called.is_some()
    });
    let (mut stream, _) = called.unwrap();
    let answerer = a.answer(&mut stream, &mut b);
    let proven = answerer.hear_proof(&read(&mut stream, &mut b, MAC)).expect("a proof");
    stream.write_all(&proven.verdict(Verdict::Accepted)).unwrap();
    assert!(proven.is_confirmation(&read(&mut stream, &mut b, MAC)));
    Channel { stream, keys: proven.keys() }.is_alive(&mut b);
}

/// A caller that was accepted and never confirms keeps the peer of that name from nothing: it is called.
#[test]
fn a_promise_that_is_not_kept_is_not_waited_for_without_end() {
    let (mut b, mut a) = (open(options("key")), open(options("key")));
    let forged = Played { listener: TcpListener::bind("127.0.0.1:0").unwrap(), name: a.addr() };
    let (_stream, caller, heard) = forged.call(&mut b, 7);
    assert!(matches!(heard, Next::Connected(..)) && caller.confirmation().is_some());
    let to_a = b.peer(&a.addr());
    say(&mut b, to_a, &mut [&mut a], b"hello");
    assert_eq!(take(&mut a, &mut b).1, b"hello");
    assert_eq!(forged.declined(&mut b, 8), Some(Verdict::Busy));
}

#[test]
fn a_confirmation_that_is_none_makes_no_connection() {
    let (mut b, a) = (open(options("key")), Played::new());
    let (mut stream, _, heard) = a.call(&mut b, 1);
    assert!(matches!(heard, Next::Connected(..)));
    stream.write_all(&[7; MAC]).unwrap();
    assert!(read(&mut stream, &mut b, 1).is_empty(), "it is closed");
    assert!(b.poll().is_none());
    a.connect(&mut b).is_alive(&mut b);
}

/// Nothing that is sent here is received, nor answered, as by a host that has lost power.
fn silence(stream: &TcpStream) {
    let none = [libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 }];
    let program = libc::sock_fprog { len: 1, filter: none.as_ptr().cast_mut() };
    let (at, len) = ((&raw const program).cast(), size_of::<libc::sock_fprog>() as libc::socklen_t);
    // SAFETY: `program` is one of one instruction, which the kernel copies.
    let done =
        unsafe { libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, at, len) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

fn with_timeout(timeout: Duration) -> TcpOptions {
    TcpOptions { timeout, ..options("key") }
}

#[test]
fn a_peer_whose_host_has_lost_power_gets_in_anew_after_the_time() {
    let timeout = Duration::from_secs(2);
    let name = open_alone(201, options("key")).addr();
    let mut b = open(with_timeout(timeout));
    let before = Played { listener: TcpListener::bind("127.0.0.1:0").unwrap(), name };
    let mut channel = before.connect(&mut b);
    let peer = channel.is_alive(&mut b);
    silence(&channel.stream);
    let start = Instant::now();
    let mut a = TcpLink::bind(name.sock(), with_timeout(timeout)).expect("its name");
    let to_b = a.peer(&b.addr());
    let mut ended = None;
    until("a frame", || {
        let done = a.send(to_b, b"anew", &[], 0, 0);
        assert!(matches!(done, Ok(_) | Err(Refused::Busy)), "{done:?}");
        if done.is_ok() {
            return true;
        }
        a.progress();
        if let Some(event) = b.poll() {
            assert!(
                matches!(event, Event::Closed(of, Gone::Reset | Gone::Unreachable) if of == peer),
                "{event:?}"
            );
            ended = Some(start.elapsed());
        }
        false
    });
    let after = ended.expect("the end of the former one is told first");
    assert!(after >= timeout / 2, "after {after:?}");
    assert_eq!(take(&mut b, &mut a), (peer, b"anew".to_vec()));
    drop(channel);
}

/// The kernel of a host that has started anew answers what it does not know by a reset.
#[test]
fn a_peer_whose_host_has_started_anew_gets_in_when_that_was_asked() {
    const TCP_REPAIR: i32 = 19;
    let name = open_alone(202, options("key")).addr();
    let mut b = open(options("key"));
    let before = Played { listener: TcpListener::bind("127.0.0.1:0").unwrap(), name };
    let mut channel = before.connect(&mut b);
    let peer = channel.is_alive(&mut b);
    let (on, len) = (1i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: `on` is a valid option of `len` bytes.
    let done = unsafe {
        let fd = channel.stream.as_raw_fd();
        libc::setsockopt(fd, libc::IPPROTO_TCP, TCP_REPAIR, (&raw const on).cast(), len)
    };
    if done < 0 {
        eprintln!("not run: TCP_REPAIR takes CAP_NET_ADMIN");
        return;
    }
    // Without a word.
    drop(channel);
    let mut a = TcpLink::bind(name.sock(), options("key")).expect("its name");
    let to_b = a.peer(&b.addr());
    let start = Instant::now();
    until("a frame is taken", || {
        let done = a.send(to_b, b"anew", &[], 0, 0);
        assert!(matches!(done, Ok(_) | Err(Refused::Busy)), "{done:?}");
        if done.is_ok() {
            return true;
        }
        a.progress();
        if let Some(event) = b.poll() {
            assert!(matches!(event, Event::Closed(of, Gone::Reset) if of == peer), "{event:?}");
        }
        false
    });
    assert!(start.elapsed() < Duration::from_secs(20), "not by the time of 30 s");
    assert_eq!(take(&mut b, &mut a), (peer, b"anew".to_vec()));
}

#[test]
fn a_link_that_calls_by_the_name_of_a_live_peer_is_refused_in_the_end() {
    let timeout = Duration::from_secs(1);
    let name = open_alone(203, options("key")).addr();
    let mut b = open(with_timeout(timeout));
    let live = Played { listener: TcpListener::bind("127.0.0.1:0").unwrap(), name };
    let mut channel = live.connect(&mut b);
    channel.is_alive(&mut b);
    let mut other = TcpLink::bind(name.sock(), with_timeout(timeout)).expect("the name");
    let to_b = other.peer(&b.addr());
    let (start, mut found) = (Instant::now(), Ok(Sent::Done));
    until("an answer", || {
        found = other.send(to_b, b"hello", &[], 0, 0);
        assert_ne!(found, Ok(Sent::Done));
        other.progress();
        b.progress();
        found != Err(Refused::Busy)
    });
    assert_eq!(found, Err(Refused::Gone(Gone::Denied)));
    assert!(start.elapsed() >= timeout);
    channel.is_alive(&mut b);
}

/// A successor whose predecessor is known to have ended does not wait.
#[test]
fn a_peer_that_starts_anew_gets_in_at_once() {
    let mut b = open(options("key"));
    let mut a = open_alone(204, options("key"));
    let (name, to_b) = (a.addr(), a.peer(&b.addr()));
    say(&mut a, to_b, &mut [&mut b], b"before");
    let (peer, frame) = take(&mut b, &mut a);
    assert_eq!(frame, b"before");
    // The end is not looked for before the successor calls.
    a.send(to_b, b"last", &[], 0, 0).expect("room");
    drop(a);
    let mut a = TcpLink::bind(name.sock(), options("key")).expect("its name");
    let to_b = a.peer(&b.addr());
    let mut seen = Vec::new();
    until("a frame is taken", || {
        let done = a.send(to_b, b"after", &[], 0, 0);
        assert!(matches!(done, Ok(_) | Err(Refused::Busy)), "{done:?}");
        a.progress();
        b.progress();
        done.is_ok()
    });
    while seen.last() != Some(&b"after".to_vec()) {
        match event(&mut b, &mut a) {
            Event::Frame(frame) => {
                let mut text = vec![0; frame.len];
                b.read(&frame, 0, &mut text);
                assert_eq!(frame.from, peer);
                b.release(frame);
                seen.push(text);
            }
            Event::Closed(of, Gone::Reset) if of == peer => seen.push(Vec::new()),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(seen, [b"last".to_vec(), Vec::new(), b"after".to_vec()]);
}

/// Two that call each other while third ones end and are forgotten, in any order.
#[test]
fn the_end_of_others_ends_no_connection() {
    let mut seed = 11u64;
    let mut random = |most: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % most
    };
    let mut links = [open(options("key")), open(options("key"))];
    for round in 0..150 {
        // Each has a third one, which ends.
        let mut thirds = [open(options("key")), open(options("key"))];
        let mut known = [PeerId(0); 2];
        for which in 0..2 {
            known[which] = links[which].peer(&thirds[which].addr());
            say(&mut links[which], known[which], &mut [&mut thirds[which]], b"hello");
            take(&mut thirds[which], &mut links[which]);
            links[which].dismiss(known[which], Parting::CutOff);
            let end = event(&mut links[which], &mut thirds[which]);
            assert!(matches!(end, Event::Closed(of, _) if of == known[which]), "{end:?}");
        }
        let names = [links[1].addr(), links[0].addr()];
        let (mut sent, mut got, mut forgot) = ([false; 2], [false; 2], [false; 2]);
        until("a frame of each", || {
            for _ in 0..8 {
                let which = random(2) as usize;
                let link = &mut links[which];
                match random(4) {
                    0 if !forgot[which] => {
                        link.dismiss(known[which], Parting::Forgotten);
                        forgot[which] = true;
                    }
                    1 if !sent[which] => {
                        let peer = link.peer(&names[which]);
                        match link.send(peer, &bytes(50, round), &[], 0, 0) {
                            Ok(Sent::Done) => sent[which] = true,
                            other => assert_eq!(other, Err(Refused::Busy), "in round {round}"),
                        }
                    }
                    _ => match link.poll() {
                        None => {}
                        Some(Event::Frame(frame)) => {
                            assert_eq!(link.peer_addr(frame.from), names[which]);
                            link.release(frame);
                            got[which] = true;
                        }
                        Some(other) => panic!("{other:?} in round {round}"),
                    },
                }
            }
            sent == [true; 2] && got == [true; 2]
        });
        let peer = links[0].peer(&names[0]);
        links[0].dismiss(peer, Parting::CutOff);
        let [a, b] = &mut links;
        assert!(matches!(event(a, b), Event::Closed(..)));
        assert!(matches!(event(b, a), Event::Closed(..)));
        for (link, name) in [(a, names[0]), (b, names[1])] {
            let peer = link.peer(&name);
            link.dismiss(peer, Parting::Forgotten);
        }
    }
}

/// Promises that are not kept take up no more than they may, and keep no peer out.
/// Callers with the key that were let in, and never confirm.
#[test]
fn unkept_promises_are_bounded_and_keep_no_peer_out() {
    let mut b = open(TcpOptions { guests: 8, ..options("key") });
    let called = b.addr();
    let mut kept = Vec::new();
    for port in 1..=20u16 {
        let mut stream = TcpStream::connect(called.sock()).unwrap();
        let name = Addr::new(([127, 0, 0, 7], port).into());
        let own = Hello { role: Role::Caller, instance: 1, name, other: called, nonce: [port as u8; 32] };
        let mut caller = Caller::new(&JobKey::from_secret(b"key"), own);
        let found = call_up_to_verdict(&mut stream, &mut b, &mut caller);
        let is_let_in = matches!(found, Ok(Next::Connected(..)));
        assert_eq!(is_let_in, port <= 8, "{port}: {found:?}");
        kept.push(stream);
    }
    // A peer has the place of one that takes too long.
    let mut a = open(TcpOptions { connect_timeout: Duration::from_secs(60), ..options("key") });
    let to_b = a.peer(&called);
    say(&mut a, to_b, &mut [&mut b], b"hello");
    assert_eq!(take(&mut b, &mut a).1, b"hello");
}
