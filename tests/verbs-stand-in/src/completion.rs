//! Completions on their way to a queue, and the events that they raise.

use std::time::{Duration, Instant};

use rdma_sys as ibv;

use crate::objects::{Armed, Frees, Plain};
use crate::settings::settings;
use crate::state::{State, signal};

impl State {
    /// A completion of a queue pair. Those of one queue pair stay in their order.
    pub fn complete(&mut self, cq: u32, plain: Plain, frees: Frees, solicited: bool) {
        let settings = settings();
        if settings.delay_us == 0 {
            self.deliver(cq, plain, frees, solicited);
            return;
        }
        let times = if settings.reorder.is_some() { 1 + self.random() % 4 } else { 1 };
        let mut due = Instant::now() + Duration::from_micros(settings.delay_us * times);
        if let Some(qp) = self.qps.get_mut(&plain.qpn) {
            due = due.max(qp.due.unwrap_or(due));
            qp.due = Some(due);
        }
        if let Some(cq) = self.cqs.get_mut(&cq) {
            cq.delayed.push((due, plain, frees, solicited));
        }
    }

    /// Delivers what is due, and says when the next is.
    pub fn deliver_due(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let mut next = None;
        let numbers: Vec<u32> = self.cqs.keys().copied().collect();
        for number in numbers {
            let Some(cq) = self.cqs.get_mut(&number) else { continue };
            // Stable: completions of one queue pair that are due at once stay in order.
            cq.delayed.sort_by_key(|(due, ..)| *due);
            let at = cq.delayed.partition_point(|(due, ..)| *due <= now);
            let due: Vec<_> = cq.delayed.drain(..at).collect();
            let first = cq.delayed.first().map(|(due, ..)| *due);
            next = [next, first].into_iter().flatten().min();
            due.into_iter()
                .for_each(|(_, plain, frees, solicited)| self.deliver(number, plain, frees, solicited));
        }
        next
    }

    fn deliver(&mut self, number: u32, plain: Plain, frees: Frees, solicited: bool) {
        let Some(cq) = self.cqs.get_mut(&number) else { return };
        if cq.overrun {
            return;
        }
        if cq.ready.len() == cq.entries {
            cq.overrun = true;
            self.overrun(number);
            return;
        }
        cq.ready.push_back((plain, frees));
        let fires = match cq.armed {
            Some(Armed::Any) => true,
            Some(Armed::Solicited) => solicited || plain.status != ibv::IBV_WC_SUCCESS,
            None => false,
        };
        if fires {
            cq.armed = None;
            if let Some(channel) = cq.channel.and_then(|channel| self.channels.get_mut(&channel)) {
                channel.waiting.push_back(number);
                signal(&channel.fd);
            }
        }
    }

    /// A queue that overran is dead, and so is what uses it.
    fn overrun(&mut self, number: u32) {
        let Some(raw) = self.cqs.get(&number).map(|cq| cq.raw) else { return };
        let context = unsafe { (*(raw as *const ibv::ibv_cq)).context } as usize;
        self.raise(context, ibv::IBV_EVENT_CQ_ERR, raw);
        let uses = |(qpn, qp): (&u32, &crate::objects::Qp)| {
            (qp.send_cq == number || qp.recv_cq == number).then_some(*qpn)
        };
        let broken: Vec<u32> = self.qps.iter().filter_map(uses).collect();
        for qpn in broken {
            self.raise_of_qp(qpn, ibv::IBV_EVENT_QP_FATAL);
            self.flush(qpn);
        }
    }
}
