//! Sleeping while an access is in flight.

use std::time::Instant;

use link_api::{Direct, Event, Grant, RmaLink as _, SleepLink as _, WaitFd, Way};

use super::handles::{REQUEST, with_memory};
use super::sync::seg;
use crate::harness::next;
use crate::{Ends, Harness, is_readable};

/// The end of an access is something to do: it wakes, or keeps from sleeping.
pub fn an_operation_that_is_over_wakes<H: Harness>(h: &mut H) {
    const LEN: usize = 40_000;
    let (Ends { mut a, to_b, b: _b, .. }, there) = with_memory(h, LEN);
    let fd = a.wait_fd(WaitFd::All).expect("this group is for links with a descriptor");
    for round in 0..20 {
        let here = h.memory(&a, LEN, true);
        let op = a.start(
            Way::Get,
            to_b,
            &Direct::new(Grant::Request(REQUEST), &[seg(there, 0, LEN)], &[here], LEN),
        );
        let op = op.expect("memory that was exported to it");
        let start = Instant::now();
        loop {
            match next(&mut a) {
                Some(Event::Done(which, ok)) => break assert_eq!((which, ok), (op, true)),
                Some(other) => panic!("no end of an operation, but {other:?}"),
                None => {}
            }
            assert!(start.elapsed() < h.patience(), "operation {round} is never over");
            assert!(
                !a.arm() || is_readable(fd, h.patience()),
                "operation {round} is over, and does not wake"
            );
        }
    }
}
