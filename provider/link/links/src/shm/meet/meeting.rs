//! Channels that come to be: those that peers make, and those that this side makes.

use meet::{Refusals, Shortage};

use crate::shm::meet::admission::Admission;
use crate::shm::meet::contests::Contests;
use crate::shm::meet::expected::Expected;
use crate::shm::meet::listening::Listening;

/// What there is of peers that have no channel yet.
#[derive(Debug)]
pub(in crate::shm) struct Meeting {
    pub(in crate::shm) listening: Listening,
    /// Which names and users are served.
    pub(in crate::shm) admission: Admission,
    pub(in crate::shm) contests: Contests,
    pub(in crate::shm) shortage: Shortage,
    pub(in crate::shm) expected: Expected,
    pub(in crate::shm) refused: Refusals,
}
