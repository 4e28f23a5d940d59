//! Ends that are closed by this process.

use super::ends::Ends;
use super::kept::Kept;
use super::net::Net;
use crate::Error;
use crate::core::control::{Control, Reason};
use crate::core::forked;

/// What becomes of the memory of an end that is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is given back.
    Back,
    /// The reader has messages to get from there: it is given back when that closes its end, or is gone.
    Wanted,
    /// The reader puts there what it frees, as long as it has its end open. Leaving the job does not
    /// wait for it.
    Reached,
    /// An operation of this process has not ended, and may write there: it stays until the job is left.
    InUse,
}

/// The parts that take part in closing an end.
#[derive(Debug)]
pub(super) struct Parting<'a> {
    pub(super) net: &'a mut Net,
    pub(super) ends: &'a mut Ends,
    pub(super) kept: &'a mut Kept,
}

impl Parting<'_> {
    /// Closes an end, and does with its memory as `fate` says.
    pub(super) fn leave(&mut self, no: u32, fate: Fate) -> Result<(), Error> {
        if forked::is_child() {
            return Ok(());
        }
        let gone = self.ends.is_gone(self.net, no);
        let Some(stream) = self.ends.get(no) else { return Ok(()) };
        let over = stream.closed().is_some();
        // An operation may have found that before the peer's end is reported.
        let lost = matches!(stream.fault(), Some(Error::Gone(_)));
        let is_known = stream.has_said() || self.net.is_met(stream.peer());
        if (!over || stream.is_reached()) && !gone && is_known {
            let _ = self.ends.say(self.net, no, &Control::Close(Reason::Done), false);
        }
        let Some(stream) = self.ends.remove(no) else { return Ok(()) };
        let key = stream.key();
        match stream.into_regions().leave(self.net.backend())? {
            // Once the peer is gone all operations have ended.
            Some(_) if fate == Fate::InUse && !gone => {
                self.ends.spend(no);
                Ok(())
            }
            Some(region) if matches!(fate, Fate::Wanted | Fate::Reached) && !over && !gone && !lost => {
                self.kept.keep(key, region, fate == Fate::Wanted);
                Ok(())
            }
            Some(region) => self.net.backend().withdraw(region.id),
            None => Ok(()),
        }
    }
}
