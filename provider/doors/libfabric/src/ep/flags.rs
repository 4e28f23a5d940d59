//! Which flags an operation runs with.
//!
//! The plain calls (`fi_send`, `fi_write`, …) run with the flags their endpoint was opened with, or
//! given later by `FI_SETOPSFLAG` or `fi_ep_alias`; those with a `flags` argument run with that
//! alone. On top of either comes whether the queue was bound without `FI_SELECTIVE_COMPLETION`, so
//! that every success is written. A receive of a shared context does not know that when it is posted:
//! the queue is that of the endpoint that the message comes to.
//!
//! Flags that ask for nothing we do not always do (`FI_MORE`, `FI_TRANSMIT_COMPLETE`, …) have no effect. One
//! that is not offered (`FI_COMMIT_COMPLETE`, …) is refused where it is given: by the call, or where it
//! becomes a default.

use engine::OpFlags;
use libfabric_sys as fi;

use crate::errno::Errno;
use crate::ffi::known;
use crate::info::answer::OP_FLAGS;

/// Whatever asks that the target's side be done: for a message that includes the match.
const DELIVERY: u64 = fi::FI_DELIVERY_COMPLETE | fi::FI_MATCH_COMPLETE;
/// What a call that sends, writes, reads or computes takes, and what the defaults of a side may be.
const OFFERED: u64 = OP_FLAGS | fi::FI_REMOTE_CQ_DATA | fi::FI_TRIGGER;

/// Flags of such a call, or flags that become the defaults of a side.
#[inline]
pub(crate) fn offered(flags: u64) -> Result<(), Errno> {
    known(flags, OFFERED)
}

/// Whose flags an operation runs with.
#[derive(Clone, Copy, Debug)]
pub(super) enum How {
    /// The endpoint's.
    Default,
    /// The call's own.
    Flags(u64),
    /// Those of `fi_inject` and its like.
    Inject,
}

fn mapped(from: u64, bit: u64, to: OpFlags) -> OpFlags {
    if from & bit != 0 { to } else { OpFlags::empty() }
}

/// Of an operation that sends, writes, reads or computes.
#[inline]
pub(crate) fn tx(flags: u64, always: bool) -> OpFlags {
    let mut out = mapped(flags, DELIVERY, OpFlags::DELIVERY)
        | mapped(flags, fi::FI_INJECT, OpFlags::INJECT)
        | mapped(flags, fi::FI_FENCE, OpFlags::FENCE);
    out.set(OpFlags::COMPLETION, always || flags & fi::FI_COMPLETION != 0);
    out
}

/// Of `fi_inject` and its like: nothing is written to the queue, whatever the endpoint says, but
/// counters go by the endpoint's completion level.
#[inline]
pub(crate) fn inject(default: u64) -> OpFlags {
    mapped(default, DELIVERY, OpFlags::DELIVERY)
        | mapped(default, fi::FI_FENCE, OpFlags::FENCE)
        | OpFlags::INJECT
}

/// What each receive asks for, whatever its flags: by whether its context is shared, and every success of the
/// one endpoint is written.
pub(crate) fn each_rx(shared: bool, always: bool) -> OpFlags {
    match (shared, always) {
        (true, _) => OpFlags::AS_BOUND,
        (false, true) => OpFlags::COMPLETION,
        (false, false) => OpFlags::empty(),
    }
}

/// Of a receive, beside what each asks for.
#[inline]
pub(crate) fn rx(flags: u64, each: OpFlags, tagged: bool) -> OpFlags {
    let mut out = each | mapped(flags, fi::FI_COMPLETION, OpFlags::COMPLETION);
    // FI_MULTI_RECV as an endpoint's default is about untagged receives.
    out.set(OpFlags::MULTI_RECV, !tagged && flags & fi::FI_MULTI_RECV != 0);
    out
}

/// What a call to receive is really for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receive {
    /// Post a buffer.
    Post,
    /// Look, and maybe claim or discard.
    Peek(engine::Peek),
    /// Receive what was claimed.
    Claim,
    /// Throw away what was claimed.
    ClaimDiscard,
}

/// What a call that receives is for, by `FI_PEEK`, `FI_CLAIM` and `FI_DISCARD`.
#[inline]
pub(crate) fn receive(flags: u64) -> Result<Receive, Errno> {
    const ANY: u64 = fi::FI_PEEK | fi::FI_CLAIM | fi::FI_DISCARD;
    known(flags, OFFERED | ANY)?;
    if flags & ANY == 0 {
        return Ok(Receive::Post);
    }
    let has = |bit| flags & bit != 0;
    match (has(fi::FI_PEEK), has(fi::FI_CLAIM), has(fi::FI_DISCARD)) {
        (true, _, true) => Ok(Receive::Peek(engine::Peek::Discard)),
        (true, true, false) => Ok(Receive::Peek(engine::Peek::Claim)),
        (true, false, false) => Ok(Receive::Peek(engine::Peek::Leave)),
        (false, true, false) => Ok(Receive::Claim),
        (false, true, true) => Ok(Receive::ClaimDiscard),
        (false, false, _) => Err(Errno::INVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::Peek;

    #[test]
    fn a_queue_bound_selectively_hears_only_of_what_asks() {
        assert_eq!(tx(0, true), OpFlags::COMPLETION);
        assert_eq!(tx(0, false), OpFlags::empty());
        assert_eq!(tx(fi::FI_COMPLETION, false), OpFlags::COMPLETION);
        assert_eq!(rx(0, each_rx(false, true), false), OpFlags::COMPLETION);
        assert_eq!(rx(0, each_rx(false, false), true), OpFlags::empty());
        assert_eq!(rx(fi::FI_COMPLETION, each_rx(false, false), true), OpFlags::COMPLETION);
        for always in [false, true] {
            assert_eq!(rx(0, each_rx(true, always), true), OpFlags::AS_BOUND);
        }
    }

    #[test]
    fn inject_is_silent_and_keeps_the_level() {
        assert_eq!(inject(fi::FI_COMPLETION), OpFlags::INJECT);
        assert_eq!(inject(fi::FI_DELIVERY_COMPLETE), OpFlags::INJECT | OpFlags::DELIVERY);
        assert_eq!(inject(fi::FI_TRANSMIT_COMPLETE | fi::FI_INJECT_COMPLETE), OpFlags::INJECT);
    }

    #[test]
    fn only_the_targets_side_is_a_level_of_its_own() {
        for f in [fi::FI_DELIVERY_COMPLETE, fi::FI_MATCH_COMPLETE] {
            assert_eq!(tx(f, false), OpFlags::DELIVERY);
        }
        for f in [fi::FI_TRANSMIT_COMPLETE, fi::FI_INJECT_COMPLETE, fi::FI_MORE] {
            assert_eq!(tx(f, false), OpFlags::empty());
        }
        assert_eq!(
            tx(fi::FI_INJECT | fi::FI_FENCE | fi::FI_REMOTE_CQ_DATA, true),
            OpFlags::INJECT | OpFlags::FENCE | OpFlags::COMPLETION
        );
    }

    #[test]
    fn multi_receive_is_for_untagged_messages() {
        assert_eq!(rx(fi::FI_MULTI_RECV, OpFlags::empty(), false), OpFlags::MULTI_RECV);
        assert_eq!(rx(fi::FI_MULTI_RECV, OpFlags::empty(), true), OpFlags::empty());
    }

    #[test]
    fn peek_claim_and_discard_combine() {
        use fi::{FI_CLAIM, FI_DISCARD, FI_PEEK};
        for (flags, what) in [
            (fi::FI_COMPLETION, Receive::Post),
            (FI_PEEK, Receive::Peek(Peek::Leave)),
            (FI_PEEK | FI_CLAIM, Receive::Peek(Peek::Claim)),
            (FI_PEEK | FI_DISCARD, Receive::Peek(Peek::Discard)),
            (FI_CLAIM, Receive::Claim),
            (FI_CLAIM | FI_DISCARD, Receive::ClaimDiscard),
        ] {
            assert_eq!(receive(flags), Ok(what));
        }
        assert_eq!(receive(FI_DISCARD), Err(Errno::INVAL));
        assert_eq!(receive(FI_PEEK | fi::FI_COMMIT_COMPLETE), Err(Errno::BADFLAGS));
    }
}
