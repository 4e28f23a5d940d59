//! Whether peers live. No libfabric provider says that of a peer nothing is sent to, so each process holds a
//! connection to each peer over which no bytes go, and whose end is the peer's.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use meet::Strangers;

use crate::{Error, Rank};

/// How long a connection to another host may take.
const CONNECT: Duration = Duration::from_secs(2);
/// The most addresses of a host that a card names.
const ADDRESSES: usize = 4;
/// The most connections that are held for others.
const HELD: usize = 4096;
/// The most that have not said the word yet, and for how long they may take; how many are taken in one go.
const GREETING: usize = 256;
const BATCH: usize = 64;
const GREETED: Duration = Duration::from_secs(30);
/// What a process says first that watches: it is in the card, which processes of the job have.
type Word = [u8; 16];

/// Where a process can be watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    name: [u8; 16],
    word: Word,
    port: u16,
    hosts: Vec<Ipv4Addr>,
}

impl Place {
    pub fn write(&self, to: &mut Vec<u8>) {
        to.extend(self.name);
        to.extend(self.word);
        to.extend(self.port.to_le_bytes());
        to.push(self.hosts.len() as u8);
        to.extend(self.hosts.iter().flat_map(|host| host.octets()));
    }

    pub fn read(bytes: &[u8]) -> Option<Place> {
        let (name, rest) = bytes.split_first_chunk::<16>()?;
        let (word, rest) = rest.split_first_chunk::<16>()?;
        let (port, rest) = rest.split_first_chunk::<2>()?;
        let (count, rest) = rest.split_first()?;
        let hosts = rest.chunks_exact(4).map(|o| Ipv4Addr::new(o[0], o[1], o[2], o[3])).collect::<Vec<_>>();
        let right = usize::from(*count) == hosts.len() && rest.len() % 4 == 0 && hosts.len() <= ADDRESSES;
        right.then_some(Place { name: *name, word: *word, port: u16::from_le_bytes(*port), hosts })
    }

    fn socket(&self) -> std::io::Result<std::os::unix::net::SocketAddr> {
        let name: String = self.name.iter().map(|byte| format!("{byte:02x}")).collect();
        std::os::unix::net::SocketAddr::from_abstract_name(format!("strait/rpipe/{name}"))
    }

    /// A connection; the name, which is random, is found on the same host alone.
    fn connect(&self) -> std::io::Result<Box<dyn Connection>> {
        if let Ok(mut stream) = self.socket().and_then(|name| UnixStream::connect_addr(&name)) {
            stream.write_all(&self.word)?;
            return Ok(Box::new(stream));
        }
        let mut why = std::io::Error::from(std::io::ErrorKind::AddrNotAvailable);
        for host in &self.hosts {
            match TcpStream::connect_timeout(&SocketAddr::from((*host, self.port)), CONNECT) {
                Ok(mut stream) => {
                    stream.write_all(&self.word)?;
                    return Ok(Box::new(stream));
                }
                Err(e) => why = e,
            }
        }
        Err(why)
    }
}

trait Connection: AsRawFd + Read + Send {}
impl<T: AsRawFd + Read + Send> Connection for T {}

/// A connection that has not said the word yet.
struct Greeting {
    connection: Box<dyn Connection>,
    said: Vec<u8>,
    until: Instant,
}

impl Greeting {
    fn new(connection: Box<dyn Connection>) -> Greeting {
        Greeting { connection, said: Vec::new(), until: Instant::now() + GREETED }
    }

    /// Takes in what has come: whether it was the word; `None`: not all of it yet.
    fn hear(&mut self, word: &Word) -> Option<bool> {
        let mut bytes = [0; size_of::<Word>()];
        let room = bytes.len() - self.said.len();
        match self.connection.read(&mut bytes[..room]) {
            Ok(0) => return Some(false),
            Ok(len) => self.said.extend(&bytes[..len]),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => return Some(false),
        }
        let differs = self.said.iter().zip(word).fold(0, |all, (a, b)| std::hint::black_box(all | (a ^ b)));
        (self.said.len() == word.len()).then_some(differs == 0)
    }
}

#[derive(Debug, Default)]
struct Shared {
    /// To be watched.
    asked: Mutex<Vec<(Rank, Place)>>,
    /// Ended, and not yet told.
    ended: Mutex<VecDeque<Rank>>,
    /// Whether there are any.
    some: AtomicBool,
}

/// Watches peers, in a thread of its own.
#[derive(Debug)]
pub struct Watch {
    shared: Arc<Shared>,
    place: Place,
    /// Asks the thread to look; its end is the thread's.
    ask: UnixStream,
    /// Readable when a peer has ended.
    told: UnixStream,
}

impl Watch {
    pub fn start() -> Result<Watch, Error> {
        let wrong = |e: std::io::Error| Error::system("a socket to watch peers", &e);
        let mut random = [0; 32];
        std::fs::File::open("/dev/urandom")
            .and_then(|mut file| file.read_exact(&mut random))
            .map_err(wrong)?;
        let (mut name, mut word) = ([0; 16], [0; 16]);
        name.copy_from_slice(&random[..16]);
        word.copy_from_slice(&random[16..]);
        let tcp = TcpListener::bind("0.0.0.0:0").map_err(wrong)?;
        // SAFETY: listen(2) touches no memory; that of the standard library has calls wait that are more than
        // 128.
        unsafe { libc::listen(tcp.as_raw_fd(), 65_535) };
        let port = tcp.local_addr().map_err(wrong)?.port();
        let hosts =
            bootstrap::addresses().iter().filter_map(|host| host.parse().ok()).take(ADDRESSES).collect();
        let place = Place { name, word, port, hosts };
        let unix = place.socket().and_then(|name| UnixListener::bind_addr(&name)).map_err(wrong)?;
        unix.set_nonblocking(true).and(tcp.set_nonblocking(true)).map_err(wrong)?;
        let (ask, asked) = UnixStream::pair().map_err(wrong)?;
        let (told, tell) = UnixStream::pair().map_err(wrong)?;
        for end in [&asked, &told, &tell] {
            end.set_nonblocking(true).map_err(wrong)?;
        }
        let shared = Arc::new(Shared::default());
        let theirs = shared.clone();
        std::thread::Builder::new()
            .name("strait-rpipe-watch".into())
            .stack_size(128 << 10)
            .spawn(move || look(&theirs, &word, &asked, &tell, (&unix, &tcp)))
            .map_err(|e| Error::system("a thread to watch peers", &e))?;
        Ok(Watch { shared, place, ask, told })
    }

    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Readable when a peer has ended.
    pub fn descriptor(&self) -> RawFd {
        self.told.as_raw_fd()
    }

    /// From now on the end of this peer is told.
    pub fn add(&self, peer: Rank, place: Place) {
        lock(&self.shared.asked).push((peer, place));
        let _ = (&self.ask).write(&[1]);
    }

    /// A peer that has ended.
    pub fn ended(&self) -> Option<Rank> {
        if !self.shared.some.load(Ordering::Acquire) {
            return None;
        }
        let mut ended = lock(&self.shared.ended);
        let one = ended.pop_front();
        if ended.is_empty() {
            self.shared.some.store(false, Ordering::Release);
            while matches!((&self.told).read(&mut [0; 64]), Ok(1..)) {}
        }
        one
    }
}

fn lock<T>(of: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Nothing panics while it holds one.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn look(
    shared: &Shared,
    word: &Word,
    asked: &UnixStream,
    tell: &UnixStream,
    (unix, tcp): (&UnixListener, &TcpListener),
) {
    let mut greeting: Strangers<Option<IpAddr>, Greeting> = Strangers::new(GREETING);
    let mut held: Vec<Box<dyn Connection>> = Vec::new();
    let mut watched: Vec<(Rank, Box<dyn Connection>)> = Vec::new();
    let end = |peer| {
        lock(&shared.ended).push_back(peer);
        shared.some.store(true, Ordering::Release);
        let _ = (&mut &*tell).write(&[1]);
    };
    loop {
        let one = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut fds = vec![one(asked.as_raw_fd()), one(unix.as_raw_fd()), one(tcp.as_raw_fd())];
        fds.extend(watched.iter().map(|(_, connection)| one(connection.as_raw_fd())));
        fds.extend(held.iter().map(|connection| one(connection.as_raw_fd())));
        fds.extend(greeting.iter().map(|(_, greeting)| one(greeting.connection.as_raw_fd())));
        let places: Vec<usize> = greeting.iter().map(|(at, _)| at).collect();
        let time = if greeting.is_empty() { -1 } else { 1000 };
        // SAFETY: as many valid pollfds as said; their descriptors are held by this function's values.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, time) };
        let mut at = 2;
        let mut is_ready = || {
            at += 1;
            fds[at].revents != 0
        };
        // Nothing is ever sent here behind the word: what is readable has ended.
        watched.retain(|(peer, _)| {
            let lives = !is_ready();
            if !lives {
                end(*peer);
            }
            lives
        });
        held.retain(|_| !is_ready());
        let now = Instant::now();
        for at in places {
            let is_late = greeting.get_mut(at).is_some_and(|one| now >= one.until);
            if is_ready() || is_late {
                greet(&mut greeting, at, word, &mut held);
            }
        }
        let mut welcome = |connection: Option<(Box<dyn Connection>, Option<IpAddr>)>| {
            let Some((connection, origin)) = connection else { return false };
            drop(greeting.give_way(&origin));
            let at = greeting.add(origin, Greeting::new(connection));
            // The word is there already, as a rule.
            greet(&mut greeting, at, word, &mut held);
            true
        };
        let accept_unix = || {
            let stream = unix.accept().ok()?.0;
            stream.set_nonblocking(true).ok()?;
            Some((Box::new(stream) as Box<dyn Connection>, None))
        };
        let accept_tcp = || {
            let (stream, from) = tcp.accept().ok()?;
            stream.set_nonblocking(true).ok()?;
            Some((Box::new(stream) as Box<dyn Connection>, Some(from.ip())))
        };
        let mut n = 0;
        while fds[1].revents != 0 && n < BATCH && welcome(accept_unix()) {
            n += 1;
        }
        n = 0;
        while fds[2].revents != 0 && n < BATCH && welcome(accept_tcp()) {
            n += 1;
        }
        if fds[0].revents != 0 {
            if matches!((&mut &*asked).read(&mut [0; 64]), Ok(0)) {
                return;
            }
            let asked = std::mem::take(&mut *lock(&shared.asked));
            for (peer, place) in asked {
                match place.connect() {
                    Ok(connection) => watched.push((peer, connection)),
                    Err(_) => end(peer),
                }
            }
        }
    }
}

/// Hears a connection that has not said the word, and holds it when it has.
fn greet(
    greeting: &mut Strangers<Option<IpAddr>, Greeting>,
    at: usize,
    word: &Word,
    held: &mut Vec<Box<dyn Connection>>,
) {
    let Some(one) = greeting.get_mut(at) else { return };
    let heard = one.hear(word);
    if heard.is_none() && Instant::now() < one.until {
        return;
    }
    if let Some(one) = greeting.take(at).filter(|_| heard == Some(true) && held.len() < HELD) {
        held.push(one.connection);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_peer_is_told_once() {
        let (one, other) = (Watch::start().unwrap(), Watch::start().unwrap());
        let mut card = Vec::new();
        other.place().write(&mut card);
        let place = Place::read(&card).unwrap();
        assert_eq!(place, *other.place());
        assert_eq!(Place::read(&card[..card.len() - 1]), None);
        one.add(7, place.clone());
        // Over TCP as well.
        one.add(8, Place { name: [0; 16], hosts: vec![Ipv4Addr::LOCALHOST], ..place });
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(one.ended(), None);
        drop(other);
        let mut ended: Vec<_> = (0..2)
            .map(|_| {
                loop {
                    if let Some(peer) = one.ended() {
                        break peer;
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
            })
            .collect();
        ended.sort_unstable();
        assert_eq!((ended, one.ended()), (vec![7, 8], None));
        // One that is not there has ended.
        one.add(9, Place { name: [1; 16], word: [1; 16], port: 1, hosts: Vec::new() });
        while one.ended() != Some(9) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// One that does not say the word is not held; one that says it is.
    #[test]
    fn a_stranger_holds_no_connection() {
        let watch = Watch::start().unwrap();
        let place = watch.place();
        let open = || -> [Box<dyn Both>; 2] {
            let tcp = TcpStream::connect(("127.0.0.1", place.port)).unwrap();
            let unix = UnixStream::connect_addr(&place.socket().unwrap()).unwrap();
            tcp.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            unix.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            [Box::new(tcp), Box::new(unix)]
        };
        let mut right = open();
        right.iter_mut().for_each(|one| one.write_all(&place.word).unwrap());
        for mut one in open() {
            let mut wrong = place.word;
            wrong[15] ^= 1;
            one.write_all(&wrong).unwrap();
            let ended = one.read(&mut [0]);
            assert!(
                matches!(&ended, Ok(0))
                    || ended.as_ref().is_err_and(|e| e.kind() == ErrorKind::ConnectionReset),
                "{ended:?}"
            );
        }
        // As many as there are places to wait in; the first of them has to go.
        let mut silent: Vec<_> = (0..GREETING / 2 + 1).flat_map(|_| open()).collect();
        assert_eq!(silent[0].read(&mut [0]).unwrap(), 0, "a silent one is kept");
        // Those that said it first are held all the while, until the process ends that they watch.
        for one in &mut right {
            one.be_impatient();
            let held = one.read(&mut [0]).unwrap_err();
            assert_eq!(held.kind(), ErrorKind::WouldBlock);
        }
        drop(watch);
        for one in &mut right {
            let ended = loop {
                match one.read(&mut [0]) {
                    Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                    other => break other.unwrap(),
                }
            };
            assert_eq!(ended, 0);
        }
    }

    trait Both: Read + Write {
        fn be_impatient(&self);
    }

    impl Both for TcpStream {
        fn be_impatient(&self) {
            self.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        }
    }

    impl Both for UnixStream {
        fn be_impatient(&self) {
            self.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        }
    }
}
