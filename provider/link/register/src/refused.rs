//! Which ways were refused, by kind of memory.

use hmem::Kind;

use crate::device::{Refusal, Way};

/// Kinds of memory.
const KINDS: usize = Kind::Client as usize + 1;
/// So many refusals in a row, and the way is not tried again for that kind.
const MOST: u8 = 8;

/// What came of a way.
#[derive(Clone, Copy, Debug, Default)]
struct Tried {
    /// How many refusals in a row; [`MOST`] of one that is for good.
    refusals: u8,
    last: Option<Refusal>,
    works: bool,
}

/// What came of all ways, and last of what the adapter was to write.
#[derive(Debug, Default)]
pub(crate) struct Refused([[Tried; Way::COUNT + 1]; KINDS]);

fn at(way: Option<Way>) -> usize {
    way.map_or(Way::COUNT, |way| way as usize)
}

impl Refused {
    fn at(&mut self, kind: Kind, way: Option<Way>) -> &mut Tried {
        &mut self.0[kind as usize][at(way)]
    }

    /// Why the way is not to be tried for this kind any more, if it is not; or why none is where the adapter
    /// writes.
    pub(crate) fn last_of_many(&self, kind: Kind, way: Option<Way>) -> Option<Refusal> {
        let tried = &self.0[kind as usize][at(way)];
        tried.last.filter(|_| tried.refusals >= MOST)
    }

    /// Memory was registered; whether that is new.
    pub(crate) fn note_success(&mut self, kind: Kind, way: Way) -> bool {
        let tried = self.at(kind, Some(way));
        (tried.refusals, tried.last) = (0, None);
        !std::mem::replace(&mut tried.works, true)
    }

    /// Memory was refused; whether the reason is new. Ordinary memory is never given up: one buffer says
    /// nothing of the next.
    pub(crate) fn note_refusal(&mut self, kind: Kind, refusal: Refusal) -> bool {
        let tried = self.at(kind, refusal.way);
        if !refusal.is_for_now() && kind != Kind::System {
            tried.refusals = if refusal.is_for_good() { MOST } else { (tried.refusals + 1).min(MOST) };
        }
        tried.last.replace(refusal).is_none_or(|last| last != refusal)
    }

    /// Whether some way is left for this kind, to be written if it `writes`.
    pub(crate) fn may(&self, kind: Kind, writes: bool) -> bool {
        let is_written = || self.last_of_many(kind, None).is_none();
        (!writes || is_written())
            && Way::ALL.into_iter().any(|way| self.last_of_many(kind, Some(way)).is_none())
    }

    /// By which way memory of this kind was registered, and the refusals before it.
    pub(crate) fn describe(&self, kind: Kind) -> Option<String> {
        let tried = &self.0[kind as usize];
        let text = |refusal: Refusal| match refusal.way {
            Some(_) => refusal.to_string(),
            None => format!("written: {refusal}"),
        };
        let refused: Vec<String> = tried.iter().filter_map(|t| t.last).map(text).collect();
        let by = Way::ALL.into_iter().find(|way| tried[*way as usize].works);
        let but =
            if refused.is_empty() { String::new() } else { format!(" (not {})", refused.join("; not ")) };
        match by {
            Some(way) => Some(format!("{kind:?} by {}{but}", way.name())),
            None if refused.is_empty() => None,
            None => Some(format!("{kind:?} by no way{but}")),
        }
    }
}
