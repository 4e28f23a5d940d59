//! What a choice depends on beside the path: what holds of an operation, and what was tried for it.

use bitflags::bitflags;

bitflags! {
    /// What holds of an operation.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct When: u32 {
        /// The bytes have to leave the buffer before the call returns.
        const INJECT = 1;
        /// It completes when the bytes are where they belong.
        const DELIVERY = 1 << 1;
        /// Large operations were posted before it, and none was waited for since; or a message to a peer that
        /// was sent a large one and has sent none here since: messages go one way.
        const IN_A_ROW = 1 << 2;
        /// The peer is short of room for messages.
        const PAUSED = 1 << 3;
        /// The target need not see the access, whose completion is requested.
        const ONE_SIDED = 1 << 4;
        /// Frames that the target does not answer are before it, which it must not overtake.
        const BEHIND_UNACKED = 1 << 5;
        /// The peer copies its part of large transfers.
        const HELPED = 1 << 6;
        /// There is more to do here, so that the peer had better copy.
        const DELEGATE = 1 << 7;
        /// Operations by handles are in flight or to come, so that the sender had better start this one.
        const INVITE = 1 << 8;
        /// Answers to the peer wait for room already.
        const LAGGING = 1 << 9;
        /// Bytes travel the other way, too, or on to others, so that all sides have copies of their own to
        /// make: a send while a receive is posted here; a fetch while a peer is likely to take a large
        /// message that it was offered.
        const BOTH_WAYS = 1 << 10;
        /// The receive was posted just now, to a message that had come before: the call that posts it takes
        /// the bytes in.
        const IN_POST = 1 << 11;
        /// Both sides' memory is on one device, as far as is known, which the two processes have in turns.
        const ONE_DEVICE = 1 << 12;
        /// Registrations of the job are of memory that stays until they are closed, so that what is written
        /// may be got; or this is of no registration.
        const LASTING = 1 << 13;
        /// Half of the ring to the peer is not taken in yet, or the like, or it is one of many that are sent
        /// large messages at once and send here, too.
        const BEHIND = 1 << 14;
        /// Messages that their senders could help to copy come from many peers in turn.
        const FROM_MANY = 1 << 15;
        /// An access that the link makes by itself has left the buffer when the call returns.
        const COPIED = 1 << 16;
    }
}

bitflags! {
    /// Plans that came to nothing.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Tried: u8 {
        /// [`super::Plan::ByHandles`].
        const HANDLES = 1;
        /// [`super::Plan::InCall`].
        const IN_CALL = 1 << 1;
        /// [`super::Plan::Cooperative`].
        const COOPERATIVE = 1 << 2;
        /// [`super::Plan::Invite`].
        const INVITE = 1 << 3;
        /// [`super::Plan::OfferAndWait`].
        const WAIT = 1 << 4;
        /// [`super::Plan::OneSidedFrame`], or another plan of one side alone.
        const ONE_SIDED = 1 << 5;
        /// [`super::Plan::Bounce`].
        const BOUNCE = 1 << 6;
    }
}
