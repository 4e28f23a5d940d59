//! A device's port, by which peers are reached: [`Below`] by libibverbs.

use std::collections::VecDeque;
use std::fmt;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd as _;

use below::{About, Below, Buffer, Dest, Did, Message, NotSent, Offer, Poll, Remote, Waits};
use rdma_sys::{Access, Channel, Context, Cq, Gid, Pd, Port, Qp, QpInit, Ready, ToRts, ibv_sge, ibv_wc};

use crate::address::Address;
use crate::pair::{Pair, Posted, State};
use crate::pairs::Pairs;
use crate::receives::{CHUNK, Receives};
use crate::sends::Sends;

/// Longest message that is copied to be sent inline.
const MOST_INLINE: usize = 512;
/// An acknowledgement is waited for 4.096 us times two to this power, 0.27 s, and the retries take 2 s.
const TIMEOUT: u8 = 16;
const RETRIES: u8 = 7;
/// A peer that has posted no receive is tried again for ever: the end of one is what the connection reports.
const RNR_RETRIES: u8 = 7;
/// The code of 0.16 ms, after which that is.
const RNR_TIMER: u8 = 8;
/// Places for each peer that is met, in the shared receive queue.
const EACH_PEER: usize = 32;
/// Events of the device are looked for once in so many polls that find nothing.
pub(crate) const EVENTS: u32 = 1024;

/// A port, and how packets leave it.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) port: Port,
    pub(crate) gid: Option<Gid>,
    /// `enum ibv_mtu`.
    pub(crate) mtu: u8,
    /// Packets have a GRH: always on Ethernet.
    pub(crate) global: bool,
}

/// Sizes that fit the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Longest message.
    pub(crate) most: usize,
    /// How many messages of one peer there is room for.
    pub(crate) window: u32,
    /// Slots of a queue pair for sends, and for receives where it has its own.
    pub(crate) send_wr: u32,
    pub(crate) recv_wr: u32,
    /// The inline size that the device grants.
    pub(crate) inline: u32,
}

/// Room for completions.
pub(crate) struct Found(pub(crate) Box<[ibv_wc]>);

impl fmt::Debug for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Found({})", self.0.len())
    }
}

impl Sizes {
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

/// What of the network has a destructor, in order: queue pairs first, then what they are made of.
#[derive(Debug)]
pub(crate) struct Objects {
    pub(crate) pairs: Pairs,
    pub(crate) receives: Receives,
    pub(crate) sends: Sends,
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
    pub(crate) pid: u32,
}

impl Verbs {
    /// A queue pair, to which receives may be posted.
    fn make_pair(objects: &mut Objects, route: &Route, sizes: Sizes, number: u32) -> Result<Pair, String> {
        let Objects { receives, cq, pd, .. } = objects;
        let text = |e: rdma_sys::Error| e.to_string();
        let qp = Qp::new(pd, cq, cq, receives.srq(), sizes.init()).map_err(text)?;
        qp.init(route.port.number, 0, Access::LOCAL_READ).map_err(text)?;
        let mut pair = Pair::new(qp, Address::draw_psn()?);
        if receives.srq().is_none() {
            pair.receives = receives.lend(number, &pair.qp)?;
        }
        Ok(pair)
    }

    fn own_address(&self, pair: &Pair) -> Address {
        let Route { port, gid, mtu, .. } = &self.route;
        let gid = gid.map_or([0; 16], |gid| gid.bytes);
        Address { gid, lid: port.attr.lid, mtu: *mtu, qpn: pair.qp.number(), psn: pair.psn }
    }

    /// The queue pair of a peer is in error.
    pub(crate) fn fail(&mut self, number: u32, who: Option<u64>, why: String) {
        let Some(pair) = self.objects.pairs.get_mut(number) else { return };
        if !matches!(pair.state, State::Connected | State::Offered) {
            return;
        }
        // As a rule it is so already.
        let _ = pair.qp.fail();
        pair.state = State::Failed(why.clone());
        if let Some(who) = who {
            self.did.push_back(Did::Failed(who, why));
        }
    }

    /// A queue pair is gone: what it had is this side's again.
    pub(crate) fn retire(&mut self, number: u32, mut pair: Pair) {
        let Objects { receives, sends, .. } = &mut *self.objects;
        receives.end_owner(number, pair.receives);
        let posted: Vec<Posted> = pair.drop_posted().collect();
        // The device may use places until here.
        drop(pair);
        self.credits += posted.len();
        posted.into_iter().filter_map(|one| one.place).for_each(|place| sends.give_back(place));
    }
}

impl Remote for Verbs {}

impl Below for Verbs {
    const LINK: &'static str = "verbs";
    const CONNECTS: bool = true;

    fn about(&self) -> About<'_> {
        About {
            name: "verbs",
            detail: &self.detail,
            dialect: (1, u32::from(self.route.port.is_ethernet())),
            address: &[],
            most: self.sizes.most,
            window: self.sizes.window,
            reads: None,
            writes: false,
        }
    }

    fn offer(&mut self) -> Result<Offer, String> {
        let Verbs { objects, route, sizes, .. } = self;
        // For the request that is posted last.
        self.credits =
            self.credits.checked_sub(1).ok_or("its completion queue has no room for another peer")?;
        // The receives of the peers that are known are enough for this one, too, if there are no more.
        if objects.receives.srq().is_some() {
            let _ = (0..EACH_PEER / CHUNK).try_for_each(|_| objects.receives.grow());
        }
        let mut pairs = std::mem::take(&mut objects.pairs);
        let made = pairs.add(|number| Verbs::make_pair(objects, route, *sizes, number));
        objects.pairs = pairs;
        let number = made.inspect_err(|_| self.credits += 1)?;
        let pair = self.objects.pairs.get(number).ok_or("no queue pair")?;
        Ok(Offer { number: number.into(), address: self.own_address(pair).encode() })
    }

    fn withdraw(&mut self, offer: u64) {
        self.part(Dest(offer));
    }

    fn connect(&mut self, offer: u64, address: &[u8]) -> Result<Dest, String> {
        let far = Address::decode(address).ok_or("what it announces is no queue pair")?;
        let Route { port, gid, mtu, global } = &self.route;
        if *global && far.gid == [0; 16] {
            return Err("it has no GID".into());
        }
        let pair = self.objects.pairs.get_mut(offer as u32).filter(|pair| pair.state == State::Offered);
        let pair = pair.ok_or("its queue pair is gone")?;
        let ready = Ready {
            qpn: far.qpn,
            psn: far.psn,
            mtu: far.mtu.min(*mtu).into(),
            gid: gid.filter(|_| *global).map(|own| (own, far.gid)),
            lid: far.lid,
            port: port.number,
            traffic_class: 0,
            service_level: 0,
            max_reads: 0,
            rnr_timer: RNR_TIMER,
        };
        let how = ToRts {
            psn: pair.psn,
            timeout: TIMEOUT,
            retries: RETRIES,
            rnr_retries: RNR_RETRIES,
            max_reads: 0,
        };
        let connected = pair.qp.ready_to_receive(&ready).and_then(|()| pair.qp.ready_to_send(&how));
        connected.map_err(|e| e.to_string())?;
        pair.state = State::Connected;
        Ok(Dest(offer))
    }

    fn meet(&mut self, _address: &[u8]) -> Result<Dest, String> {
        Err("a queue pair has to be connected".into())
    }

    fn part(&mut self, dest: Dest) {
        let number = dest.0 as u32;
        let Some(pair) = self.objects.pairs.get_mut(number) else { return };
        match pair.state {
            State::Closing(_) => {}
            // Nothing was posted that could complete.
            State::Offered => {
                if let Some(pair) = self.objects.pairs.remove(number) {
                    self.credits += 1;
                    self.retire(number, pair);
                }
            }
            State::Connected | State::Failed(_) => {
                let id = self.objects.pairs.id(number);
                if let Some(pair) = self.objects.pairs.get_mut(number) {
                    self.credits += usize::from(!pair.close(id));
                }
                self.objects.pairs.note_closing(number);
            }
        }
    }

    fn send(&mut self, to: Dest, message: &Message<'_>) -> Result<(), NotSent> {
        let number = to.0 as u32;
        let Objects { pairs, sends, .. } = &mut *self.objects;
        let id = match pairs.get(number) {
            Some(Pair { state: State::Connected, .. }) => pairs.id(number),
            Some(Pair { state: State::Failed(why), .. }) => return Err(NotSent::Error(why.clone())),
            _ => return Err(NotSent::Error("its queue pair is closed".into())),
        };
        let Some(pair) = pairs.get_mut(number) else { return Err(NotSent::Busy) };
        if !pair.has_slot() || self.credits == 0 {
            return Err(NotSent::Busy);
        }
        let total = message.total();
        let who = Some(message.who);
        if total <= pair.most_inline().min(MOST_INLINE) {
            let mut room = [0; MOST_INLINE];
            if !message.copy_to(&mut room[..total]) {
                return Err(NotSent::Fault);
            }
            let signal = pair.is_signal_due() || self.credits < self.half;
            let bytes = ibv_sge { addr: room.as_ptr() as u64, length: total as u32, lkey: 0 };
            // SAFETY: inline, of memory that is there during the call.
            unsafe { pair.send(id, bytes, (true, signal), Posted { who, place: None }) }?;
        } else {
            let (place, bytes) = sends.fill(message)?;
            // SAFETY: a place that nothing has, which is taken here until the request has completed.
            unsafe { pair.send(id, bytes, (false, true), Posted { who, place: Some(place) }) }?;
            sends.take(message);
        }
        self.credits -= 1;
        Ok(())
    }

    fn keeps(&self, who: u64) -> bool {
        self.objects.sends.keeps(who)
    }

    fn poll(&mut self, how: Poll) -> Option<Did> {
        if let Some(did) = self.did.pop_front() {
            return Some(did);
        }
        match how {
            Poll::Taken => return None,
            Poll::Soon => {
                self.read();
            }
            Poll::All => while self.dead.is_none() && self.read() > 0 && self.did.is_empty() {},
        }
        self.did.pop_front().or_else(|| self.dead.take().map(Did::Dead))
    }

    fn bytes(&self, buffer: Buffer) -> &[u8] {
        self.objects.receives.bytes(buffer.0)
    }

    fn give_back(&mut self, buffer: Buffer) {
        let Objects { receives, pairs, .. } = &mut *self.objects;
        let owner = receives.owner(buffer.0);
        let pair = owner.and_then(|number| pairs.get_mut(number));
        let pair = pair.filter(|pair| matches!(pair.state, State::Offered | State::Connected));
        match pair {
            Some(pair) => pair.receives += u32::from(receives.give_back(buffer.0, Some(&pair.qp))),
            None => {
                receives.give_back(buffer.0, None);
            }
        }
    }

    fn try_wait(&mut self) -> bool {
        self.arm_to_sleep()
    }

    fn waits(&self) -> Waits {
        Waits {
            own: Some(self.objects.channel.fd().as_raw_fd()),
            lender: Some(self.objects.context.async_fd().as_raw_fd()),
            lends_unseen: self.objects.pairs.has_closing(),
        }
    }
}

impl Drop for Verbs {
    fn drop(&mut self) {
        // What a forked child has is its parent's.
        if std::process::id() == self.pid {
            // SAFETY: once, here.
            unsafe { ManuallyDrop::drop(&mut self.objects) };
        }
    }
}
