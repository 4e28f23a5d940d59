//! A [`TcpLink`], as the parts that it is made of: each owns its state. Opening it, and its end.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

use hmem::Span;
use link_api::{Connect, Event, Frame, Link as _, PeerId, PollFrame, Refused, Sent};

use ipc::Ports;

use crate::name::{Name, Port};
use crate::tcp::connections::Connections;
use crate::tcp::cork::Cork;
use crate::tcp::farewell;
use crate::tcp::looks::Looks;
use crate::tcp::meet::agreement::Agreements;
use crate::tcp::meet::calls::Calls;
use crate::tcp::meet::listening::{self, Listening};
use crate::tcp::meet::meeting::Meeting;
use crate::tcp::meet::own::Own;
use crate::tcp::meet::railed::Railed;
use crate::tcp::options::TcpOptions;
use crate::tcp::peers::Peers;
use crate::tcp::receiving::{Held, Receiving};
use crate::tcp::reports::Reports;
use crate::tcp::service::Service;
use crate::tcp::sleep::Sleep;
use crate::tcp::ticks::Ticks;
use crate::tcp::to_self::ToSelf;

/// One endpoint's connections to all others.
#[derive(Debug)]
pub struct TcpLink {
    pub(super) meeting: Meeting,
    pub(super) to_self: ToSelf,
    /// Dropped last: the name is of others once nothing listens under it any more.
    pub(super) conns: Connections,
}

impl TcpLink {
    /// Opens an endpoint under this name.
    pub fn bind(bind: std::net::SocketAddr, options: TcpOptions) -> io::Result<TcpLink> {
        let (name, ()) = Name::claim(Some(bind), (Port::Listens, Ports::default()), |_| Ok(()))?;
        let mut link = TcpLink::open(&name, options)?;
        link.conns.own.keep_name(name);
        Ok(link)
    }

    /// Opens an endpoint whose name was claimed.
    pub(crate) fn open(name: &Name, options: TcpOptions) -> io::Result<TcpLink> {
        let sleep = Sleep::new()?;
        let ticks = Ticks::new(sleep.poller())?;
        let options = TcpOptions { rails: options.rails.clamp(1, wire::session::MOST_RAILS), ..options };
        let (further, rails_at) = listening::for_rails(name, &options);
        let listening = Listening::new(name, further, &options, sleep.poller())?;
        farewell::stay_at_exit(options.linger);
        let meeting = Meeting::new(listening, &options);
        let conns = Connections {
            peers: Peers::default(),
            reports: Reports::default(),
            receiving: Receiving::default(),
            looks: Looks::new(),
            cork: Cork::new(options.gathers),
            sleep,
            ticks,
            agreed: Agreements::new(name.addr()),
            railed: Railed::new(rails_at),
            options,
            own: Own::new(name)?,
        };
        Ok(TcpLink { meeting, to_self: ToSelf::default(), conns })
    }

    /// Whether buffers of this link count there.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn counts_in(&mut self, budget: &link_api::Budget) -> bool {
        let before = budget.used();
        let _buffer = self.conns.receiving.pool().take(true);
        budget.used() > before
    }

    /// The socket of the connection to a peer, for diagnosis.
    pub fn socket(&self, peer: PeerId) -> Option<BorrowedFd<'_>> {
        self.conns.peers[peer].channel.as_ref().map(|channel| channel.fd().as_fd())
    }

    /// Connections that have not shown yet that they have the key, for diagnosis.
    pub fn guests(&self) -> usize {
        self.meeting.guests.len()
    }

    /// Does what is to be done without a caller: to send what found no room, to let peers in. A later
    /// [`FrameLink::poll`](link_api::FrameLink::poll) reports what comes of it, and
    /// [`SleepLink::wait_fd`](link_api::SleepLink::wait_fd) is readable if there is something.
    pub fn progress(&mut self) {
        let armed = self.conns.sleep.begin();
        self.service().poll_all();
        if armed && self.has_something(false) {
            self.conns.sleep.wake();
        } else {
            self.conns.sleep.set_armed(armed);
        }
    }

    /// Whether there is something to poll for, or room for a frame that found none: the latter is reported
    /// once, if `once`.
    pub(super) fn has_something(&mut self, once: bool) -> bool {
        !self.to_self.is_empty() || self.conns.has_something(once)
    }

    pub(super) fn calls(&mut self) -> Calls<'_> {
        Calls { conns: &mut self.conns, meeting: &mut self.meeting }
    }

    pub(super) fn service(&mut self) -> Service<'_> {
        Service { conns: &mut self.conns, meeting: &mut self.meeting }
    }

    pub(super) fn send_own(
        &mut self,
        head: &[u8],
        body: &[Span],
        off: usize,
        len: usize,
    ) -> Result<Sent, Refused> {
        self.to_self.send(head, body, off, len)?;
        // No descriptor shows it.
        self.conns.sleep.disarm();
        Ok(Sent::Done)
    }

    fn next_own(&mut self) -> Option<Event> {
        let bytes = self.to_self.next()?;
        let (len, addr) = (bytes.len(), self.conns.own.addr());
        self.conns.receiving.hold(Held::Own(bytes));
        Some(Event::Frame(Frame { from: self.conns.peers.named(&addr), len, slot: 0 }))
    }

    /// A send to a peer without a channel: why nothing can be sent yet, or at all.
    #[cold]
    pub(super) fn send_unconnected(&mut self, to: PeerId) -> Refused {
        let at = &mut self.conns.peers[to];
        if let Some(why) = at.answers.take_owed(at.met) {
            return Refused::Gone(why);
        }
        match self.connect(to, Connect::Now) {
            Ok(()) | Err(Refused::Busy) => {
                self.conns.peers[to].answers.keep_send_waiting();
                Refused::Busy
            }
            Err(why) => {
                let at = &mut self.conns.peers[to];
                at.answers.end_send_waiting(at.met);
                why
            }
        }
    }

    /// [`Parting::Forgotten`].
    pub(super) fn forget(&mut self, peer: PeerId) {
        let addr = self.conns.peers[peer].addr;
        if self.conns.peers[peer].is_connected()
            || self.conns.peers.find(&addr) != Some(peer)
            || addr == self.conns.own.addr()
        {
            return;
        }
        self.calls().drop_call(peer);
        self.meeting.remove(peer);
        self.conns.reports.forget(peer);
        let at = &mut self.conns.peers[peer];
        (at.wants, at.expected) = (false, None);
        self.conns.peers.free(peer);
    }

    /// [`Parting::CutOff`].
    pub(super) fn disconnect(&mut self, peer: PeerId) {
        let at = &mut self.conns.peers[peer];
        let Some(mut channel) = at.channel.take() else { return };
        (at.cut, at.lost) = (true, channel.keeps());
        if let Some(op) = channel.lands() {
            self.conns.reports.push(Event::Done(op, false));
        }
        channel.end_rails(self.conns.sleep.poller());
        self.conns.sleep.poller().remove(channel.fd());
        ipc::socket::shutdown(channel.fd());
        self.conns.agreed.ended(&at.addr, channel.conn());
        self.conns.note_ready(peer);
    }

    pub(super) fn is_own(&self, peer: PeerId) -> bool {
        self.conns.peers[peer].addr == self.conns.own.addr()
    }

    /// The next frame that is whole in the buffer of its connection, where the next poll is of the connection
    /// that was used last alone, or of none. All else is left for a poll.
    pub(super) fn poll_frame_at_hand(&mut self) -> PollFrame {
        debug_assert!(self.conns.receiving.held().is_none(), "polled before the last frame was released");
        if self.conns.sleep.is_armed() || self.conns.reports.has_events() || !self.to_self.is_empty() {
            return PollFrame::Unknown;
        }
        self.conns.sleep.begin_poll();
        self.conns.next_at_hand()
    }

    /// The frame at hand was taken.
    #[inline(always)]
    pub(super) fn release_held(&mut self) {
        let Some(Held::Of(peer, len)) = self.conns.receiving.take_held() else { return };
        let Some(channel) = &mut self.conns.peers[peer].channel else { return };
        let current = channel.current();
        if channel.release(len) {
            self.conns.note_ready(peer);
        } else if current == 0 {
            channel.give_back(self.conns.receiving.pool());
        }
        if current != 0 {
            self.conns.sync_rails(peer);
        }
    }

    pub(super) fn next_event(&mut self) -> Option<Event> {
        if self.conns.reports.is_empty() && self.to_self.is_empty() {
            return None;
        }
        self.conns.reports.pop().or_else(|| self.next_own()).or_else(|| self.conns.next_ready())
    }
}

impl Drop for TcpLink {
    /// Waits until what was sent has come, within limits.
    fn drop(&mut self) {
        // A forked child only closes its copies, and what it shares with its parent goes on.
        if self.conns.own.is_forked() {
            return;
        }
        farewell::say(self.conns.own.addr(), self.conns.peers.as_mut_slice(), self.conns.options.linger);
        for (_, guest) in self.meeting.guests.iter() {
            ipc::socket::shutdown(&guest.fd);
        }
        self.meeting.promises.iter().for_each(|(_, promise)| ipc::socket::shutdown(&promise.fd));
        self.meeting.listening.shut_down();
    }
}
