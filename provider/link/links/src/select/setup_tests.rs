//! Links that are opened when they are needed.

use std::net::{Ipv4Addr, TcpStream};

use link_api::{Event, Link as _, Refused, Sent, Setting, WaitFd};
use wire::Addr;
use wire::session::JobKey;

use super::Links;
use crate::{OpenOptions, Port, TcpOptions};

fn later() -> Links {
    let bind = Some("127.0.0.1:0".parse().unwrap());
    let mut links =
        Links::open(OpenOptions { bind, port: Port::ListensLater, ..OpenOptions::default() }).unwrap();
    links.add_tcp_later(TcpOptions::new(JobKey::from_secret(b"of the tests"))).unwrap();
    links.set(Setting::Early);
    links.set(Setting::Kept);
    links
}

fn listens(links: &Links) -> bool {
    TcpStream::connect((Ipv4Addr::LOCALHOST, links.addr().port())).is_ok()
}

#[test]
fn a_port_listens_once_a_peer_of_another_host_is_known() {
    let (mut a, mut b) = (later(), later());
    let (fd, own) = (a.wait_fd(WaitFd::All), a.addr());
    let to_b = a.peer(&b.addr());
    let mut got = false;
    while !got {
        assert!(matches!(a.send(to_b, b"hello", &[], 0, 0), Ok(_) | Err(Refused::Busy)));
        if let Some(Event::Frame(frame)) = b.poll() {
            b.release(frame);
            got = true;
        }
    }
    assert!(!listens(&a) && !listens(&b), "all peers are of this host");
    let far = a.peer(&Addr::new(([198, 51, 100, 1], 7).into()));
    assert!(listens(&a) && !listens(&b));
    assert_eq!((a.path(far).link, a.path(to_b).link), ("tcp", "shm"));
    assert_eq!((a.wait_fd(WaitFd::All), a.addr()), (fd, own));
    assert_eq!(a.send(to_b, b"again", &[], 0, 0), Ok(Sent::Done));
}

/// The kernel lets two sockets share a port that both may use again as long as neither listens.
#[test]
fn a_port_that_does_not_listen_is_not_taken() {
    let mut a = later();
    let at = a.addr().sock();
    assert!(crate::name::reserve(at, true).is_err());
    a.peer(&Addr::new(([198, 51, 100, 1], 7).into()));
    assert!(listens(&a));
}
