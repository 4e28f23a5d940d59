//! A device's port, by which peers are reached: [`Below`] by libibverbs.

use std::mem::ManuallyDrop;
use std::net::IpAddr;
use std::os::fd::AsRawFd as _;

use below::{
    About, Below, Buffer, Dest, Did, Keys, Lease, Message, Next, NotSent, Offer, Piece, Poll, RailsWith,
    Remote, Stop, Usage, Waits,
};
use hmem::{Kind, Span};
use link_api::Way;
use rdma_sys::{Access, Error, Qp, Ready, ToRts, ibv_sge};

use crate::address::Address;
use crate::choice::patience;
use crate::joining::manager::Manager;
use crate::joining::{Joining, Managed};
use crate::pair::{Pair, Posted, State, Verb};
use crate::rails::first_of;
use crate::registered::{reaches, ways};
use crate::remote::Accesses;
use crate::state::{MOST_INLINE, Objects, Route, Sizes, Verbs};
use crate::used::{Used, end_registration, end_request};

/// A peer that has posted no receive is tried again for ever: the end of one is what the connection reports.
const RNR_RETRIES: u8 = 7;
/// The code of 0.16 ms, after which that is.
const RNR_TIMER: u8 = 8;

impl Verbs {
    /// A queue pair, to which receives may be posted.
    fn make_pair(objects: &mut Objects, route: &Route, sizes: Sizes, number: u32) -> Result<Pair, String> {
        let Objects { receives, cq, pd, .. } = objects;
        let text = |e: rdma_sys::Error| e.to_string();
        let qp = Qp::new(pd, cq, cq, receives.srq(), sizes.init_of(number)).map_err(text)?;
        let remote = Access::REMOTE_READ.and(Access::REMOTE_WRITE);
        let access = match (sizes.access > 0, sizes.atomics) {
            (false, _) => Access::LOCAL_READ,
            (true, false) => remote,
            (true, true) => remote.and(Access::REMOTE_ATOMIC),
        };
        match route.manager {
            Some(_) => qp.init_for_manager(access),
            None => qp.init(route.port.number, 0, access),
        }
        .map_err(text)?;
        let mut pair = Pair::new(qp, Address::draw_psn()?);
        pair.drains = route.manager.is_none();
        if receives.srq().is_none() {
            pair.receives = receives.lend(number, &pair.qp)?;
        }
        Ok(pair)
    }

    /// An eighth of the completions that sends may have.
    pub(crate) fn eighth(&self) -> usize {
        self.half / 4
    }

    /// Takes the credit of the request that is posted last to a queue pair, which that has until it is over;
    /// whether there are fewer queue pairs than `most`. The other credits are for what is under way.
    pub(crate) fn reserve(&mut self, most: usize) -> bool {
        let may = self.objects.pairs.len() < most && self.credits > 0;
        self.credits -= usize::from(may);
        may
    }

    /// Waits for the queue pairs that are closed, which takes 2 s at most: what is lacking may be what those
    /// have. Whether there were some.
    pub(crate) fn end_closing(&mut self) -> bool {
        let has_some = self.may_close();
        while self.may_close() && self.dead.is_none() {
            if self.read() == 0 {
                std::thread::yield_now();
            }
        }
        has_some
    }

    /// A queue pair for a peer, and its address.
    fn make_offer(&mut self) -> Result<Offer, String> {
        let nonce = self.route.manager.as_ref().map(|_| ipc::random()).transpose();
        let nonce = nonce.map_err(|e| format!("getrandom: {e}"))?;
        // An eighth is of what has no completion of its own, one is not for accesses, and one is.
        if !self.reserve(2 * self.half - 3 * self.eighth()) {
            return Err("its completion queue has no room for another peer".into());
        }
        if self.objects.receives.has_late() {
            while self.dead.is_none() && self.read() > 0 {}
            self.objects.receives.note_read();
        }
        let Verbs { objects, route, sizes, .. } = self;
        let mut pairs = std::mem::take(&mut objects.pairs);
        let made = pairs.add(|number| Verbs::make_pair(objects, route, *sizes, number));
        objects.pairs = pairs;
        let number = made.inspect_err(|_| self.credits += 1)?;
        let address = match nonce {
            Some(nonce) => Managed(self).announce(number, nonce)?,
            None => self.own_address(self.objects.pairs.get(number).ok_or("no queue pair")?).encode(),
        };
        Ok(Offer { number: number.into(), address })
    }

    pub(crate) fn own_address(&self, pair: &Pair) -> Address {
        let Route { port, gid, mtu, .. } = &self.route;
        let gid = gid.map_or([0; 16], |gid| gid.bytes);
        Address {
            gid,
            lid: port.attr.lid,
            mtu: *mtu,
            reads: self.sizes.serves,
            qpn: pair.qp.number(),
            psn: pair.psn,
        }
    }

    /// What a peer has announced, if it is a queue pair that this port may reach.
    pub(crate) fn far(&self, address: &[u8]) -> Result<Address, String> {
        let far = Address::decode(address).ok_or("what it announces is no queue pair")?;
        if self.route.global && far.gid == [0; 16] {
            return Err("it has no GID".into());
        }
        Ok(far)
    }

    /// Connects a queue pair that was announced.
    pub(crate) fn join(&mut self, number: u32, far: &Address) -> Result<(), Error> {
        let Route { port, gid, mtu, global, .. } = &self.route;
        let pair = self.objects.pairs.get_mut(number).filter(|pair| pair.state == State::Offered);
        let pair = pair.ok_or(Error::Refused { call: "its queue pair", errno: libc::ENOENT })?;
        let ready = Ready {
            qpn: far.qpn,
            psn: far.psn,
            mtu: far.mtu.min(*mtu).into(),
            gid: gid.filter(|_| *global).map(|own| (own, far.gid)),
            lid: far.lid,
            port: port.number,
            traffic_class: 0,
            service_level: 0,
            max_reads: self.sizes.serves,
            rnr_timer: RNR_TIMER,
        };
        let how = ToRts {
            psn: pair.psn,
            timeout: self.sizes.patience.code(),
            retries: patience::RETRIES,
            rnr_retries: RNR_RETRIES,
            max_reads: self.sizes.starts.min(far.reads),
        };
        pair.qp.ready_to_receive(&ready).and_then(|()| pair.qp.ready_to_send(&how))?;
        pair.state = State::Connected;
        Ok(())
    }

    /// A queue pair of a peer is in error, and with it the other one. It is reported with `who`, or with what
    /// the newest message is.
    pub(crate) fn fail(&mut self, number: u32, who: Option<u64>, why: String) {
        Managed(self).end(number);
        let Objects { pairs, seconds, .. } = &mut *self.objects;
        let (first, second) = seconds.both(number);
        if let Some(second) = second.and_then(|second| pairs.get_mut(second)) {
            second.fail(&why);
        }
        self.rails.fail(first, &why);
        let Some(pair) = pairs.get_mut(first) else { return };
        let is_new = pair.fail(&why);
        if let Some(who) = who.or(pair.newest()).filter(|_| is_new) {
            self.did.push_back(Did::Failed(who, why));
        }
    }

    /// Destroys a queue pair whose requests need not have completed. It accesses nothing then.
    pub(crate) fn stop_pair(&mut self, number: u32) {
        if let Some((pair, is_closed)) = self.objects.pairs.stop(number) {
            // The credit of the request that closes it, which was posted or has given it back.
            self.credits += usize::from(!is_closed);
            self.retire(number, pair);
        }
    }

    /// A queue pair is gone: what it had is this side's again.
    pub(crate) fn retire(&mut self, number: u32, mut pair: Pair) {
        self.objects.receives.end_owner(number, pair.receives);
        let (late, delayed) = (pair.take_late(None), pair.take_delayed());
        let (credits, posted) = pair.drop_posted();
        let Objects { windows, registered, .. } = &mut *self.objects;
        for lease in windows.end_pair(number) {
            end_registration(registered, lease);
        }
        // The device may use places until here.
        Managed(self).destroy(number, pair.qp);
        if let Some(domain) = self.objects.seconds.end_domain(number) {
            self.objects.bounces.end_domain(domain.id);
            self.objects.registered.device().end_domain(domain.id);
        }
        let Objects { windows, sends, bounces, registered, .. } = &mut *self.objects;
        late.into_iter().for_each(|number| end_request(registered, number));
        self.credits += credits;
        let (did, is_own_memory) = (&mut self.did, false);
        let mut used =
            Used { windows, sends, bounces, registered, did, pair: number, is_own_memory, has_lost: false };
        delayed.into_iter().for_each(|one| used.free(one, true));
        posted.for_each(|one| used.free(one, false));
    }

    /// A queue pair is not needed any more.
    pub(crate) fn part_one(&mut self, number: u32) {
        let Some(pair) = self.objects.pairs.get_mut(number) else {
            return self.objects.pairs.release(number);
        };
        match pair.state {
            State::Closing(_) => {}
            // Nothing was posted that could complete.
            State::Offered => {
                if let Some(pair) = self.objects.pairs.remove(number) {
                    self.credits += 1;
                    self.retire(number, pair);
                }
            }
            // What joins may be connected, which was not taken note of yet.
            State::Joining | State::Connected | State::Failed(_) => {
                let id = self.objects.pairs.id(number);
                if let Some(pair) = self.objects.pairs.get_mut(number) {
                    self.credits += usize::from(!pair.close(id));
                }
                self.objects.pairs.note_closing(number);
                Managed(self).end(number);
            }
        }
    }

    /// What ids of requests to a peer begin with, if messages go to it.
    #[inline]
    pub(crate) fn connected(&self, number: u32) -> Result<u64, NotSent> {
        match self.objects.pairs.get(number).map(|pair| &pair.state) {
            Some(State::Connected) => Ok(self.objects.pairs.id(number)),
            _ => Err(self.unconnected(number)),
        }
    }

    /// Why a message does not go to a peer, to which this side connects if it is to.
    #[cold]
    fn begin(&mut self, number: u32) -> NotSent {
        match self.unconnected(number) {
            NotSent::Busy => Managed(self).begin(number).map_or_else(NotSent::Error, |()| NotSent::Busy),
            why => why,
        }
    }

    /// Why no messages go to a peer.
    #[cold]
    fn unconnected(&self, number: u32) -> NotSent {
        match self.objects.pairs.get(number).map(|pair| &pair.state) {
            Some(State::Failed(why)) => NotSent::Error(why.clone()),
            Some(State::Joining) => NotSent::Busy,
            _ => NotSent::Error("its queue pair is closed".into()),
        }
    }
}

impl Remote for Verbs {
    fn reaches(&self, kind: Kind, usage: Usage) -> bool {
        reaches(kind, || self.objects.registered.may(kind, usage.is_by_peers()))
    }

    fn reaches_memory(&self, span: &Span, usage: Usage) -> bool {
        reaches(span.kind(), || self.objects.registered.may_take(span, usage.is_by_peers()))
    }

    fn registered(&self) -> String {
        let ways = Some(ways(&self.objects.registered)).filter(|text| !text.is_empty());
        ways.into_iter().chain(self.rails.describe()).collect::<Vec<_>>().join(", ")
    }

    fn lend(&mut self, to: Dest, span: Span, way: Way) -> Option<Lease> {
        Accesses(self).lend(to, span, way)
    }

    fn publish(&mut self, span: Span, read: bool, write: bool) -> Option<Lease> {
        Accesses(self).publish(span, read, write)
    }

    fn admit(&mut self, to: Dest, lease: &Lease, read: bool, write: bool) -> Option<u64> {
        Accesses(self).admit(to, lease.number, (read, write))
    }

    fn begin_rails(&mut self, to: Dest, begins: bool) {
        self.rails.begin(first_of(to), begins);
    }

    fn rails(&self, to: Dest) -> RailsWith {
        self.rails.with(first_of(to))
    }

    fn stripe(&mut self, to: Dest, lease: u64, span: Span, may: (bool, bool), published: bool) -> Keys {
        Accesses(self).stripe(to, lease, span, may, published)
    }

    fn second(&mut self, to: Dest) -> Option<Vec<u8>> {
        self.rails.next_said(first_of(to)).or_else(|| Joining(self).announce(first_of(to)))
    }

    fn awaits_second(&self, to: Dest) -> bool {
        self.objects.seconds.is_awaited(first_of(to)) || self.rails.is_awaited(first_of(to))
    }

    fn join_second(&mut self, to: Dest, said: &[u8]) -> Result<Option<Vec<u8>>, String> {
        if said.is_empty() || said.len() == Address::LEN {
            return Joining(self).join(first_of(to), said);
        }
        self.rails.hear(first_of(to), said)?;
        self.take_rails();
        Ok(self.rails.next_said(first_of(to)))
    }

    fn end_lease(&mut self, number: u64, is_known: bool) -> bool {
        Accesses(self).end_lease(number, is_known)
    }

    fn access(&mut self, who: u64, piece: &Piece) -> Result<(), NotSent> {
        Accesses(self).access(who, piece)
    }

    fn stop(&mut self, what: Stop) -> bool {
        Accesses(self).stop(what)
    }
}

impl Below for Verbs {
    const LINK: &'static str = "verbs";
    const CONNECTS: bool = true;
    const SECONDS: bool = true;

    fn about(&self) -> About<'_> {
        About {
            name: "verbs",
            detail: &self.detail,
            dialect: (2, self.route.sort()),
            address: &[],
            most: self.sizes.most,
            window: self.sizes.window,
            reads: Some(self.sizes.access).filter(|most| *most > 0),
            writes: self.sizes.access > 0,
            publishes: self.sizes.access > 0,
            data: self.sizes.access > 0,
            atomics: self.sizes.atomics,
            rails: !self.rails.is_empty(),
        }
    }

    fn offer(&mut self) -> Result<Offer, String> {
        let offer = self.make_offer();
        if offer.is_err() && self.end_closing() { self.make_offer() } else { offer }
    }

    fn withdraw(&mut self, offer: u64) {
        self.part(Dest(offer));
    }

    fn connect(&mut self, offer: u64, address: &[u8], peer: (IpAddr, bool)) -> Result<Dest, String> {
        if self.route.manager.is_some() {
            return Managed(self).connect(offer as u32, address, peer).map(|()| Dest(offer));
        }
        let far = self.far(address)?;
        self.join(offer as u32, &far).map_err(|e| e.to_string())?;
        Ok(Dest(offer))
    }

    fn meet(&mut self, _address: &[u8]) -> Result<Dest, String> {
        Err("a queue pair has to be connected".into())
    }

    fn part(&mut self, dest: Dest) {
        let number = dest.0 as u32;
        if let Err((call, errno)) = self.rails.part(number) {
            self.dead = Some(format!("{call}: errno {errno}: a registration of a rail cannot be ended"));
        }
        Joining(self).part(number);
        self.part_one(number);
    }

    #[inline(always)]
    fn send(&mut self, to: Dest, message: &Message<'_>) -> Result<(), NotSent> {
        let number = to.0 as u32;
        // What has no completion of its own has its credit until a later one completes, which may never be:
        // an eighth of them.
        let is_scarce = self.credits <= 2 * self.half - self.eighth();
        let Objects { pairs, sends, .. } = &mut *self.objects;
        let Some((pair, id)) =
            pairs.with_id(number).filter(|(pair, _)| matches!(pair.state, State::Connected))
        else {
            return Err(self.begin(number));
        };
        if !pair.has_slot() || self.credits == 0 {
            return Err(NotSent::Busy);
        }
        let total = message.total();
        let who = Some(message.who);
        if total <= pair.most_inline().min(MOST_INLINE) {
            let mut room;
            let bytes = match message.whole() {
                Some(bytes) => bytes,
                None => {
                    room = [0; MOST_INLINE];
                    if !message.copy_to(&mut room[..total]) {
                        return Err(NotSent::Fault);
                    }
                    &room[..total]
                }
            };
            // What is alone has to be known where requests are repeated.
            let signal = pair.is_signal_due() || is_scarce || self.sizes.repeats;
            let bytes = ibv_sge { addr: bytes.as_ptr() as u64, length: total as u32, lkey: 0 };
            // SAFETY: inline, of memory that is there during the call.
            unsafe { pair.post(id, Verb::Send, bytes, (true, signal), Posted { who, ..Posted::default() }) }?;
        } else {
            let (place, bytes) = sends.fill(message)?;
            let posted = Posted { who, place: Some(place), ..Posted::default() };
            // SAFETY: a place that nothing has, which is taken here until the request has completed.
            unsafe { pair.post(id, Verb::Send, bytes, (false, true), posted) }?;
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
        let next = match how {
            Poll::Taken => return None,
            Poll::Soon => {
                self.read();
                self.did.pop_front()
            }
            Poll::All => {
                while self.dead.is_none() && self.read() > 0 && self.did.is_empty() {}
                self.did.pop_front()
            }
        };
        if next.is_some() || self.dead.is_none() { next } else { self.dead.take().map(Did::Dead) }
    }

    #[inline(always)]
    fn poll_next(&mut self) -> Next {
        self.read_next()
    }

    #[inline(always)]
    fn has_taken(&self) -> bool {
        !self.did.is_empty()
    }

    #[inline(always)]
    fn bytes(&self, buffer: Buffer) -> &[u8] {
        self.objects.receives.bytes(buffer.0)
    }

    #[inline(always)]
    fn give_back(&mut self, buffer: Buffer) {
        if !self.objects.receives.give_back_shared(buffer.0) {
            self.give_back_own(buffer.0);
        }
    }

    fn try_wait(&mut self) -> bool {
        self.arm_to_sleep()
    }

    fn waits(&self) -> Waits {
        let completions = || self.objects.channel.fd().as_raw_fd();
        let managed = self.objects.manager.as_ref().map(Manager::fd);
        let own = || (managed.unwrap_or_else(completions), self.objects.context.async_fd().as_raw_fd());
        let (own, lender) = self.rails.waits().unwrap_or_else(own);
        let lends_unseen = self.objects.pairs.has_closing() || self.rails.has_closing();
        Waits { own: Some(own), lender: Some(lender), lends_unseen }
    }
}

impl Drop for Verbs {
    fn drop(&mut self) {
        // What a forked child has is its parent's.
        if std::process::id() == self.pid {
            Managed(self).leave();
            // SAFETY: once, here.
            unsafe { ManuallyDrop::drop(&mut self.objects) };
        }
    }
}
