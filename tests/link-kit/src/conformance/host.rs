//! Links that may be called by endpoints of this host, where another link may serve these.

use link_api::{Event, FrameLink as _, Gone, Link as _, Refused, Sent, Setting};

use crate::Harness;
use crate::harness::{Drive, next};

/// "Whether peers of this host may come by this link: if not, a caller of this host is refused before
/// anything of it is handed out."
pub fn a_caller_of_this_host_is_refused_where_another_link_serves_it<H: Harness>(h: &mut H) {
    let (mut a, mut b) = (h.open(), h.open());
    let to_b = a.peer(&b.addr());
    b.set(Setting::ServeHost(false));
    let mut refused = false;
    h.until("a refusal", |_| {
        match a.send(to_b, b"hello", &[], 0, 0) {
            Ok(Sent::Done) | Err(Refused::Busy) => {}
            other => {
                assert_eq!(other, Err(Refused::Gone(Gone::Denied)), "a caller of this host");
                refused = true;
            }
        }
        let event = next(&mut b);
        assert!(event.is_none(), "{event:?} of a caller that another link serves");
        match next(&mut a) {
            None => {}
            Some(Event::Closed(peer, _)) if peer == to_b => {}
            Some(other) => panic!("{other:?}"),
        }
        refused
    });
    // It may be called from here, and is a peer like any other where it may come again.
    b.set(Setting::ServeHost(true));
    h.say(&mut a, to_b, b"hello");
    assert_eq!(h.take(&mut b).1, b"hello");
}
