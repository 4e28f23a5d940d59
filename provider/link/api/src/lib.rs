//! What a link is: a way to peers.
//!
//! A link moves frames ([`Link`]) and accesses memory of peers ([`RmaLink`]). The engine and the doors use
//! links by these two traits alone, and each peer has one link, of which [`Path`] tells the limits. A
//! selector that holds several links is a link itself.
//!
//! A peer is untrusted: whatever it writes, a link answers with frames of correct length, or with
//! [`Event::Closed`]. Nothing here blocks.

#![forbid(unsafe_code)]

/// The name of a thread that a process of the shared memory link has, which sleeps and makes no calls.
pub const KEEPER: &str = "strait-keeper";

mod budget;
mod frames;
mod meter;
mod path;
mod rma;
mod setting;

pub use budget::{Budget, Share};
pub use frames::{
    Channel, Connect, Event, Frame, Gone, LandAt, Landing, Link, Parting, PollFrame, Refused, Sent, WaitFd,
};
pub use meter::{Fallback, How, Meter, Side};
pub use path::{OpId, Path, PeerId, RmaCaps, Standing};
pub use rma::{
    Allow, Devices, Direct, Grant, HandleNote, InUse, MAX_PIECES, NoDirect, Patience, PieceCounter, Region,
    RegionVersion, Revoke, RmaLink, Way,
};
pub use setting::Setting;
