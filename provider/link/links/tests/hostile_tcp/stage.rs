//! A victim, an endpoint of the engine over TCP, and an honest peer of it.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use engine::{
    Access, AvId, Cntrs, Completion, Config, CqId, Ctx, Domain, EpConfig, EpId, Error, FiAddr, OpFlags, Reg,
};
use hmem::Span;
use link::{TcpLink, TcpOptions};
use link_api::Link as _;
use testkit::{from, msg, read, tagged, there, write};
use wire::Addr;
use wire::session::JobKey;

use super::draw::Draw;

/// Nothing takes longer than that, unless it hangs.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Contexts of operations with a hostile peer start here.
const EVIL: usize = 1000;
const LONGEST: usize = 100_000;
const PAGE: usize = 4096;

pub fn key() -> JobKey {
    JobKey::from_secret(b"key")
}

pub struct Node {
    pub domain: Domain<TcpLink>,
    pub ep: EpId,
    cq: CqId,
    av: AvId,
    pub addr: Addr,
}

impl Node {
    fn new() -> Node {
        let mut options = TcpOptions::new(key());
        options.rails = 3;
        options.rails_at = vec![[127, 0, 0, 2].into(), [127, 0, 0, 3].into()];
        options.connect_timeout = Duration::from_millis(60);
        options.guest_timeout = Duration::from_millis(200);
        let link = TcpLink::bind("127.0.0.1:0".parse().unwrap(), options).expect("a free name");
        let addr = link.addr();
        let mut domain = Domain::new(Config { virt_addr: false, rma_order: false });
        let (cq, av) = (domain.cq_open(100_000), domain.av_open());
        let (tx_cq, rx_cq, cntrs) = (Some(cq), Some(cq), Cntrs::default());
        let ep = domain.ep_open(EpConfig { link, av, rx: None, tx_cq, rx_cq, cntrs });
        Node { domain, ep, cq, av, addr }
    }

    pub fn insert(&mut self, addr: Addr) -> FiAddr {
        self.domain.av_insert(self.av, addr)
    }

    fn take(&mut self) -> Vec<Completion> {
        self.domain.progress();
        let mut all = Vec::new();
        loop {
            let n = self.domain.cq_take(self.cq, 64, |_, c| all.push(*c));
            match self.domain.cq_error(self.cq) {
                Some(c) => all.push(c),
                None if n == 0 => return all,
                None => {}
            }
        }
    }
}

pub struct Stage {
    pub victim: Node,
    honest: Node,
    friend: FiAddr,
    back: FiAddr,
    /// Of the victim: the page in the middle is what peers may access.
    memory: Span,
    room: Span,
    words: [Span; 4],
    /// Operations of the victim with hostile peers that were begun, and that have ended.
    begun: usize,
    ended: usize,
    /// What the victim and the honest peer lack of their exchange.
    lacks: usize,
    rounds: u64,
    /// Names by which hostile peers were called.
    called: Vec<Addr>,
}

impl Stage {
    pub fn new() -> Stage {
        let (mut victim, mut honest) = (Node::new(), Node::new());
        let (friend, back) = (victim.insert(honest.addr), honest.insert(victim.addr));
        let memory = Span::leak(3 * PAGE);
        hmem::write(&[memory], 0, &[0x77; 3 * PAGE]);
        let shared = [memory.part(PAGE, PAGE).unwrap()];
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        victim.domain.mr_reg(&Reg { iov: &shared, access, key: Some(5) }).unwrap();
        let room = Span::leak(LONGEST);
        let words = [(); 4].map(|()| Span::leak(8));
        let mut stage = Stage {
            victim,
            honest,
            friend,
            back,
            memory,
            room,
            words,
            begun: 0,
            ended: 0,
            lacks: 0,
            rounds: 0,
            called: Vec::new(),
        };
        stage.greet();
        stage
    }

    /// Whether no hostile peer had this name before: the victim may still wait for one that did.
    pub fn is_new(&mut self, name: Addr) -> bool {
        let is_new = !self.called.contains(&name);
        self.called.push(name);
        is_new
    }

    pub fn honest_name(&self) -> Addr {
        self.honest.addr
    }

    /// Both make progress.
    pub fn pump(&mut self) {
        for c in self.victim.take() {
            match c.ctx.0 {
                EVIL.. => self.ended += 1,
                // Peers may write with CQ data.
                0 => {}
                _ => {
                    assert_eq!(c.err, None, "with the honest peer: {c:?}");
                    self.lacks -= 1;
                }
            }
        }
        for c in self.honest.take() {
            assert_eq!(c.err, None, "at the honest peer: {c:?}");
            self.lacks -= 1;
        }
    }

    /// Until that is so.
    pub fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut Stage) -> bool) {
        let start = Instant::now();
        while !is_so(self) {
            self.pump();
            assert!(start.elapsed() < PATIENCE, "waited in vain: {what}");
        }
    }

    /// A word each way with the honest peer.
    pub fn greet(&mut self) {
        self.rounds += 1;
        let word = |n: u64| (self.rounds << 2 | n).to_le_bytes();
        let [ping, pong, heard, answer] = self.words;
        hmem::write(&[ping], 0, &word(1));
        hmem::write(&[answer], 0, &word(2));
        self.victim
            .domain
            .recv(self.victim.domain.ep_rx(self.victim.ep).unwrap(), &from(self.friend, &[pong], 1))
            .unwrap();
        self.honest
            .domain
            .recv(self.honest.domain.ep_rx(self.honest.ep).unwrap(), &from(self.back, &[heard], 2))
            .unwrap();
        self.lacks = 4;
        self.until("room for a word to the honest peer", |s| {
            let done = s.victim.domain.send(s.victim.ep, &msg(s.friend, &[ping], 3));
            assert!(done.is_ok() || done == Err(Error::Again), "{done:?}");
            done.is_ok()
        });
        self.until("room for a word of the honest peer", |s| {
            let done = s.honest.domain.send(s.honest.ep, &msg(s.back, &[answer], 4));
            assert!(done.is_ok() || done == Err(Error::Again), "{done:?}");
            done.is_ok()
        });
        self.until("an exchange with the honest peer", |s| s.lacks == 0);
        for (at, n) in [(heard, 1), (pong, 2)] {
            let mut bytes = [0; 8];
            hmem::read(&[at], 0, &mut bytes);
            assert_eq!(bytes, (self.rounds << 2 | n).to_le_bytes(), "wrong bytes of the honest peer");
        }
        let mut guard = vec![0; 3 * PAGE];
        hmem::read(&[self.memory], 0, &mut guard);
        assert!(
            guard[..PAGE].iter().chain(&guard[2 * PAGE..]).all(|b| *b == 0x77),
            "written beyond what is shared"
        );
    }

    /// Starts an operation with a hostile peer.
    pub fn deed(&mut self, draw: &mut Draw<'_>, foe: FiAddr) {
        if self.begun - self.ended > 100 {
            return;
        }
        let kind = draw.below(8);
        let len = [8, 3_000, LONGEST][usize::from(draw.below(3))];
        let iov = [self.room.part(0, len).unwrap()];
        let remote = [there(u64::from(draw.byte()), len, 5)];
        let (domain, ep) = (&mut self.victim.domain, self.victim.ep);
        let flags = OpFlags::COMPLETION | OpFlags::DELIVERY;
        let done = match kind {
            0 => domain.send(ep, &msg(foe, &iov, EVIL)),
            1 => domain.send(ep, &engine::Send { flags, ..tagged(foe, &iov, 3, EVIL) }),
            2 => domain.rma(ep, &write(foe, &iov, &remote, EVIL)),
            3 | 4 => domain.rma(ep, &read(foe, &iov, &remote, EVIL)),
            _ => {
                let rx = domain.ep_rx(ep).unwrap();
                domain.recv(rx, &engine::Recv { ctx: Ctx(EVIL), ..from(foe, &iov, EVIL) })
            }
        };
        self.begun += usize::from(done.is_ok());
    }

    /// A send, for which the victim has to call this peer first; not if the peer is gone already, whose name
    /// this was.
    pub fn calls(&mut self, foe: FiAddr) -> bool {
        let iov = [self.room.part(0, 8).unwrap()];
        let done = self.victim.domain.send(self.victim.ep, &msg(foe, &iov, EVIL));
        self.begun += usize::from(done.is_ok());
        done == Err(Error::Again)
    }

    /// Whatever was begun ends: hostile peers are gone.
    pub fn settle(&mut self) {
        self.until("the end of each operation", |s| s.ended == s.begun);
    }
}

/// Writes all, as long as the victim takes it.
pub fn push(stage: &mut Stage, stream: &mut TcpStream, mut bytes: &[u8]) -> bool {
    let mut idle = 0;
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(n) => (bytes, idle) = (&bytes[n..], 0),
            // It may hold a peer back.
            Err(e) if e.kind() == ErrorKind::WouldBlock && idle < 1_000 => idle += 1,
            Err(_) => return false,
        }
        stage.pump();
    }
    true
}

/// Writes this, or what becomes of it; whether the victim has as much as it waits for.
pub fn say(stage: &mut Stage, stream: &mut TcpStream, draw: &mut Draw<'_>, bytes: &[u8]) -> bool {
    let said = draw.spoil(bytes);
    push(stage, stream, &said) && said.len() >= bytes.len()
}

/// Reads so many bytes, or none if the victim closes the connection before.
pub fn pull(stage: &mut Stage, stream: &mut TcpStream, n: usize) -> Option<Vec<u8>> {
    let (mut bytes, mut at, mut over) = (vec![0; n], 0, false);
    stage.until("an answer, or the end of the connection", |_| {
        match stream.read(&mut bytes[at..]) {
            Ok(0) => over = true,
            Ok(n) => at += n,
            Err(e) => over = e.kind() != ErrorKind::WouldBlock,
        }
        over || at == n
    });
    (at == n).then_some(bytes)
}
