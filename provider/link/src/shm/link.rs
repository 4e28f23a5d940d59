//! One endpoint's link, as the parts that it is made of: each owns its state.

use super::access::Access;
use super::admission::Admission;
use super::contests::Contests;
use super::copies::Copies;
use super::ends::Ends;
use super::expected::Expected;
use super::lack::Shortage;
use super::listening::Listening;
use super::looks::Looks;
use super::options::OpenOptions;
use super::own::Own;
use super::pace::Pace;
use super::peers::Peers;
use super::rings::Rings;
use super::sending::Sending;
use super::sleep::Sleep;

/// One endpoint's link to all peers on this host.
#[derive(Debug)]
pub struct ShmLink {
    pub(super) own: Own,
    pub(super) peers: Peers,
    /// The rings of all peers with a channel to this endpoint.
    pub(super) rings: Rings,
    pub(super) pace: Pace,
    pub(super) ends: Ends,
    pub(super) sending: Sending,
    pub(super) listening: Listening,
    /// Under which names callers are let in.
    pub(super) admission: Admission,
    pub(super) contests: Contests,
    pub(super) shortage: Shortage,
    pub(super) expected: Expected,
    pub(super) looks: Looks,
    pub(super) sleep: Sleep,
    pub(super) access: Access,
    pub(super) copies: Copies,
    pub(super) options: OpenOptions,
}
