//! What is done with completions, and with events of the device.

use below::{Below as _, Buffer, Dest, Did, Next};
use rdma_sys as ibv;
use rdma_sys::{Event, ibv_wc};

use crate::joining::Managed;
use crate::joining::manager::Manager;
use crate::pair::{Pair, Posted};
use crate::rails::Found;
use crate::receives::RECEIVE;
use crate::state::{CALLS, EVENTS, Objects, Verbs};
use crate::status::{is_own_memory, text};
use crate::used::{Used, end_request};

/// So many completions at once may be half of the receives.
const MANY: usize = 16;

/// A message that has come: the place that it is in, its length, and the queue pair that it came by, which is
/// none that a peer has where that is gone.
struct Message {
    place: u32,
    len: usize,
    by: Dest,
}

/// Whether a completion is that of a receive, with a message in its place.
#[inline(always)]
fn is_message(wc: &ibv_wc) -> bool {
    wc.wr_id & RECEIVE != 0 && wc.status == ibv::IBV_WC_SUCCESS && wc.opcode != ibv::IBV_WC_RECV_RDMA_WITH_IMM
}

/// Whether what connects a queue pair uses it.
fn is_calling(manager: &Option<Manager>, number: u32) -> bool {
    manager.as_ref().is_some_and(|manager| manager.is_calling(number))
}

impl Verbs {
    /// Takes completions off the queue; how many there were.
    pub(crate) fn read(&mut self) -> usize {
        if self.objects.pairs.has_closing() && self.may_close() {
            self.see_to_closing();
        }
        let n = self.take_completions();
        self.take(n);
        n + self.read_others(n)
    }

    /// [`Below::poll_next`](below::Below::poll_next). A message whose completion is alone in the queue is
    /// found by one call, and is in no list.
    #[inline(always)]
    pub(crate) fn read_next(&mut self) -> Next {
        if !self.did.is_empty() || self.has_chores() {
            return Next::Other;
        }
        let n = self.take_completions();
        if n == 0 {
            return self.found_none();
        }
        let wc = self.found.0[0];
        if n == 1 && is_message(&wc) {
            let Message { place, len, by } = self.message(&wc);
            return Next::Came(Buffer(place), len, Some(by));
        }
        self.take(n);
        self.found_none()
    }

    /// Nothing has happened, unless there is something to report.
    #[inline(always)]
    fn found_none(&self) -> Next {
        if self.did.is_empty() && self.dead.is_none() { Next::Nothing } else { Next::Other }
    }

    /// Whether a poll has more to do than to take completions of peers' messages and of requests to them.
    #[inline(always)]
    fn has_chores(&self) -> bool {
        let Objects { pairs, manager, .. } = &*self.objects;
        pairs.has_closing() || manager.as_ref().is_some_and(Manager::is_pending) || !self.rails.is_empty()
    }

    /// Does what follows from the completions that were taken last.
    #[inline(never)]
    fn take(&mut self, n: usize) {
        for at in 0..n {
            let wc = self.found.0[at];
            if is_message(&wc) {
                let Message { place, len, by } = self.message(&wc);
                self.did.push_back(Did::Came(Buffer(place), len, Some(by)));
            } else if wc.wr_id & RECEIVE != 0 {
                self.received_none(&wc, wc.wr_id as u32);
            } else {
                self.over(&wc);
            }
        }
    }

    /// Takes completions off the queue, and nothing else of them; how many there are.
    #[inline(always)]
    fn take_completions(&mut self) -> usize {
        let n = match self.objects.cq.poll(&mut self.found.0) {
            Ok(n) => n,
            Err(e) => {
                self.dead = Some(e.to_string());
                return 0;
            }
        };
        if n >= MANY {
            self.note_many(n);
        }
        self.idle = if n == 0 { self.idle + 1 } else { 0 };
        if self.idle == EVENTS {
            self.idle = 0;
            self.read_events();
        }
        n
    }

    /// Many completions have come at once: how many of them are receives says whether there are too few.
    #[cold]
    fn note_many(&mut self, n: usize) {
        let came = self.found.0[..n].iter().filter(|wc| wc.wr_id & RECEIVE != 0).count();
        let Objects { receives, pairs, seconds, .. } = &mut *self.objects;
        receives.note_came(came, pairs.len().saturating_sub(seconds.len()));
    }

    /// Takes what is in no completion of this queue, which had `n` of them; how much there was.
    fn read_others(&mut self, n: usize) -> usize {
        let asks = n == 0 && self.objects.manager.as_ref().is_some_and(Manager::is_pending);
        if self.dead.is_some() {
            0
        } else if asks && self.idle % CALLS == 0 {
            usize::from(Managed(self).read())
        } else if self.rails.is_empty() {
            0
        } else {
            self.read_rails()
        }
    }

    /// Takes completions of rails; how many there were.
    pub(crate) fn read_rails(&mut self) -> usize {
        let n = self.rails.read();
        self.take_rails();
        n
    }

    /// Takes what rails report.
    pub(crate) fn take_rails(&mut self) {
        while let Some(found) = self.rails.next_found() {
            match found {
                Found::Did(did) => self.did.push_back(did),
                Found::Failed(first, why) => self.fail(first, None, why),
                Found::Says(first) => {
                    let who = self.objects.pairs.get(first).and_then(Pair::newest);
                    self.did.extend(who.map(Did::Announces));
                }
            }
        }
    }

    /// A request is over.
    fn over(&mut self, wc: &ibv_wc) {
        // A queue pair that is gone has returned what it had.
        let Some((number, request)) = self.objects.pairs.of_id(wc.wr_id) else { return };
        let Objects { windows, pairs, sends, bounces, registered, .. } = &mut *self.objects;
        let Some(pair) = pairs.get_mut(number) else { return };
        let before = pair.in_use();
        let is_done = wc.status == ibv::IBV_WC_SUCCESS;
        let is_first = pair.state.is_open();
        let is_own_memory = is_own_memory(wc.status, is_first);
        let did = &mut self.did;
        let mut used =
            Used { windows, sends, bounces, registered, did, pair: number, is_own_memory, has_lost: false };
        let own = pair.complete(request, is_done, |one, is_done| used.free(one, is_done));
        let has_lost = used.has_lost;
        self.credits += before - pair.in_use();
        if let Some(own) = own.filter(|_| self.sizes.repeats) {
            self.end_late(number, Some(&own).filter(|_| is_done));
        }
        if let Some(own) = own.filter(|_| !is_done) {
            Managed(self).read();
            self.fail(number, own.who, text(wc.status));
        } else if has_lost {
            self.fail(number, None, "a client has taken back the memory of an access".into());
        }
    }

    /// A request has completed, of a driver that repeats them: memory of the one before is used no more.
    fn end_late(&mut self, number: u32, done: Option<&Posted>) {
        let Objects { pairs, registered, .. } = &mut *self.objects;
        let id = pairs.id(number);
        let Some(pair) = pairs.get_mut(number) else { return };
        pair.take_late(done).into_iter().for_each(|late| end_request(registered, late));
        // Without a later request its own would stay registered.
        if pair.has_late() && pair.in_use() == 0 && self.credits > 0 {
            let is_posted = pair.follow(id);
            self.credits -= usize::from(is_posted);
            if !is_posted && pair.delays {
                self.fail(number, None, "no request can be posted behind an access".into());
            }
        }
    }

    /// The message of a completion that is of one.
    #[inline(always)]
    fn message(&mut self, wc: &ibv_wc) -> Message {
        let place = wc.wr_id as u32;
        self.note_received(place);
        let by = self.objects.pairs.of_qpn(wc.qp_num).map_or(u64::MAX, u64::from);
        Message { place, len: (wc.byte_len as usize).min(self.sizes.most), by: Dest(by) }
    }

    /// A receive is over, which its queue pair has no more, if it is of one.
    #[inline(always)]
    fn note_received(&mut self, place: u32) {
        let Objects { receives, pairs, .. } = &mut *self.objects;
        if receives.srq().is_none() {
            match receives.owner(place).and_then(|number| pairs.get_mut(number)) {
                Some(pair) => pair.receives = pair.receives.saturating_sub(1),
                None => receives.note_late(place),
            }
        }
    }

    /// A receive is over, without a message.
    #[cold]
    fn received_none(&mut self, wc: &ibv_wc, place: u32) {
        self.note_received(place);
        if wc.status == ibv::IBV_WC_SUCCESS {
            return self.written(wc, place);
        }
        if let Some(number) = self.objects.pairs.of_qpn(wc.qp_num) {
            // What was sent has its own completions; without any, the next send finds out. The end of its
            // connection says more than what is flushed for that.
            Managed(self).read();
            self.fail(number, None, text(wc.status));
        }
        // To the shared queue; a queue pair in error takes none.
        if !self.objects.receives.give_back_shared(place) {
            self.objects.receives.give_back_own(place, None);
        }
    }

    /// A place that is not of a shared queue has no message any more.
    #[inline(never)]
    pub(crate) fn give_back_own(&mut self, place: u32) {
        let Objects { receives, pairs, .. } = &mut *self.objects;
        let pair = receives.owner(place).and_then(|number| pairs.get_mut(number));
        match pair.filter(|pair| pair.state.is_open()) {
            Some(pair) => pair.receives += u32::from(receives.give_back_own(place, Some(&pair.qp))),
            None => {
                receives.give_back_own(place, None);
            }
        }
    }

    /// A peer has written with data, which has taken a receive, and left its place as it was.
    fn written(&mut self, wc: &ibv_wc, place: u32) {
        // SAFETY: of this opcode the completion has data, and any bits are some.
        let data = u32::from_be(unsafe { wc.anon1.imm_data });
        let number = self.objects.pairs.of_qpn(wc.qp_num);
        let pair = number.and_then(|number| self.objects.pairs.get(number));
        if let Some(who) = pair.and_then(Pair::newest) {
            return self.did.push_back(Did::Written(Buffer(place), who, data, wc.byte_len as usize));
        }
        self.give_back(Buffer(place));
        if let Some(number) = number {
            self.fail(number, None, "it has written with data before it was sent a key".into());
        }
    }

    /// Destroys queue pairs that are closed, and whose requests have completed.
    #[cold]
    fn see_to_closing(&mut self) {
        self.read_events();
        loop {
            let Objects { pairs, receives, manager, .. } = &mut *self.objects;
            let may_go = |number| !is_calling(manager, number);
            let Some((number, pair)) = pairs.take_over(receives.srq().is_some(), may_go) else { return };
            self.retire(number, pair);
        }
    }

    /// Whether a queue pair that is closed waits for its completions, and not for what connects it.
    #[cold]
    pub(crate) fn may_close(&self) -> bool {
        let Objects { pairs, manager, .. } = &*self.objects;
        pairs.has_closing_of(|number| !is_calling(manager, number))
    }

    /// Takes events of the device.
    pub(crate) fn read_events(&mut self) {
        self.rails.read_events();
        Managed(self).read();
        loop {
            match self.objects.context.event() {
                Ok(Some(event)) => self.happened(event),
                Ok(None) => return,
                Err(e) => {
                    self.dead = Some(e.to_string());
                    return;
                }
            }
        }
    }

    #[cold]
    fn happened(&mut self, event: Event) {
        let name = self.objects.context.device().name();
        match event {
            Event::Qp { kind: ibv::IBV_EVENT_QP_LAST_WQE_REACHED, number } => {
                let pair = self.objects.pairs.of_qpn(number);
                if let Some(pair) = pair.and_then(|number| self.objects.pairs.get_mut(number)) {
                    pair.is_last = true;
                }
            }
            Event::Qp { kind, number } => {
                let is_error = [
                    ibv::IBV_EVENT_QP_FATAL,
                    ibv::IBV_EVENT_QP_REQ_ERR,
                    ibv::IBV_EVENT_QP_ACCESS_ERR,
                    ibv::IBV_EVENT_PATH_MIG_ERR,
                ];
                if let Some(number) = self.objects.pairs.of_qpn(number).filter(|_| is_error.contains(&kind)) {
                    self.fail(number, None, format!("the device reports error {kind} of its queue pair"));
                }
            }
            Event::Cq { .. } => self.dead = Some(format!("{name}: its completion queue has overrun")),
            Event::Srq { kind: ibv::IBV_EVENT_SRQ_ERR, .. } => {
                self.dead = Some(format!("{name}: its shared receive queue has failed"));
            }
            Event::Srq { .. } => {}
            Event::Port { kind, port } => match kind {
                ibv::IBV_EVENT_PORT_ERR if port == self.route.port.number => {
                    self.route.port.attr.state = ibv::IBV_PORT_DOWN;
                    let seconds = self.sizes.patience.longest().as_secs();
                    log::warn!("{name}: port {port} is down; peers are lost if it is not up in {seconds} s");
                }
                ibv::IBV_EVENT_PORT_ACTIVE => {
                    if port == self.route.port.number {
                        self.route.port.attr.state = ibv::IBV_PORT_ACTIVE;
                    }
                    log::info!("{name}: port {port} is up");
                }
                _ => log::debug!("{name}: event {kind} of port {port}"),
            },
            Event::Device { .. } => self.dead = Some(format!("{name}: the device is gone")),
        }
    }

    /// Asks for an event at the next completion. Whether it is safe to sleep.
    pub(crate) fn arm_to_sleep(&mut self) -> bool {
        self.read_events();
        self.objects.receives.post_rest();
        let is_armed = self.rails.arm_to_sleep();
        self.take_rails();
        if !is_armed || !self.did.is_empty() || self.dead.is_some() {
            return false;
        }
        // What has woken before is not to wake again.
        while let Ok(Some(_)) = self.objects.channel.event() {}
        if let Err(e) = self.objects.cq.arm(false) {
            self.dead = Some(e.to_string());
            return false;
        }
        // A completion that came before does not wake.
        while self.dead.is_none() && self.read() > 0 {}
        // A connection that was made meanwhile has what waits for it go on.
        let has_news = self.objects.manager.as_mut().is_some_and(Manager::take_news);
        !has_news && self.did.is_empty() && self.dead.is_none()
    }
}
