//! What there is of a port: how packets leave it, sizes, objects.

use std::collections::VecDeque;
use std::fmt;
use std::mem::ManuallyDrop;

use below::Did;
use rdma_sys::{Channel, Context, Cq, Gid, Pd, Port, QpInit, ibv_wc};
use register::Registry;

use crate::bounces::Bounces;
use crate::choice::patience::Patience;
use crate::joining::manager::Manager;
use crate::joining::place::Place;
use crate::pairs::Pairs;
use crate::rails::Rails;
use crate::receives::Receives;
use crate::registered::Adapter;
use crate::seconds::Seconds;
use crate::sends::Sends;
use crate::windows::Windows;

/// Longest message that is copied to be sent inline.
pub(crate) const MOST_INLINE: usize = 512;
/// Events of the device are looked for once in so many polls that find nothing.
pub(crate) const EVENTS: u32 = 1024;
/// The same of events of connections, as long as one is made.
pub(crate) const CALLS: u32 = 16;

/// A port, and how packets leave it.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) port: Port,
    pub(crate) gid: Option<Gid>,
    /// `enum ibv_mtu`.
    pub(crate) mtu: u8,
    /// Packets have a GRH: always on Ethernet.
    pub(crate) global: bool,
    /// Why it comes before other ports that can be used, for people.
    pub(crate) reason: Option<String>,
    /// Of an iWARP device: its address, and what connects its queue pairs.
    pub(crate) manager: Option<Place>,
}

impl Route {
    /// Which sort of addresses is announced.
    pub(crate) fn sort(&self) -> u32 {
        if self.manager.is_some() { 2 } else { self.port.is_ethernet().into() }
    }
}

/// Sizes that fit the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Longest message.
    pub(crate) most: usize,
    /// How many messages of one peer there is room for.
    pub(crate) window: u32,
    /// Slots of a queue pair for sends, and for receives where it has its own. See [`Sizes::init_of`].
    pub(crate) send_wr: u32,
    pub(crate) recv_wr: u32,
    /// The inline size that the device grants.
    pub(crate) inline: u32,
    /// Longest access to a peer's memory; how many of a peer's reads the device serves at once, and how many
    /// of this side it has under way. 0: there are no accesses.
    pub(crate) access: usize,
    pub(crate) serves: u8,
    pub(crate) starts: u8,
    /// Its atomics are atomic with those of processors and of other devices.
    pub(crate) atomics: bool,
    /// How long a peer's device may not answer.
    pub(crate) patience: Patience,
    /// Its driver repeats requests that it must not repeat, and those that have completed.
    pub(crate) repeats: bool,
}

/// Room for completions.
pub(crate) struct Found(pub(crate) Box<[ibv_wc]>);

impl fmt::Debug for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Found({})", self.0.len())
    }
}

/// So many peers have queue pairs with all slots for sends, and the peers that come when there are so many
/// half of them, with fewer bytes inline: what slots take is most of what a peer does.
const WITH_ALL: u32 = 8;
/// Half of the slots are no fewer than this.
const FEWEST: u32 = 31;
/// A slot of soft RoCE's with so many bytes inline takes 512.
const FEWER_INLINE: u32 = 304;

impl Sizes {
    /// How a queue pair with this number is made.
    pub(crate) fn init_of(&self, number: u32) -> QpInit {
        let init = self.init();
        if number < WITH_ALL || self.send_wr / 2 < FEWEST {
            return init;
        }
        QpInit { max_send_wr: self.send_wr / 2, max_inline: self.inline.min(FEWER_INLINE), ..init }
    }

    /// How a queue pair is made.
    pub(crate) fn init(&self) -> QpInit {
        QpInit {
            max_send_wr: self.send_wr,
            max_recv_wr: self.recv_wr,
            max_send_sge: 1,
            max_recv_sge: u32::from(self.recv_wr > 0),
            max_inline: self.inline,
            signal_all: false,
        }
    }
}

/// What of the network has a destructor, in order: connections, windows, then the queue pairs that those are
/// bound to, then what these are made of.
#[derive(Debug)]
pub(crate) struct Objects {
    pub(crate) manager: Option<Manager>,
    pub(crate) windows: Windows,
    pub(crate) pairs: Pairs,
    pub(crate) seconds: Seconds,
    pub(crate) receives: Receives,
    pub(crate) sends: Sends,
    pub(crate) bounces: Bounces,
    pub(crate) registered: Registry<Adapter>,
    pub(crate) cq: Cq,
    pub(crate) channel: Channel,
    pub(crate) pd: Pd,
    pub(crate) context: Context,
}

/// A port of a device.
#[derive(Debug)]
pub struct Verbs {
    pub(crate) objects: ManuallyDrop<Objects>,
    pub(crate) route: Route,
    pub(crate) sizes: Sizes,
    /// What is said of it, for people.
    pub(crate) detail: String,
    /// Completions that sends may still have, and half of what they may have at most.
    pub(crate) credits: usize,
    pub(crate) half: usize,
    pub(crate) did: VecDeque<Did>,
    pub(crate) dead: Option<String>,
    /// Polls in a row that found nothing.
    pub(crate) idle: u32,
    pub(crate) found: Found,
    pub(crate) rails: Rails<Verbs>,
    pub(crate) pid: u32,
}
