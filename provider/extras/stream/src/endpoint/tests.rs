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
fn an_endpoint_whose_peer_never_came_ends_once() {
    let (mut one, ends) = open(Duration::from_millis(1));
    let mut other = open(Duration::from_millis(1)).0;
    let blob = other.blob().unwrap();
    let why = one.connect(&blob).unwrap_err();
    assert_eq!(why.errno(), libc::ETIMEDOUT);
    one.close().unwrap();
    drop(one);
    assert_eq!(*ends.lock().unwrap(), 1);
}
