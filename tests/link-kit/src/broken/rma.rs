//! Access to memory by a broken link.

use hmem::Span;
use link_api::{
    Allow, Devices, Direct, Event, Grant, HandleNote, InUse, NoDirect, OpId, PeerId, PieceCounter, Region,
    RegionVersion, Revoke, RmaLink, Way,
};
use wire::{Handle, Seg};

use super::{Broken, Flaw, Item};

impl<L: RmaLink> RmaLink for Broken<L> {
    fn access(&mut self, way: Way, peer: PeerId, access: &Direct<'_>) -> Result<(), NoDirect> {
        let roff = if way == Way::Get && self.flaw == Flaw::ForgetsRemoteOffset { 0 } else { access.roff };
        let loff = if way == Way::Get && self.flaw == Flaw::ForgetsLocalOffset { 0 } else { access.loff };
        let access = Direct { grant: self.grant(access.grant), roff, loff, ..*access };
        let done = self.link.access(way, peer, &access);
        match self.flaw {
            Flaw::SaysAllIsWell => Ok(()),
            Flaw::AccessesInTheCall if way == Way::Get => Ok(()),
            _ => done,
        }
    }

    fn start(&mut self, way: Way, peer: PeerId, access: &Direct<'_>) -> Result<OpId, NoDirect> {
        let grant = match access.grant {
            Grant::Request(request) if self.flaw == Flaw::AllowsTakenBackStarts => {
                Grant::Request(request ^ 1)
            }
            grant => grant,
        };
        let started = self.link.start(way, peer, &Direct { grant, ..*access });
        match started {
            Ok(op) if self.flaw == Flaw::IsDoneAtOnce => {
                self.queue.push_back(Item::Other(Event::Done(op, true)))
            }
            Ok(_) if self.flaw == Flaw::ReusesOperations => return Ok(OpId(1)),
            Err(_) if self.flaw == Flaw::SaysAllIsDone => {
                self.queue.push_back(Item::Other(Event::Done(OpId(u64::MAX), true)));
                return Ok(OpId(u64::MAX));
            }
            _ => {}
        }
        started
    }

    fn cancel(&mut self, op: OpId) {
        match self.flaw {
            Flaw::NeverCancels => self.noted.push(op.0),
            Flaw::ReportsCancelled => {
                self.link.cancel(op);
                self.queue.push_back(Item::Other(Event::Done(op, false)));
            }
            _ => {
                self.queue.retain(|item| !matches!(item, Item::Other(Event::Done(over, _)) if *over == op));
                self.link.cancel(op);
            }
        }
    }

    fn export_handles(&mut self, to: PeerId, iov: &[Span], way: Way) -> Option<Vec<Handle>> {
        let mut handles = self.link.export_handles(to, iov, way)?;
        if self.flaw == Flaw::ExportsOncePerLink {
            handles.retain(|h| !self.noted.contains(&h.base.get()));
        }
        Some(handles)
    }

    fn note_handle(&mut self, peer: PeerId, what: HandleNote<'_>) {
        match what {
            HandleNote::Exported(handle) => {
                self.noted.push(handle.base.get());
                if self.flaw != Flaw::ExportsAgain {
                    self.link.note_handle(peer, what);
                }
            }
            HandleNote::Imported(_) => self.link.note_handle(peer, what),
            HandleNote::Retired(_) => {}
        }
    }

    fn devices(&self, peer: PeerId, theirs: &[Seg], ours: &[Span]) -> Devices {
        self.link.devices(peer, theirs, ours)
    }

    fn pieces_open(&mut self, with: PeerId) -> Option<PieceCounter> {
        let counter = self.link.pieces_open(with)?;
        self.counters.push(counter);
        Some(counter)
    }

    fn pieces_claim(&mut self, with: PeerId, counter: PieceCounter, mine: bool, of: u16) -> Option<u16> {
        let latest = self.counters.iter().rev().find(|c| c.slot == counter.slot && mine);
        let counter = match latest {
            Some(latest) if self.flaw == Flaw::GivesPiecesToOldNames => *latest,
            _ => counter,
        };
        if self.last_piece.is_some() && self.shows(Flaw::GivesPiecesTwice, 5) {
            return self.last_piece;
        }
        let piece = self.link.pieces_claim(with, counter, mine, of);
        self.last_piece = piece;
        piece
    }

    fn pieces_begun(&self, with: PeerId, counter: PieceCounter) -> bool {
        self.flaw != Flaw::NeverBegun && self.link.pieces_begun(with, counter)
    }

    fn pieces_close(&mut self, with: PeerId, counter: PieceCounter) {
        if self.flaw != Flaw::KeepsGivingPieces {
            self.link.pieces_close(with, counter);
        }
    }

    fn published(&mut self, by: PeerId, key: u64) -> Option<(Region, RegionVersion)> {
        let (region, version) = self.link.published(by, key)?;
        let one = RegionVersion { place: version.place, number: 0 };
        Some((region, if self.flaw == Flaw::OneVersionForAll { one } else { version }))
    }

    fn allow(&mut self, what: Allow<'_>) {
        match what {
            Allow::Region(region, _) => {
                if self.flaw != Flaw::PublishesNothingNew || !self.noted.contains(&region.key) {
                    self.noted.push(region.key);
                    self.link.allow(what);
                }
            }
            Allow::Request(..) if self.flaw == Flaw::NeverRenews => {}
            Allow::Request(..) => self.link.allow(what),
        }
    }

    fn revoke(&mut self, what: Revoke) -> Result<(), InUse> {
        match (what, self.flaw) {
            (Revoke::Region(_), Flaw::KeepsPublishing) => Ok(()),
            (Revoke::Request(..), Flaw::NeverTakesBack) => Ok(()),
            (Revoke::Request(..), Flaw::TakesBackAll) => self.link.revoke(Revoke::All),
            (Revoke::All, Flaw::NeverCloses) => Ok(()),
            _ => self.link.revoke(what),
        }
    }
}
