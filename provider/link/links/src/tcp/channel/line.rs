//! The socket of a connection, and whether it ends.

use ipc::Unshared;
use link_api::Gone;

/// One of them.
#[derive(Debug)]
pub(super) struct Line {
    fd: Unshared,
    /// Nothing more will be received.
    over: Option<Gone>,
    /// What it is followed by is there, or nothing can be sent any more: it ends when nothing more is to be
    /// had.
    last: bool,
}

impl Line {
    pub(super) fn new(fd: Unshared) -> Line {
        Line { fd, over: None, last: false }
    }

    #[inline(always)]
    pub(super) fn fd(&self) -> &Unshared {
        &self.fd
    }

    /// Why nothing more will be received, if that is so.
    #[inline(always)]
    pub(super) fn over(&self) -> Option<Gone> {
        self.over
    }

    #[inline(always)]
    pub(super) fn is_over(&self) -> bool {
        self.over.is_some()
    }

    /// Nothing more will be received, for this reason.
    #[inline]
    pub(super) fn set_over(&mut self, why: Gone) {
        self.over = Some(why);
    }

    /// Nothing more will be received, for this reason unless there was one before.
    #[inline]
    pub(super) fn end_by(&mut self, why: Gone) {
        self.over.get_or_insert(why);
    }

    /// Whether it ends when nothing more is to be had.
    #[inline(always)]
    pub(super) fn is_last(&self) -> bool {
        self.last
    }

    /// It ends when nothing more is to be had.
    #[inline]
    pub(super) fn set_last(&mut self) {
        self.last = true;
    }

    /// Whether its end is to be reported, perhaps after frames that have come.
    #[inline(always)]
    pub(super) fn ends(&self) -> bool {
        self.over.is_some() || self.last
    }
}
