//! Which counters an operation is for.

use crate::types::CntrId;

/// What counts a completion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tally {
    /// The endpoint's own counter.
    pub(crate) endpoint: bool,
    /// The completion counter of deferred work.
    pub(crate) also: Option<CntrId>,
}

impl Tally {
    /// As for an operation that the application posted itself.
    pub(crate) const PLAIN: Tally = Tally { endpoint: true, also: None };

    /// Whether it is of such an operation.
    #[inline(always)]
    pub(crate) fn is_plain(&self) -> bool {
        self.endpoint && self.also.is_none()
    }
}
