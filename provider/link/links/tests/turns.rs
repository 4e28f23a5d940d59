//! When a process is in a crowd, though all its peers are reached by shared memory. By itself, since that
//! holds for a process.
#![cfg(not(loom))]

use std::net::SocketAddr;

use link::{Links, OpenOptions, turns};
use link_api::Link as _;
use wire::Addr;

#[test]
fn an_endpoint_with_shared_memory_alone_knows_who_is_on_its_host() {
    let mut links = Links::open(OpenOptions::default()).unwrap();
    let yields = || turns::yields(turns::POLLS, 8 * turns::POLLS);
    let mut know = |n: u16| _ = links.peer(&Addr::new(SocketAddr::from(([127, 0, 0, 1], n))));
    (0..5000).for_each(|_| know(1));
    assert!(!yields(), "one peer is no crowd");
    (1..5000).for_each(know);
    assert!(yields());
}
