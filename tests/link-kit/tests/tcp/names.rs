//! Under which names the link over TCP lets callers in, and what it believes of an endpoint that it calls.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::thread;

use crate::caller::{Who, call_as};
use crate::pair::{open, options, until};
use link::{TcpLink, TcpOptions};
use link_api::{Channel, Connect, Event, FrameLink as _, Gone, Link as _, Refused};
use wire::Addr;
use wire::session::{Answerer, Hello, JobKey, Next, Role, Verdict};

/// A key that all can make up, as that of a job without FI_STRAIT_JOB_KEY.
fn made_up() -> TcpOptions {
    TcpOptions { secret: false, ..options("key") }
}

fn name(ip: [u8; 4], port: u16) -> Addr {
    Addr::new((ip, port).into())
}

/// A connection to a link whose socket is another user's; `None` where this process may not make it one.
fn of_another_user(stream: &TcpStream) -> Option<()> {
    // SAFETY: fchown(2) of a descriptor that is open here.
    (unsafe { libc::fchown(stream.as_raw_fd(), 65534, u32::MAX) } == 0).then_some(())
}

fn verdict(b: &mut TcpLink, stream: &mut TcpStream, from: Addr) -> Result<Hello, Verdict> {
    let called = b.addr();
    match call_as(stream, b, Who { name: from, instance: 7 }, called, "key") {
        Ok(Next::Connected(hello, _)) => Ok(hello),
        Ok(Next::Declined(_, verdict)) => Err(verdict),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_caller_of_this_host_has_no_name_of_another_one_even_with_the_secret() {
    let mut b = open(TcpOptions { secret: true, ..options("key") });
    for last in 1..=100 {
        let mut stream = TcpStream::connect(b.addr().sock()).unwrap();
        let from = name([10, 0, 0, last], 1000);
        assert_eq!(verdict(&mut b, &mut stream, from).unwrap_err(), Verdict::Denied);
    }
    // Each of this host may be said, of whatever address.
    let mut stream = TcpStream::connect(b.addr().sock()).unwrap();
    assert!(verdict(&mut b, &mut stream, name([127, 0, 0, 77], 1000)).is_ok());
}

#[test]
fn another_user_of_this_host_gets_nowhere_without_a_secret() {
    for secret in [false, true] {
        let mut b = open(TcpOptions { secret, ..made_up() });
        let mut stream = TcpStream::connect(b.addr().sock()).unwrap();
        let Some(()) = of_another_user(&stream) else { return };
        let found = verdict(&mut b, &mut stream, name([127, 0, 0, 1], 1000));
        assert_eq!(found.err(), (!secret).then_some(Verdict::Denied));
        let mut ours = TcpStream::connect(b.addr().sock()).unwrap();
        assert!(verdict(&mut b, &mut ours, name([127, 0, 0, 1], 1001)).is_ok());
    }
}

/// A caller that hangs up behind its proof has a socket of the kernel's, which is root's.
#[test]
fn a_caller_that_has_hung_up_is_of_no_user() {
    let mut b = open(made_up());
    let mut stream = TcpStream::connect(b.addr().sock()).unwrap();
    let (from, called) = (name([127, 0, 0, 1], 1000), b.addr());
    let proof =
        crate::caller::until_proof(&mut stream, &mut b, Who { name: from, instance: 7 }, called, "key");
    stream.write_all(&proof).unwrap();
    // A frame behind it, which is read if the caller is let in.
    drop(stream);
    let peer = b.peer(&from);
    for _ in 0..2000 {
        let event = b.poll();
        assert!(event.is_none() && b.channel(peer) == Channel::None, "{event:?}");
    }
}

/// Answers one call with the key; with a socket that is another user's, if `other`.
fn answerer(other: bool) -> (Addr, thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = Addr::new(listener.local_addr().unwrap());
    let thread = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        if other {
            of_another_user(&stream).unwrap();
        }
        let own = Hello { role: Role::Answerer, instance: 9, name: at, other: at, nonce: [3; 32] };
        let mut answerer = Answerer::new(&JobKey::from_secret(b"key"), own);
        let mut hello = vec![0; answerer.wants()];
        stream.read_exact(&mut hello).unwrap();
        let said = answerer.hear_any(&hello, |_| None).unwrap();
        stream.write_all(&said).unwrap();
        let mut proof = vec![0; answerer.wants()];
        stream.read_exact(&mut proof).unwrap();
        let proven = answerer.hear_proof(&proof).unwrap();
        stream.write_all(&proven.verdict(Verdict::Accepted)).unwrap();
        // Until the link has decided.
        let _ = stream.read(&mut [0; 16]);
    });
    (at, thread)
}

#[test]
fn what_answers_on_this_host_is_of_the_same_user() {
    // SAFETY: geteuid(2) cannot fail and touches no memory.
    if unsafe { libc::geteuid() } != 0 {
        return;
    }
    for other in [false, true] {
        let mut a = open(made_up());
        let (at, thread) = answerer(other);
        let to = a.peer(&at);
        let mut found = Err(Refused::Busy);
        until("an answer", || {
            assert!(matches!(a.poll(), None | Some(Event::Closed(..))));
            if found == Err(Refused::Busy) {
                found = a.connect(to, Connect::Now);
            }
            found != Err(Refused::Busy)
        });
        assert_eq!(found, if other { Err(Refused::Gone(Gone::Denied)) } else { Ok(()) });
        drop(a);
        thread.join().unwrap();
    }
}
