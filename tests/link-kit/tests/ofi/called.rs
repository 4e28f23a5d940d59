//! How many polls of an endpoint a peer's connection takes.

use std::thread::sleep;
use std::time::Duration;

use crate::fake::{Fake, FakeNet};
use below::{BelowLink, BelowOptions};
use link::{TcpLink, TcpOptions};
use link_api::{Event, FrameLink as _, Link as _, Refused};
use wire::session::JobKey;

fn open(net: &FakeNet) -> BelowLink<TcpLink, Fake> {
    let key = JobKey::from_secret(b"of connections");
    let at = "127.0.0.1:0".parse().expect("an address");
    let base = TcpLink::bind(at, TcpOptions::new(key.clone())).expect("a free name");
    BelowLink::new(base, Ok(net.open()), BelowOptions::new(key)).expect("descriptors")
}

/// An endpoint that listens is polled rarely: once in 10 ms where shared memory has nothing either.
#[test]
fn an_endpoint_without_peers_reads_connections_by_each_poll() {
    let net = FakeNet::default();
    let (mut a, mut b) = (open(&net), open(&net));
    let to_b = a.peer(&b.addr());
    let mut sent = false;
    for polls in 1.. {
        assert!(polls < 32, "{polls} polls, and no frame");
        // What the one does takes no poll of the other one's.
        for _ in 0..100 {
            if !sent {
                match a.send(to_b, b"hello", &[], 0, 0) {
                    Ok(_) => sent = true,
                    Err(why) => assert_eq!(why, Refused::Busy),
                }
            }
            assert!(a.poll().is_none(), "nothing is sent to it");
        }
        sleep(Duration::from_millis(1));
        if let Some(event) = b.poll() {
            assert!(matches!(event, Event::Frame(_)), "{event:?}");
            return;
        }
    }
}
