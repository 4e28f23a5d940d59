//! What a link is: a way to peers.
//!
//! A link knows peers ([`Link`]), moves frames to and from them ([`FrameLink`]), lets a caller sleep
//! ([`SleepLink`]) and accesses memory of peers ([`RmaLink`]). The engine and the doors use links by these
//! four traits alone, and each peer has one link, of which [`Path`] has the limits. A selector that holds
//! several links is a link itself.
//!
//! A peer is untrusted: whatever it writes, a link answers with frames of correct length, or with
//! [`Event::Closed`]. Nothing here blocks.

#![forbid(unsafe_code)]

/// The name of a thread that a process of the shared memory link has, which sleeps and makes no calls.
pub const KEEPER: &str = "strait-keeper";

mod budget;
mod frames;
mod group;
mod link;
mod meter;
mod path;
mod rma;
mod setting;
mod sleep;

pub use budget::{Budget, Reservation};
pub use frames::{Event, Frame, FrameLink, FrameSource, Hint, LandAt, Landing, PollFrame, Sent};
pub use group::{
    Arrival, GroupLink, GroupMemory, GroupName, GroupShape, INLINE, InSlot, MOST_MEMBERS, Opening, SLOTS,
};
pub use link::{Channel, Connect, Gone, Link, Parting, Refused};
pub use meter::{Fallback, How, Meter, Side};
pub use path::{OpId, Path, PeerId, RmaCaps, Standing};
pub use rma::{
    Allow, Devices, Direct, Grant, HandleNote, InUse, MAX_PIECES, NoDirect, Once, PieceCounter, Region,
    RegionVersion, Revoke, RmaLink, Way,
};
pub use setting::{Patience, Setting};
pub use sleep::{SleepLink, WaitFd};
