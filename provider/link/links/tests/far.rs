//! What is logged of peers on other hosts.
#![cfg(not(loom))]

use std::sync::Mutex;

use link::{OpenOptions, ShmLink};
use link_api::{FrameLink, Gone, Link, Refused};
use wire::Addr;

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Notes;

impl log::Log for Notes {
    fn enabled(&self, m: &log::Metadata<'_>) -> bool {
        m.level() <= log::Level::Warn
    }

    fn log(&self, r: &log::Record<'_>) {
        if self.enabled(r.metadata()) {
            LINES.lock().unwrap().push(r.args().to_string());
        }
    }

    fn flush(&self) {}
}

#[test]
fn a_peer_on_another_host_is_logged_once() {
    log::set_logger(&Notes).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
    let mut link = ShmLink::open(OpenOptions::default()).unwrap();
    // Addresses that no host has: for documentation, RFC 5737.
    let far = ["198.51.100.1:7", "203.0.113.1:7"];
    let peers = far.map(|name| link.peer(&Addr::new(name.parse().unwrap())));
    for peer in peers.into_iter().cycle().take(6) {
        assert_eq!(link.send(peer, b"?", &[], 0, 0), Err(Refused::Gone(Gone::Unreachable)));
    }
    let lines = LINES.lock().unwrap();
    assert_eq!(lines.len(), far.len(), "{lines:?}");
    for (line, name) in lines.iter().zip(far) {
        assert!(line.contains(name) && line.contains("another host") && line.contains("tcp"), "{line}");
    }
}
