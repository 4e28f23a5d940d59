//! What the link over TCP does where endpoints end, where processes have something else to do, and where one
//! side is not reached by the other.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::thread;
use std::time::{Duration, Instant};

use crate::pair::{event, open, open_alone, options, say, take, until};
use link::{TcpLink, TcpOptions};
use link_api::{Connect, Event, FrameLink, Gone, Link, Parting, Refused, Sent};
use link_kit::bytes;
use wire::session::{Caller, Hello, JobKey, Next, Role};

/// What a peer has sent before its end arrives also where a send notices the end.
#[test]
fn frames_before_a_peers_end_arrive_when_a_send_notices_it() {
    let (mut a, mut b) = (open(options("key")), open(options("key")));
    let to_b = a.peer(&b.addr());
    say(&mut a, to_b, &mut [&mut b], b"hello");
    let (to_a, _) = take(&mut b, &mut a);
    // It closes with something that it has not received, so that its host refuses all that comes after.
    a.send(to_b, b"never taken", &[], 0, 0).expect("room");
    for i in 0..3 {
        b.send(to_a, &bytes(300, i), &[], 0, 0).expect("room");
    }
    drop(b);
    let mut c = open(options("key"));
    until("the end", || a.send(to_b, b"more", &[], 0, 0).is_err());
    for i in 0..3 {
        assert_eq!(take(&mut a, &mut c), (to_b, bytes(300, i)));
    }
    assert!(matches!(event(&mut a, &mut c), Event::Closed(peer, Gone::Reset) if peer == to_b));
}

#[test]
fn what_was_sent_arrives_though_its_sender_closes_with_something_unread() {
    // It does not wait for what its receiver has no room for.
    let hurried = TcpOptions { linger: Duration::from_millis(100), ..options("key") };
    let (mut a, mut b) = (open(options("key")), open(hurried));
    let to_b = a.peer(&b.addr());
    say(&mut a, to_b, &mut [&mut b], b"hello");
    let (to_a, _) = take(&mut b, &mut a);
    let (mut sent, mut got) = (0, 0);
    while b.send(to_a, &bytes(60_000, sent), &[], 0, 0) == Ok(Sent::Done) {
        sent += 1;
    }
    // Until all of it is with the kernel, of which much is with that of the sender.
    until("room", || {
        if b.has_room_to_spare(to_a, 0) {
            return true;
        }
        assert_eq!(take(&mut a, &mut b), (to_b, bytes(60_000, got)));
        got += 1;
        false
    });
    a.send(to_b, b"never taken", &[], 0, 0).expect("room");
    drop(b);
    let mut c = open(options("key"));
    while got < sent {
        assert_eq!(take(&mut a, &mut c), (to_b, bytes(60_000, got)), "frame {got} of {sent}");
        got += 1;
    }
}

/// Lets time pass in which a link goes on.
fn pass(time: Duration, link: Option<&mut TcpLink>) {
    let start = Instant::now();
    match link {
        None => thread::sleep(time),
        Some(link) => until("some time", || {
            link.progress();
            start.elapsed() > time
        }),
    }
}

/// Longer than what a guest is given, which is longer than a process that goes on does not look.
const LONG: Duration = Duration::from_millis(2_500);

fn hasty() -> TcpOptions {
    let mut hasty = options("key");
    hasty.guest_timeout = Duration::from_millis(1_200);
    hasty
}

#[test]
fn a_caller_that_had_something_else_to_do_is_let_in_later() {
    let (mut a, mut b) = (open(hasty()), open(options("key")));
    let to_a = b.peer(&a.addr());
    assert_eq!(b.connect(to_a, Connect::Now), Err(Refused::Busy));
    pass(LONG, Some(&mut a));
    say(&mut b, to_a, &mut [&mut a], b"hello");
    assert_eq!(take(&mut a, &mut b).1, b"hello");
}

#[test]
fn a_caller_is_let_in_by_one_that_had_something_else_to_do() {
    let (mut a, mut b) = (open(hasty()), open(options("key")));
    let to_a = b.peer(&a.addr());
    assert_eq!(b.connect(to_a, Connect::Now), Err(Refused::Busy));
    a.progress();
    // What the caller says comes after the first tick of the timer.
    pass(Duration::from_millis(100), None);
    pass(LONG, Some(&mut b));
    say(&mut b, to_a, &mut [&mut a], b"hello");
    assert_eq!(take(&mut a, &mut b).1, b"hello");
}

/// A peer that is connected is refused under another name, and stays connected.
#[test]
fn connected_peer_is_refused_under_another_name() {
    let everywhere = || TcpLink::bind("0.0.0.0:0".parse().unwrap(), options("key")).expect("a free name");
    for by_name_first in [true, false] {
        let (mut a, mut b) = (everywhere(), everywhere());
        let alias = wire::Addr::new(([127, 0, 0, 9], b.addr().port()).into());
        let mut names = [b.addr(), alias];
        if !by_name_first {
            names.reverse();
        }
        let [first, second] = names.map(|name| a.peer(&name));
        say(&mut a, first, &mut [&mut b], b"hello");
        let (to_a, _) = take(&mut b, &mut a);
        // Another connection ends meanwhile.
        let mut c = open(options("key"));
        let c_to_a = c.peer(&a.addr());
        say(&mut c, c_to_a, &mut [&mut a], b"hello");
        take(&mut a, &mut b);
        drop(c);
        assert!(matches!(event(&mut a, &mut b), Event::Closed(_, Gone::Reset)));
        let mut found = Ok(());
        until("an answer", || {
            assert!(b.poll().is_none() && a.poll().is_none(), "nothing was to come");
            found = a.connect(second, Connect::Now);
            found != Err(Refused::Busy)
        });
        assert_eq!(found, Err(Refused::Gone(Gone::Denied)));
        b.send(to_a, b"still there", &[], 0, 0).expect("room");
        assert_eq!(take(&mut a, &mut b), (first, b"still there".to_vec()));
    }
}

#[test]
fn a_forked_child_that_closes_an_endpoint_ends_nothing_of_its_parent() {
    let (mut a, mut b) = (open(options("key")), open(options("key")));
    let to_b = a.peer(&b.addr());
    say(&mut a, to_b, &mut [&mut b], b"hello");
    take(&mut b, &mut a);
    // SAFETY: the child does no more than the block below, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(a);
        // SAFETY: ends the process without anything else.
        unsafe { libc::_exit(0) };
    }
    // SAFETY: no status is asked for.
    assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
    say(&mut a, to_b, &mut [&mut b], b"more");
    assert_eq!(take(&mut b, &mut a).1, b"more");
    let mut c = open(options("key"));
    let c_to_a = c.peer(&a.addr());
    say(&mut c, c_to_a, &mut [&mut a], b"hello");
    assert_eq!(take(&mut a, &mut c).1, b"hello");
}

#[test]
fn the_end_of_a_peer_that_was_forgotten_is_no_others() {
    let mut a = open(options("key"));
    let gone = [open_alone(4, options("key")), open_alone(4, options("key"))].map(|link| link.addr());
    let [one, other] = [a.peer(&gone[0]), a.peer(&gone[1])];
    assert_eq!(a.connect(one, Connect::Expected), Ok(()));
    assert_eq!(a.connect(other, Connect::Expected), Ok(()));
    let mut found = None;
    until("the end of either", || {
        // So that both are over at the same look.
        thread::sleep(Duration::from_millis(400));
        found = a.poll();
        found.is_some()
    });
    let Some(Event::Closed(first, Gone::Refused)) = found else { panic!("{found:?}") };
    let rest = if first == one { other } else { one };
    a.dismiss(rest, Parting::Forgotten);
    assert!((0..50).all(|_| a.poll().is_none()));
}

/// A peer whose host does not answer here can call here all the same, also where the lower name is this one.
#[test]
fn a_call_that_nothing_answers_does_not_keep_the_peers_own_call_out() {
    let mut a = open(options("key"));
    // A port of a higher address whose queue is full: what calls it is not answered.
    let full = TcpListener::bind("127.0.0.9:0").unwrap();
    // SAFETY: listen(2) touches no memory.
    assert_eq!(unsafe { libc::listen(full.as_raw_fd(), 0) }, 0);
    let at = full.local_addr().unwrap();
    let short = Duration::from_millis(300);
    let _fill: Vec<_> = std::iter::from_fn(|| TcpStream::connect_timeout(&at, short).ok()).collect();
    let name = wire::Addr::new(at);
    let to_peer = a.peer(&name);
    assert_eq!(a.connect(to_peer, Connect::Now), Err(Refused::Busy));
    (0..20).for_each(|_| a.progress());
    assert!(a.socket(to_peer).is_none());
    let own = Hello { role: Role::Caller, instance: 1, name, other: a.addr(), nonce: [7; 32] };
    let mut caller = Caller::new(&JobKey::from_secret(b"key"), own);
    let mut stream = TcpStream::connect(a.addr().sock()).expect("a listener");
    stream.set_nonblocking(true).unwrap();
    let mut said = caller.hello().to_vec();
    loop {
        stream.write_all(&said).unwrap();
        let mut heard = Vec::new();
        until("an answer", || {
            a.progress();
            let mut some = vec![0; caller.wants() - heard.len()];
            heard.extend(stream.read(&mut some).map(|n| some[..n].to_vec()).unwrap_or_default());
            heard.len() == caller.wants()
        });
        match caller.hear(&heard) {
            Ok(Next::Say(next)) => said = next,
            Ok(Next::Connected(..)) => {
                stream.write_all(&caller.confirmation().expect("a call has one")).unwrap();
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    until("a connection", || {
        a.progress();
        a.socket(to_peer).is_some()
    });
}
