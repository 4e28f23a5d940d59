//! What peers say before their cards are to be had: it waits until it can be answered.

use super::net::Net;
use crate::{Error, Event, Rank};

/// What waits at most. A peer says little until it is answered.
const MOST: usize = 4096;

/// Of which peer an event is that is answered, or that ends what is.
fn speaker(event: &Event) -> Option<Rank> {
    match event {
        Event::Control { from, .. } => Some(*from),
        Event::Gone { peer, .. } => Some(*peer),
        _ => None,
    }
}

#[derive(Debug, Default)]
pub(super) struct Unheard {
    events: Vec<Event>,
}

impl Unheard {
    /// All that waits, to be heard again.
    pub(super) fn take(&mut self, events: &mut Vec<Event>) {
        events.append(&mut self.events);
    }

    /// Gives an event back that is to be taken now; keeps it if its peer cannot be answered yet.
    pub(super) fn hear(&mut self, net: &mut Net, event: Event) -> Option<Event> {
        let Some(peer) = speaker(&event).filter(|peer| !net.is_met(*peer)) else {
            return Some(event);
        };
        let waits = self.events.iter().any(|other| speaker(other) == Some(peer));
        // Behind one that waits the others wait, too, and the card is not read again.
        if !waits && (matches!(event, Event::Gone { .. }) || net.meet(peer) != Err(Error::Again)) {
            return Some(event);
        }
        if self.events.len() < MOST {
            self.events.push(event);
        } else if let Event::Control { grants, .. } = event {
            log::warn!("rpipe: rank {peer} says much before it has begun: this is ignored");
            net.forget(grants);
        }
        None
    }
}
