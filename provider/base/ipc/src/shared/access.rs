//! Accesses to memory of another process, and taking that memory back.
//!
//! A process that accesses a peer's memory by itself says so in a word that the owner of the memory can
//! read (`inside`), then checks whether it is still allowed to, and says when it is done. The owner, to
//! take memory back, first ends the permission, then loads those words, and waits for the ones that
//! name it. One of the two loads must see the other's store: between store and load each side fences.
//!
//! Where the words are is the caller's choice: in memory of the two processes, or in reader slots of a
//! [`RevocationTable`](crate::RevocationTable). Words that a peer writes make their owner wait, for as long
//! as the caller says and no longer.

use std::sync::atomic::Ordering::{Acquire, Release};

use crate::shared::word::Word;

/// Begins an access to `what`, which is not 0; whether it is allowed. Then it has to be followed by
/// [`leave`].
#[inline(always)]
pub fn enter<W: Word>(inside: &W, what: u32, fence: impl FnOnce(), allowed: impl FnOnce() -> bool) -> bool {
    inside.store(what, Release);
    fence();
    let allowed = allowed();
    if !allowed {
        leave(inside);
    }
    allowed
}

/// Ends an access.
#[inline(always)]
pub fn leave<W: Word>(inside: &W) {
    inside.store(0, Release);
}

/// Whether an access to `what` (`None`: to anything) has begun and not ended. Asked after the permission
/// was ended, with a fence in between.
pub fn is_inside<W: Word>(inside: &W, what: Option<u32>) -> bool {
    let seen = inside.load(Acquire);
    what.map_or(seen != 0, |what| seen == what)
}
