//! What an endpoint is put together from.

use std::os::fd::RawFd;

use engine::Cntrs;
use libfabric_sys as fi;
use link::Links;
use link_api::{Link as _, SleepLink as _, WaitFd};
use runtime::Attached;
use wire::Addr;

use super::context::SrxFid;
use super::options::Options;
use crate::av::AvFid;
use crate::cntr::CntrFid;
use crate::cq::CqFid;
use crate::eq::EqFid;
use crate::errno::Errno;
use crate::ffi::Ref;
use crate::info::ep::EpAttrs;

/// A queue, and whether only operations with `FI_COMPLETION` are written to it.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) cq: Ref<CqFid>,
    pub(super) selective: bool,
}

/// Everything an endpoint is bound to, and its link until the engine has it.
#[derive(Debug)]
pub(super) struct Setup {
    /// Gone to the engine once enabled.
    pub(super) link: Option<Links>,
    pub(super) name: Addr,
    pub(super) wait_fd: RawFd,
    pub(super) av: Option<Ref<AvFid>>,
    pub(super) eq: Option<Ref<EqFid>>,
    pub(super) tx: Option<Queue>,
    pub(super) rx: Option<Queue>,
    /// In the order of [`COUNTED`].
    pub(super) cntrs: [Option<Ref<CntrFid>>; COUNTED.len()],
    pub(super) srx: Option<Ref<SrxFid>>,
    /// What the link wakes: blocking calls, and the progress thread.
    pub(super) awake: Vec<Attached>,
    pub(super) options: Options,
}

const _: () = {
    const fn any_thread<T: Send>() {}
    any_thread::<Links>();
};

// SAFETY: the link is `Send`, as is checked above; all else that is not `Send` by itself are
// references to libfabric objects, which applications use from any thread.
unsafe impl Send for Setup {}

pub(super) const COUNTED: [u64; 6] =
    [fi::FI_SEND, fi::FI_RECV, fi::FI_READ, fi::FI_WRITE, fi::FI_REMOTE_READ, fi::FI_REMOTE_WRITE];

impl Setup {
    pub(super) fn new(link: Links, attrs: &EpAttrs) -> Result<Setup, Errno> {
        Ok(Setup {
            name: link.addr(),
            wait_fd: link.wait_fd(WaitFd::All).ok_or(Errno::NOSYS)?,
            link: Some(link),
            av: None,
            eq: None,
            tx: None,
            rx: None,
            cntrs: Default::default(),
            srx: None,
            awake: Vec::new(),
            options: Options::new(attrs),
        })
    }

    /// Takes another link in the place of the one that it has, unless the engine has got that.
    pub(super) fn exchange(&mut self, link: impl FnOnce() -> Result<Links, Errno>) -> Result<(), Errno> {
        if self.link.is_none() {
            return Err(Errno::BUSY);
        }
        let link = link()?;
        self.name = link.addr();
        self.wait_fd = link.wait_fd(WaitFd::All).ok_or(Errno::NOSYS)?;
        self.link = Some(link);
        Ok(())
    }

    /// Removes the link from what threads sleep on.
    pub(super) fn stop_sleeping(&mut self) {
        self.awake.clear();
    }

    pub(super) fn cntr_ids(&self) -> Cntrs {
        let [send, recv, read, write, remote_read, remote_write] =
            self.cntrs.each_ref().map(|c| c.as_ref().map(|c| c.id));
        Cntrs { send, recv, read, write, remote_read, remote_write }
    }
}
