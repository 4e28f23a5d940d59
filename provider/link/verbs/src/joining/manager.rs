//! What connects queue pairs of an iWARP device: librdmacm, at an address of the device.
//!
//! A queue pair is announced by that address, by the port that the endpoint listens at there, and by a nonce.
//! The end that begins connects, and sends the nonce of the other one, which is a proof that the two have
//! met. The other one accepts a request that has a nonce of its own, of a peer that it has agreed with, and
//! answers with the nonce of the first. A request with another nonce is rejected, and an answer with another
//! one ends the connection: neither moves a queue pair on.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd as _, RawFd};
use std::path::Path;
use std::time::Duration;

use below::Fd;
use ipc::Poller;
use rdma_sys::{Channel, CmChannel, CmEvent, CmId, CmLibrary, CmSaid, Device};

/// How long the device and the way to an address may take to be found.
const PATIENCE: Duration = Duration::from_secs(5);

type Nonce = [u8; 16];

/// What an end announces of its queue pair.
///
/// | bytes | what |
/// |---|---|
/// | 0..16 | IPv6 address, or an IPv4 address that is mapped to one |
/// | 16..18 | port (u16, little endian) |
/// | 18 | how many reads of the peer's the device serves at once |
/// | 19 | 0 |
/// | 20..36 | nonce |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Address {
    at: SocketAddr,
    reads: u8,
    nonce: Nonce,
}

impl Address {
    const LEN: usize = 36;

    fn encode(&self) -> Vec<u8> {
        let ip = match self.at.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let mut out = ip.octets().to_vec();
        out.extend(self.at.port().to_le_bytes());
        out.extend([self.reads, 0]);
        out.extend(self.nonce);
        out
    }

    /// Of what a peer has announced; `None` if it is no address.
    fn decode(bytes: &[u8]) -> Option<Address> {
        let bytes: &[u8; Address::LEN] = bytes.try_into().ok()?;
        let ip: [u8; 16] = std::array::from_fn(|i| bytes[i]);
        let (ip, port) = (Ipv6Addr::from(ip).to_canonical(), u16::from_le_bytes([bytes[16], bytes[17]]));
        let is_one = port != 0 && bytes[19] == 0 && !ip.is_unspecified() && !ip.is_multicast();
        let nonce = std::array::from_fn(|i| bytes[20 + i]);
        is_one.then_some(Address { at: (ip, port).into(), reads: bytes[18], nonce })
    }
}

/// How far a queue pair is.
#[derive(Debug)]
enum Stage {
    /// It was announced. A request that has its nonce may be here.
    Announced(Option<CmId>),
    /// The peer's is known, and its request is awaited.
    Agreed(Address),
    /// This end finds the device and the way to the peer's, or connects, or is connected.
    Begun(CmId, Address),
    /// This end has accepted.
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
}

impl Call {
    /// The connection that events name.
    fn id(&self) -> Option<&CmId> {
        match &self.stage {
            Stage::Announced(id) => id.as_ref(),
            Stage::Begun(id, _) | Stage::Accepted(id) => Some(id),
            Stage::Agreed(_) => None,
        }
    }

    /// Answers a request with the peer's nonce.
    fn accept(&mut self, id: CmId, far: &Address, (serves, starts): (u8, u8)) -> Result<(), String> {
        let said = CmSaid { qpn: self.qpn, bytes: &far.nonce, serves, starts: starts.min(far.reads) };
        id.accept(&said).map_err(|e| e.to_string())?;
        self.stage = Stage::Accepted(id);
        Ok(())
    }

    /// Goes on with what this end has begun, of which this has happened.
    fn go_on(&mut self, event: CmEvent, (serves, starts): (u8, u8)) -> Result<(), String> {
        let text = |e: rdma_sys::Error| e.to_string();
        match (event, &self.stage) {
            (CmEvent::Resolved(_), Stage::Begun(id, _)) => id.resolve_route(PATIENCE).map_err(text),
            (CmEvent::Routed(_), Stage::Begun(id, far)) => {
                let said = CmSaid { qpn: self.qpn, bytes: &far.nonce, serves, starts: starts.min(far.reads) };
                id.connect(&said).map_err(text)
            }
            // Who answers with anything else is not the peer that was met.
            (CmEvent::Established(_, bytes), Stage::Begun(..)) if !bytes.starts_with(&self.own) => {
                Err("what has accepted its connection is not the peer".into())
            }
            (CmEvent::Established(..), Stage::Begun(..) | Stage::Accepted(_)) => {
                self.is_up = true;
                Ok(())
            }
            (CmEvent::Disconnected(_), _) => Err("its connection has ended".into()),
            (CmEvent::Failed(_, rdma_sys::cm_bindings::RDMA_CM_EVENT_REJECTED, _), _) => {
                Err("the peer has rejected the connection".into())
            }
            (CmEvent::Failed(_, kind, status), _) => {
                Err(format!("librdmacm reports event {kind} of its connection, status {status}"))
            }
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

/// The address of a device that its connections have, and what makes them.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    library: CmLibrary,
    pub(crate) address: IpAddr,
}

impl Place {
    /// The endpoint's address, if it is this device's.
    pub(crate) fn find(path: Option<&Path>, device: &Device, address: IpAddr) -> Result<Place, String> {
        let library = CmLibrary::open(path).map_err(|e| format!("its connections are iWARP's: {e}"))?;
        let place = Place { library, address };
        place.bind(device).map(|_| place)
    }

    fn bind(&self, device: &Device) -> Result<(CmChannel, CmId), String> {
        let Place { library, address } = self;
        let channel = CmChannel::new(library).map_err(|e| e.to_string())?;
        let id = CmId::new(&channel).map_err(|e| e.to_string())?;
        let why = |what: String| {
            format!(
                "it has not the endpoint's address {address}{what}: iWARP's connections need one of its own"
            )
        };
        id.bind((*address, 0).into()).map_err(|e| why(format!(" ({e})")))?;
        if id.is_of(device) { Ok((channel, id)) } else { Err(why(String::new())) }
    }
}

/// All connections by librdmacm.
#[derive(Debug)]
pub(crate) struct Manager {
    // Connections go before what they are made of.
    calls: BTreeMap<u32, Call>,
    by_nonce: HashMap<Nonce, u32>,
    /// How many are not connected yet.
    pending: usize,
    /// There was news since that was asked last.
    has_news: bool,
    _listener: CmId,
    at: SocketAddr,
    reads: (u8, u8),
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
        let (channel, listener) = place.bind(device)?;
        let port = listener.listen().map_err(|e| e.to_string())?;
        let poller = Poller::new().map_err(|e| e.to_string())?;
        for fd in [channel.fd().as_raw_fd(), completions.fd().as_raw_fd()] {
            poller.add(&Fd(fd), 0).map_err(|e| e.to_string())?;
        }
        let at = (place.address, port).into();
        let (calls, by_nonce) = Default::default();
        let (pending, has_news) = (0, false);
        Ok(Manager { calls, by_nonce, pending, has_news, _listener: listener, at, reads, poller, channel })
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

    /// Whether there was news since this was called: what waits for a connection may go on then.
    pub(crate) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.has_news)
    }

    /// What is announced of a queue pair.
    pub(crate) fn announce(&mut self, number: u32, qpn: u32) -> Result<Vec<u8>, String> {
        let own: Nonce = ipc::random().map_err(|e| format!("getrandom: {e}"))?;
        self.end(number);
        self.calls.insert(number, Call { qpn, own, stage: Stage::Announced(None), is_up: false });
        self.by_nonce.insert(own, number);
        self.pending += 1;
        Ok(Address { at: self.at, reads: self.reads.0, nonce: own }.encode())
    }

    /// The peer of a queue pair has announced its own. One of the two ends begins.
    pub(crate) fn agree(&mut self, number: u32, announced: &[u8], begins: bool) -> Result<(), String> {
        let far = Address::decode(announced).ok_or("what it announces is no queue pair of iWARP")?;
        if far.at.is_ipv4() != self.at.is_ipv4() {
            return Err(format!("its address is {}, and this is {}", far.at.ip(), self.at.ip()));
        }
        let call = self.calls.get_mut(&number).ok_or("its queue pair is gone")?;
        let Stage::Announced(request) = &mut call.stage else {
            return Err("its queue pair has a peer".into());
        };
        match (begins, request.take()) {
            // Both cannot begin.
            (true, Some(id)) => {
                id.reject();
                return Err("it connects, and is not to begin".into());
            }
            (true, None) => {
                let id = CmId::new(&self.channel).map_err(|e| e.to_string())?;
                let from = (self.at.ip(), 0).into();
                id.resolve(from, far.at, PATIENCE).map_err(|e| e.to_string())?;
                self.by_nonce.remove(&call.own);
                call.stage = Stage::Begun(id, far);
            }
            (false, Some(id)) => call.accept(id, &far, self.reads)?,
            (false, None) => call.stage = Stage::Agreed(far),
        }
        Ok(())
    }

    /// A queue pair is not to be connected, or not any more.
    pub(crate) fn end(&mut self, number: u32) {
        if let Some(call) = self.calls.remove(&number) {
            self.by_nonce.remove(&call.own);
            self.pending -= usize::from(!call.is_up);
        }
    }

    /// What has happened next; an error is one of librdmacm as a whole.
    pub(crate) fn next(&mut self) -> Result<Option<News>, String> {
        while let Some(event) = self.channel.event().map_err(|e| e.to_string())? {
            let news = match event {
                CmEvent::Request(id, bytes) => self.requested(id, &bytes),
                event => self.happened(event),
            };
            if news.is_some() {
                self.has_news = true;
                return Ok(news);
            }
        }
        Ok(None)
    }

    /// Something connects here: the peer of the queue pair whose nonce it has, or a stranger.
    fn requested(&mut self, id: CmId, bytes: &[u8]) -> Option<News> {
        let nonce = bytes.first_chunk::<16>();
        let number = nonce.and_then(|nonce| self.by_nonce.remove(nonce));
        let Some((number, call)) = number.and_then(|n| self.calls.get_mut(&n).map(|call| (n, call))) else {
            log::info!("{}: a connection of no peer that was met is rejected", self.at);
            id.reject();
            return None;
        };
        match &call.stage {
            Stage::Announced(_) => call.stage = Stage::Announced(Some(id)),
            Stage::Agreed(far) => {
                let far = *far;
                return call.accept(id, &far, self.reads).err().map(|why| News::Lost(number, why));
            }
            // Those have no nonce that is listed.
            Stage::Begun(..) | Stage::Accepted(_) => id.reject(),
        }
        None
    }

    fn happened(&mut self, event: CmEvent) -> Option<News> {
        let key = event.key()?;
        // Of one that has ended meanwhile, or of the address: the device reports its own end.
        let of = |call: &Call| call.id().is_some_and(|id| id.key() == key);
        let (&number, call) = self.calls.iter_mut().find(|(_, call)| of(call))?;
        let was_up = call.is_up;
        if let Err(why) = call.go_on(event, self.reads) {
            return Some(News::Lost(number, why));
        }
        let is_new = call.is_up && !was_up;
        self.pending -= usize::from(is_new);
        is_new.then_some(News::Connected(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(ip: &str) -> Address {
        Address { at: (ip.parse::<IpAddr>().expect("an address"), 4791).into(), reads: 8, nonce: [7; 16] }
    }

    #[test]
    fn an_address_is_read_as_it_was_written() {
        for ip in ["10.9.0.1", "fd00::1"] {
            assert_eq!(Address::decode(&one(ip).encode()), Some(one(ip)));
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        let changes: [fn(&mut Vec<u8>); 5] =
            [|b| b.truncate(35), |b| b.push(0), |b| b[16..18].fill(0), |b| b[19] = 1, |b| b[12..16].fill(0)];
        for (n, change) in changes.into_iter().enumerate() {
            let mut bytes = one("10.9.0.1").encode();
            change(&mut bytes);
            assert_eq!(Address::decode(&bytes), None, "change {n}");
        }
    }
}
