//! Which ways were refused, by kind of memory.

use hmem::Kind;

use crate::device::{Refusal, Way};

/// Kinds of memory.
const KINDS: usize = Kind::Client as usize + 1;
/// So many refusals in a row, and the way is not tried again for that kind.
const MOST: u8 = 8;

/// So many refusals of clients are logged.
const MOST_OF_CLIENTS: usize = 16;

/// What came of a way.
#[derive(Clone, Copy, Debug, Default)]
struct Tried {
    /// How many refusals in a row; [`MOST`] of one that is for good.
    refusals: u8,
    last: Option<Refusal>,
    works: bool,
}

/// What came of all ways, by what memory is registered for: accesses of this side, or of peers.
#[derive(Debug, Default)]
struct Ways([[Tried; Way::COUNT]; 2]);

/// The same of all kinds; why memory of a kind was not registered to be written; and refusals of clients that
/// are known.
#[derive(Debug, Default)]
pub(crate) struct Refused([Ways; KINDS], [Option<Refusal>; KINDS], Vec<Refusal>);

impl Refused {
    fn at(&mut self, kind: Kind, for_peers: bool, way: Way) -> &mut Tried {
        &mut self.0[kind as usize].0[usize::from(for_peers)][way as usize]
    }

    /// Why the way is not to be tried for this kind any more, if it is not.
    pub(crate) fn last_of_many(&self, kind: Kind, for_peers: bool, way: Way) -> Option<Refusal> {
        let tried = &self.0[kind as usize].0[usize::from(for_peers)][way as usize];
        tried.last.filter(|_| tried.refusals >= MOST)
    }

    /// Memory was registered; whether that is new.
    pub(crate) fn note_success(&mut self, kind: Kind, for_peers: bool, way: Way) -> bool {
        let tried = self.at(kind, for_peers, way);
        (tried.refusals, tried.last) = (0, None);
        !std::mem::replace(&mut tried.works, true)
    }

    /// Memory was refused by a way; whether the reason is new. Ordinary memory is never given up, nor is that
    /// of clients: one buffer says nothing of the next, and one client nothing of another.
    pub(crate) fn note_refusal(&mut self, kind: Kind, for_peers: bool, way: Way, refusal: Refusal) -> bool {
        let tried = self.at(kind, for_peers, way);
        if !refusal.is_for_now() && ![Kind::System, Kind::Client].contains(&kind) {
            tried.refusals = if refusal.is_for_good() { MOST } else { (tried.refusals + 1).min(MOST) };
        }
        let is_new = tried.last.replace(refusal).is_none_or(|last| last != refusal);
        if kind != Kind::Client {
            return is_new;
        }
        // Several clients may refuse in turns.
        let is_new = self.2.len() < MOST_OF_CLIENTS && !self.2.contains(&refusal);
        self.2.extend(is_new.then_some(refusal));
        is_new
    }

    /// Memory is not registered to be written, which says nothing of other devices; whether the reason is
    /// new.
    pub(crate) fn note_unwritten(&mut self, kind: Kind, refusal: Refusal) -> bool {
        self.1[kind as usize].replace(refusal) != Some(refusal)
    }

    /// Whether some way is left for this kind. By its address a device's memory is registered where the host
    /// accesses it, too, which one that was says, and as a dma-buf of the program's where that has named one.
    pub(crate) fn may(&self, kind: Kind, for_peers: bool) -> bool {
        let tried = &self.0[kind as usize].0[usize::from(for_peers)];
        Way::ALL.into_iter().any(|way| {
            let is_some = [Way::Own, Way::OnDemand, Way::Plain].contains(&way);
            let takes = match kind {
                Kind::System => true,
                Kind::Client => way == Way::Client,
                _ => way != Way::Client && (!is_some || tried[way as usize].works),
            };
            takes && self.last_of_many(kind, for_peers, way).is_none()
        })
    }

    /// What came of a way, if it was tried.
    pub(crate) fn outcome(&self, kind: Kind, for_peers: bool, way: Way) -> Option<Result<(), Refusal>> {
        let tried = &self.0[kind as usize].0[usize::from(for_peers)][way as usize];
        if tried.works { Some(Ok(())) } else { tried.last.map(Err) }
    }

    /// By which way memory of this kind was registered, and the refusals before it.
    pub(crate) fn describe(&self, kind: Kind, for_peers: bool) -> Option<String> {
        let tried = &self.0[kind as usize].0[usize::from(for_peers)];
        // What the program names is its own to choose, and says nothing of other memory.
        let is_own = tried[Way::Own as usize].works;
        let by = Way::ALL[1..].iter().find(|way| tried[**way as usize].works);
        let last = by.copied().or(is_own.then_some(Way::Own)).unwrap_or(Way::Plain);
        let no_better = &tried[..=last as usize];
        let mut refused: Vec<String> =
            no_better.iter().filter_map(|t| t.last).map(|refusal| refusal.to_string()).collect();
        let names = [is_own.then_some(Way::Own), by.copied()].into_iter().flatten().map(Way::name);
        let by = names.collect::<Vec<_>>().join(" and ");
        if by.is_empty() && refused.is_empty() {
            return None;
        }
        refused.extend(self.1[kind as usize].map(|refusal| format!("written: {refusal}")));
        let whose = if for_peers { " for peers" } else { "" };
        let but =
            if refused.is_empty() { String::new() } else { format!(" (not {})", refused.join("; not ")) };
        Some(format!("{kind:?}{whose} by {}{but}", if by.is_empty() { "no way" } else { &by }))
    }
}
