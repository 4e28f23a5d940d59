//! What peers say before their cards are to be had: it waits until it can be answered.

use super::Inner;
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

impl Inner {
    /// Gives an event back that is to be taken now; keeps it if its peer cannot be answered yet.
    pub(super) fn hear(&mut self, event: Event) -> Option<Event> {
        let Some(peer) = speaker(&event).filter(|peer| !self.met.contains_key(peer)) else {
            return Some(event);
        };
        let waits = self.unheard.iter().any(|other| speaker(other) == Some(peer));
        // Behind one that waits the others wait, too, without another look for the card.
        if !waits && (matches!(event, Event::Gone { .. }) || self.meet_now(peer) != Err(Error::Again)) {
            return Some(event);
        }
        if self.unheard.len() < MOST {
            self.unheard.push(event);
        } else if let Event::Control { grants, .. } = event {
            log::warn!("rpipe: rank {peer} says much before it has begun: this is ignored");
            self.forget(grants);
        }
        None
    }
}
