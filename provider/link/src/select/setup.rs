//! How an endpoint gets its links.

use std::collections::VecDeque;
use std::io;

use ipc::Poller;
use link_api::Link as _;

use super::Links;
use super::pace::Pace;
use super::route::{BoxedLink, Far, Routes};
use crate::shm::{Callers, OpenOptions, ShmLink};
use crate::tcp::{TcpLink, TcpOptions};

impl Links {
    /// Opens an endpoint of this name, with the link of shared memory alone.
    pub fn open(options: OpenOptions) -> io::Result<Links> {
        Ok(Links {
            shm: ShmLink::open(options)?,
            far: Vec::new(),
            routes: Routes::default(),
            events: VecDeque::new(),
            turn: 0,
            pace: Pace::default(),
            member: None,
            poller: None,
            near: true,
            neighbours: 0,
            later: None,
            absent: Vec::new(),
        })
    }

    /// Adds a link, to be considered after those that are here. To be called before any peer is known.
    pub fn add(&mut self, link: BoxedLink) -> io::Result<()> {
        for fd in link.wait_fds() {
            if self.poller.is_none() {
                let poller = Poller::new()?;
                poller.add(&self.shm.wait_fd().unwrap_or(-1), 0)?;
                self.poller = Some(poller);
            }
            if let Some(poller) = &self.poller {
                poller.add(&fd, 0)?;
            }
        }
        self.far.push(Far::new(link));
        self.share_out();
        self.pace.begin();
        self.join();
        Ok(())
    }

    /// Adds a link over TCP, if [`OpenOptions::port`] listens.
    pub fn add_tcp(&mut self, options: TcpOptions) -> io::Result<()> {
        let link = TcpLink::open(self.shm.name(), options)?;
        self.add(Box::new(link))
    }

    /// Adds a link that is made of one over TCP, likewise.
    pub fn add_over_tcp(
        &mut self,
        options: TcpOptions,
        over: impl FnOnce(TcpLink) -> io::Result<BoxedLink>,
    ) -> io::Result<()> {
        let link = TcpLink::open(self.shm.name(), options)?;
        self.add(over(link)?)
    }

    /// Whether peers on this host are reached by shared memory, and not like all others. To be called before any peer is known.
    pub fn set_shm(&mut self, on: bool) {
        self.near = on;
        self.share_out();
    }

    /// Peers of this host are served by shared memory, or by further links, and are refused by the others.
    pub(super) fn share_out(&mut self) {
        self.shm.admit_callers(match (self.near, self.far.is_empty() && self.later.is_none()) {
            (_, true) => Callers::All,
            (true, false) => Callers::OfThisHost,
            (false, false) => Callers::Itself,
        });
        self.far.iter_mut().for_each(|far| far.link.serve_host(!self.near));
    }

    /// A link that is not here, and why: what is told of paths says so.
    pub fn set_absent(&mut self, link: &'static str, why: String) {
        self.absent.push((link, why));
    }

    /// Whether a device copies from or to a peer's device memory, where shared memory leads to the peer, and whether an adapter accesses
    /// it elsewhere. That ends for good.
    pub fn set_device_direct(&mut self, on: bool) {
        self.shm.set_device_direct(on);
        if !on {
            self.far.iter_mut().for_each(|far| far.link.stage_devices());
        }
    }
}
