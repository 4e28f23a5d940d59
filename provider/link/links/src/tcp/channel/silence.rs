//! Connections on which nothing has come for too long, and why they are closed.
//!
//! The kernel ends connections on which nothing is sent. Its limit for others would also end those to a
//! process that does not receive for a while.

use std::time::{Duration, Instant};

use crate::tcp::channel::connection::Channel;
use crate::tcp::channel::rails::Rails;

/// How often within the time after which a host that does not answer is gone it is checked whether it does:
/// the check that finds first that it does not is late, and so is the one that finds the time over.
pub(in crate::tcp) const CHECKS: u32 = 8;

/// Why a connection is to be closed, if it is: its host has answered nothing for as long as `most`; or a part
/// of a frame takes up memory that is `short`, and its sender has sent no more of that frame for as long.
pub(in crate::tcp) fn reason(
    channel: &mut Channel,
    short: bool,
    now: Instant,
    most: Duration,
) -> Option<&'static str> {
    let rails_silent =
        channel.rails_mut().into_iter().flat_map(Rails::channels_mut).any(|rail| rail.is_silent(now, most));
    let silent = rails_silent || channel.is_silent(now, most);
    let rails = channel.rails_mut().into_iter().flat_map(Rails::channels_mut);
    // Each rail is checked, since each keeps the time.
    let stuck = rails.filter_map(|rail| rail.is_stuck(short, now, most).then_some(())).count() > 0;
    let stuck = channel.is_stuck(short, now, most) || stuck;
    if silent {
        return Some("its host has not answered");
    }
    if stuck {
        return Some(
            "a part of a frame has taken up memory that other peers wait for, and has not become whole,",
        );
    }
    // The check that finds it first is late by up to the time between two.
    let starved = channel.is_starved(now, most - most / CHECKS);
    starved.then_some("it has ended, and nothing has come of a frame that is on a rail")
}
