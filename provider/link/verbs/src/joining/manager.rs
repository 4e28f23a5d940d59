//! What connects queue pairs of an iWARP device: librdmacm, at an address of the device.
//!
//! A queue pair is announced by that address, by the port that the endpoint listens at there, and by a nonce.
//! The address has to be that of the peer's endpoint: this end connects nowhere else. The end that begins
//! connects when it has something to send, which is after the other one has agreed, and sends the nonce of
//! that, which is a proof that the two have met. The other one accepts a request that has a nonce of its own,
//! of a peer that it has agreed with, and answers with the nonce of the first. A request with another nonce
//! is rejected, and an answer with another one ends the connection: neither moves a queue pair on.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd as _, RawFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use below::Fd;
use ipc::{Bell, Poller};
use rdma_sys::{Channel, CmChannel, CmEvent, CmId, Device, Error, Qp, cm_bindings as cm};

use super::address::Address;
use super::connecting::{Connecting, Nonce, Said, SharedBell, end_called, lock};
use super::crew::Crew;
use super::place::Place;

/// How long the device and the way to an address may take to be found.
const PATIENCE: Duration = Duration::from_secs(5);

/// How far a queue pair is.
#[derive(Debug)]
enum Stage {
    /// It was announced.
    Announced,
    /// The peer's is known. This end is to begin; or it awaits the peer's request.
    ToBegin(Address),
    Awaits(Address),
    /// This end finds the device and the way to the peer's.
    Finds(CmId, Address),
    /// It connects.
    Connects(Connecting),
    /// It has connected to that host, and awaits the answer, or has it.
    Called(CmId, IpAddr),
    /// It has accepted.
    Accepted(CmId),
}

/// A queue pair that is connected, or is to be.
#[derive(Debug)]
struct Call {
    qpn: u32,
    own: Nonce,
    stage: Stage,
    /// Messages go both ways.
    is_up: bool,
    /// It is not to be connected any more, and is here until rdma_connect has returned.
    is_left: bool,
}

/// What connections are made with.
#[derive(Debug)]
struct Means {
    device: Device,
    /// How many reads of a peer's the device serves at once, and how many it starts.
    reads: (u8, u8),
    bell: SharedBell,
    crew: Arc<Crew>,
}

fn text(e: Error) -> String {
    e.to_string()
}

/// An event by which a connection is not made, or ends.
fn event_text(kind: u32, status: i32) -> String {
    let name = match kind {
        cm::RDMA_CM_EVENT_REJECTED => return "the peer has rejected the connection".into(),
        cm::RDMA_CM_EVENT_ADDR_ERROR => "RDMA_CM_EVENT_ADDR_ERROR",
        cm::RDMA_CM_EVENT_ROUTE_ERROR => "RDMA_CM_EVENT_ROUTE_ERROR",
        cm::RDMA_CM_EVENT_CONNECT_ERROR => "RDMA_CM_EVENT_CONNECT_ERROR",
        cm::RDMA_CM_EVENT_UNREACHABLE => "RDMA_CM_EVENT_UNREACHABLE",
        cm::RDMA_CM_EVENT_DEVICE_REMOVAL => "RDMA_CM_EVENT_DEVICE_REMOVAL",
        kind => return format!("librdmacm reports event {kind} of its connection, status {status}"),
    };
    let why = std::io::Error::from_raw_os_error(status.saturating_abs());
    format!("librdmacm reports {name} of its connection ({why})")
}

impl Call {
    /// The key of the connection that events name.
    fn key(&self) -> Option<usize> {
        match &self.stage {
            Stage::Announced | Stage::ToBegin(_) | Stage::Awaits(_) => None,
            Stage::Finds(id, _) | Stage::Called(id, _) | Stage::Accepted(id) => Some(id.key()),
            Stage::Connects(connecting) => Some(connecting.key()),
        }
    }

    fn is_calling(&self) -> bool {
        matches!(self.stage, Stage::Connects(_))
    }

    /// Whether its connection is requested, or is about to be, and not answered.
    fn is_unanswered(&self) -> bool {
        self.is_calling() || matches!(self.stage, Stage::Called(..)) && !self.is_up
    }

    /// Whether events of it are awaited.
    fn is_pending(&self) -> bool {
        let is_agreed = !matches!(self.stage, Stage::Announced);
        self.is_calling() || !self.is_up && is_agreed
    }

    fn said(&self, far: &Address, (serves, starts): (u8, u8)) -> Said {
        Said { qpn: self.qpn, nonce: far.nonce, serves, starts: starts.min(far.reads) }
    }

    /// Answers a request with the peer's nonce.
    fn accept(&mut self, id: CmId, far: &Address, means: &Means) -> Result<(), String> {
        id.accept(&self.said(far, means.reads).as_cm()).map_err(text)?;
        self.stage = Stage::Accepted(id);
        Ok(())
    }

    fn connect(&mut self, means: &Means) -> Result<(), String> {
        if let Stage::Finds(id, far) = std::mem::replace(&mut self.stage, Stage::Announced) {
            let said = self.said(&far, means.reads);
            self.stage =
                Stage::Connects(Connecting::begin(id, (far.at.ip(), said), &means.bell, &means.crew)?);
        }
        Ok(())
    }

    /// Goes on with what this end has begun, of which this has happened.
    fn go_on(&mut self, event: CmEvent, means: &Means) -> Result<(), String> {
        match (event, &self.stage) {
            // The queue pair's number is one of its own device's.
            (CmEvent::Resolved(_), Stage::Finds(id, _)) if !id.is_of(&means.device) => {
                let found = id.device_name().unwrap_or_else(|| "no device".into());
                Err(format!(
                    "librdmacm finds {found} by the endpoint's address, which is not that endpoint's"
                ))
            }
            (CmEvent::Resolved(_), Stage::Finds(id, _)) => id.resolve_route(PATIENCE).map_err(text),
            (CmEvent::Routed(_), Stage::Finds(..)) => self.connect(means),
            // An answer without this end's nonce is not the peer's.
            (CmEvent::Established(_, bytes), Stage::Connects(_) | Stage::Called(..))
                if !bytes.starts_with(&self.own) =>
            {
                Err("what has accepted its connection is not the peer".into())
            }
            (CmEvent::Established(..), Stage::Connects(_) | Stage::Called(..) | Stage::Accepted(_)) => {
                self.is_up = true;
                Ok(())
            }
            (CmEvent::Disconnected(_), _) => Err("its connection has ended".into()),
            (CmEvent::Failed(_, kind, status), _) => Err(event_text(kind, status)),
            (event, stage) => Err(format!("librdmacm reports {event:?} where the connection is {stage:?}")),
        }
    }
}

/// What has become of a queue pair, by its number.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// Messages go both ways.
    Connected(u32),
    /// It is not connected, or not any more, and why.
    Lost(u32, String),
}

/// All connections by librdmacm.
#[derive(Debug)]
pub(crate) struct Manager {
    // Connections go before what they are made of.
    calls: BTreeMap<u32, Call>,
    by_nonce: HashMap<Nonce, u32>,
    /// Of how many events are awaited, and how many connect.
    pending: usize,
    calling: usize,
    /// There was news since that was asked last.
    has_news: bool,
    _listener: CmId,
    at: SocketAddr,
    means: Means,
    poller: Poller,
    channel: CmChannel,
}

impl Manager {
    /// Listens at a port of that address. The device serves so many reads of a queue pair's at once, and
    /// starts so many; its completions come by `completions`.
    pub(crate) fn open(
        place: &Place,
        device: &Device,
        reads: (u8, u8),
        completions: &Channel,
    ) -> Result<Manager, String> {
        let (channel, listener, port) = place.listen(device).map_err(|e| e.to_string())?;
        let poller = Poller::new().map_err(|e| e.to_string())?;
        let bell = Bell::new().map_err(|e| e.to_string())?;
        for fd in [channel.fd().as_raw_fd(), completions.fd().as_raw_fd(), bell.as_raw_fd()] {
            poller.add(&Fd(fd), 0).map_err(|e| e.to_string())?;
        }
        let at = (place.address(), port).into();
        let (calls, by_nonce) = Default::default();
        let (pending, calling, has_news) = (0, 0, false);
        let (bell, crew) = (Arc::new(Mutex::new(bell)), Arc::default());
        let means = Means { device: device.clone(), reads, bell, crew };
        let _listener = listener;
        Ok(Manager { calls, by_nonce, pending, calling, has_news, _listener, at, means, poller, channel })
    }

    /// Readable where there are events, or completions.
    pub(crate) fn fd(&self) -> RawFd {
        self.poller.fd()
    }

    /// Whether events are awaited.
    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        self.pending > 0
    }

    /// Whether rdma_connect of this queue pair has not returned, which may use it.
    pub(crate) fn is_calling(&self, number: u32) -> bool {
        self.calls.get(&number).is_some_and(Call::is_calling)
    }

    /// All whose end may take long: of those, and of those that await an answer.
    pub(crate) fn unanswered(&self) -> Vec<u32> {
        self.calls.iter().filter(|(_, call)| call.is_unanswered()).map(|(number, _)| *number).collect()
    }

    /// Whether there was news since this was called: what waits for a connection may go on then.
    pub(crate) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.has_news)
    }

    fn count(&mut self) {
        self.pending = self.calls.values().filter(|call| call.is_pending()).count();
        self.calling = self.calls.values().filter(|call| call.is_calling()).count();
    }

    /// What is announced of a queue pair, with a nonce that was drawn for it.
    pub(crate) fn announce(&mut self, number: u32, qpn: u32, own: Nonce) -> Vec<u8> {
        self.end(number);
        self.calls.insert(number, Call { qpn, own, stage: Stage::Announced, is_up: false, is_left: false });
        self.by_nonce.insert(own, number);
        Address { at: self.at, reads: self.means.reads.0, nonce: own }.encode()
    }

    /// The peer of a queue pair, whose endpoint has this address, has announced its own. One of the two ends
    /// begins.
    pub(crate) fn agree(
        &mut self,
        number: u32,
        announced: &[u8],
        (peer, begins): (IpAddr, bool),
    ) -> Result<(), String> {
        let far = Address::decode(announced).ok_or("what it announces is no queue pair of iWARP")?;
        if far.at.ip() != peer.to_canonical() {
            return Err(format!("it announces the address {}, and its endpoint's is {peer}", far.at.ip()));
        }
        if far.at.is_ipv4() != self.at.is_ipv4() {
            return Err(format!("its address is {}, and this is {}", far.at.ip(), self.at.ip()));
        }
        let call = self.calls.get_mut(&number).ok_or("its queue pair is gone")?;
        if !matches!(call.stage, Stage::Announced) {
            return Err("its queue pair has a peer".into());
        }
        if begins {
            self.by_nonce.remove(&call.own);
        }
        call.stage = if begins { Stage::ToBegin(far) } else { Stage::Awaits(far) };
        self.count();
        Ok(())
    }

    /// Something is to be sent by a queue pair, for which the peer has agreed, too: this end connects, if it
    /// is the one that begins.
    pub(crate) fn begin(&mut self, number: u32) -> Result<(), String> {
        let Some(call) = self.calls.get_mut(&number) else { return Ok(()) };
        if let Stage::ToBegin(far) = call.stage {
            let id = CmId::new(&self.channel).map_err(text)?;
            let from = (self.at.ip(), 0).into();
            id.resolve(from, far.at, PATIENCE).map_err(text)?;
            call.stage = Stage::Finds(id, far);
        }
        Ok(())
    }

    /// A queue pair is not to be connected, or not any more.
    pub(crate) fn end(&mut self, number: u32) {
        let Some(call) = self.calls.get_mut(&number) else { return };
        self.by_nonce.remove(&call.own);
        call.is_left = true;
        // A call that waits for a thread is not made.
        let is_withdrawn = matches!(&call.stage, Stage::Connects(connecting) if connecting.withdraw());
        // Its queue pair is destroyed next, and what connects it with that.
        if is_withdrawn || !call.is_unanswered() {
            self.calls.remove(&number);
        }
        self.count();
    }

    /// The same of one that is destroyed: at once, or by a thread when rdma_connect has returned, and
    /// rdma_destroy_id has.
    pub(crate) fn destroy(&mut self, number: u32, qp: Qp) {
        self.end(number);
        match self.calls.remove(&number).map(|call| call.stage) {
            Some(Stage::Connects(connecting)) => connecting.leave(qp, &self.means.crew),
            Some(Stage::Called(id, to)) => end_called(id, to, qp, &self.means.crew),
            _ => drop(qp),
        }
        self.count();
    }

    /// What has happened next, which need not be news; `None`: nothing. An error is one of librdmacm as a
    /// whole.
    pub(crate) fn next(&mut self) -> Result<Option<Option<News>>, String> {
        if let Some(news) = self.returned() {
            return Ok(Some(news));
        }
        let Some(event) = self.channel.event().map_err(text)? else { return Ok(None) };
        let news = match event {
            CmEvent::Request(id, bytes) => self.requested(id, &bytes),
            event => self.happened(event),
        };
        self.count();
        self.has_news |= news.is_some();
        Ok(Some(news))
    }

    /// rdma_connect has returned.
    fn returned(&mut self) -> Option<Option<News>> {
        // The thread of a call that was taken may ring after that.
        lock(&self.means.bell).clear();
        if self.calling == 0 {
            return None;
        }
        let mut over = self.calls.iter_mut().filter_map(|(number, call)| match &call.stage {
            Stage::Connects(connecting) => {
                let to = connecting.to();
                connecting.take().map(|(id, outcome)| (*number, call, Stage::Called(id, to), outcome))
            }
            _ => None,
        });
        let (number, call, called, outcome) = over.next()?;
        call.stage = called;
        drop(over);
        // One that is left is destroyed with its queue pair.
        let is_left = self.calls.get(&number).is_some_and(|call| call.is_left);
        self.count();
        // Others may have returned, and the bell is rung no more for these.
        self.has_news = true;
        Some(outcome.err().filter(|_| !is_left).map(|e| News::Lost(number, e.to_string())))
    }

    /// Something connects here: the peer of the queue pair whose nonce it has, or a stranger.
    fn requested(&mut self, id: CmId, bytes: &[u8]) -> Option<News> {
        let nonce = bytes.first_chunk::<16>();
        let number = nonce.and_then(|nonce| self.by_nonce.remove(nonce));
        let known = number.and_then(|n| self.calls.get_mut(&n).map(|call| (n, call)));
        // The queue pair's number is one of its own device's. A peer connects after this end has agreed.
        if let Some((number, call)) = known.filter(|_| id.is_of(&self.means.device)) {
            if let Stage::Awaits(far) = call.stage {
                return call.accept(id, &far, &self.means).err().map(|why| News::Lost(number, why));
            }
        }
        log::debug!("{}: a connection of no peer that was met is rejected", self.at);
        id.reject();
        None
    }

    fn happened(&mut self, event: CmEvent) -> Option<News> {
        let key = event.key()?;
        // Of one that has ended meanwhile, or of the address: the device reports its own end.
        let (&number, call) = self.calls.iter_mut().find(|(_, call)| call.key() == Some(key))?;
        if call.is_left {
            return None;
        }
        let was_up = call.is_up;
        if let Err(why) = call.go_on(event, &self.means) {
            return Some(News::Lost(number, why));
        }
        (call.is_up && !was_up).then_some(News::Connected(number))
    }
}
