//! Endpoints of this process whose carrier brings nothing.

use std::sync::Mutex;

use super::*;
use crate::agent::Feed;

/// Counts its ends.
struct Silent(Arc<Mutex<usize>>);

impl Carrier for Silent {
    unsafe fn register(&mut self, _own: (usize, usize), _near: (usize, usize)) -> Result<(), Error> {
        Ok(())
    }
    unsafe fn window(&mut self, _at: usize, _len: usize) -> Result<(), Error> {
        Ok(())
    }
    fn blob(&self) -> Vec<u8> {
        vec![1]
    }
    fn accepts(&self, _peer: &[u8]) -> Result<(), Error> {
        Ok(())
    }
    fn by_memory(&self) -> bool {
        true
    }
    fn begin(&mut self, _peer: &[u8], _feed: Feed) -> Result<(), Error> {
        Ok(())
    }
    fn describe(&self) -> String {
        String::new()
    }
    fn close(&mut self) {
        *self.0.lock().unwrap() += 1;
    }
}

fn open(timeout: Duration) -> (Endpoint, Arc<Mutex<usize>>) {
    let ends = Arc::new(Mutex::new(0));
    let options = Options { timeout, by_agent: true, ..Options::default() };
    (Endpoint::open(options, Some(Box::new(Silent(ends.clone())))).unwrap(), ends)
}

#[test]
fn an_endpoint_whose_peer_never_came_ends_once_and_waits_for_nothing_that_was_sent() {
    let (mut one, ends) = open(Duration::from_millis(1));
    let mut other = open(Duration::from_millis(1)).0;
    let blob = other.blob().unwrap();
    let why = one.connect(&blob).unwrap_err();
    assert_eq!(why.errno(), libc::ETIMEDOUT);
    assert_eq!(one.farewell(), SHORT_FAREWELL);
    one.close().unwrap();
    drop(one);
    assert_eq!(*ends.lock().unwrap(), 1);
}

#[test]
fn what_was_sent_is_waited_for_no_longer_than_the_time_limit() {
    let path = || Some(Path { through: Through::Agent, why: String::new() });
    let mut short = open(Duration::from_secs(2)).0;
    short.path = path();
    assert_eq!(short.farewell(), Duration::from_secs(2));
    let mut long = open(Duration::from_secs(60)).0;
    long.path = path();
    assert_eq!(long.farewell(), FAREWELL);
    long.aborts().abort().unwrap();
    assert_eq!(long.farewell(), SHORT_FAREWELL);
}

#[test]
fn a_length_that_no_message_has_is_not_made_into_operations() {
    let mut shared = crate::watch::tests::direct();
    shared.peer.get_mut().unwrap().direct = None;
    let core = Arc::new(Core::new(Arc::new(shared)));
    let mut list = List::of_lane(core.clone(), 5, usize::MAX);
    // SAFETY: nothing executes the list.
    unsafe {
        let why = list.send(1 << 20, 1 << 46).unwrap_err();
        assert_eq!(why.errno(), libc::EINVAL);
        assert!(list.receive(1 << 20, 1 << 62).is_err());
        assert!(list.items.is_empty());
        assert_eq!(core.state().next, [0, 0], "both sides use the same slots");
        list.send(1 << 20, 64).unwrap();
    }
}
