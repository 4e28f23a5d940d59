//! A process that does the handshake as agreed, and from then on writes whatever it likes to all it
//! shares with its victim: plausible frames with wrong numbers, answers to what it was asked that are
//! lies, and noise over every word. The victim talks with an honest peer all the time.
//!
//! `STRAIT_HOSTILE_SECONDS` makes it longer, `STRAIT_HOSTILE_SEED` another run.

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use engine::{
    Access, Cntrs, Completion, Config, CqId, Ctx, Domain, EpConfig, EpId, Error, FiAddr, OpFlags, Pattern,
    Recv, Reg, Rma, Send,
};
use hmem::Span;
use ipc::memfd::{self, Writers};
use ipc::{Mapping, rights, socket};
use link_api::Link as _;
use wire::channel::{Hello, Packet, Space, Welcome, WindowId};
use wire::{Addr, Head, RmaSeg};

use super::DEFAULT_RING;
use super::MIN_RING;
use super::ShmLink;
use crate::shm::channel::allowance::Allowance;
use crate::shm::channel::producer::Producer;
use crate::shm::channel::ring::{Consumer, Mem as _};
use crate::shm::channel::segment::Segment;
use crate::shm::meet::hello;
use crate::shm::memory::mr_table;
use crate::shm::tests::open;
use crate::space;

struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as u32
    }

    fn below(&mut self, n: usize) -> usize {
        self.next() as usize % n
    }

    /// A number that may be taken for something.
    fn number(&mut self, heard: &[u64]) -> u64 {
        let any = u64::from(self.next()) << 32 | u64::from(self.next());
        match self.below(9) {
            0 => any,
            1 => u64::MAX - u64::from(self.next() % 9),
            2 => 1 << 63,
            3 | 4 if !heard.is_empty() => heard[self.below(heard.len())],
            5 => 1 << 32 | u64::from(self.next() % 8),
            6 => 0x7f00_0000_0000 | any >> 20,
            _ => [0, 1, 5, 8, 100, 4096, 20_000, 1 << 20, 1 << 40][self.below(9)],
        }
    }

    /// Our own address space, or one that is none.
    fn space(&mut self) -> Space {
        if self.below(2) == 0 {
            return space::own().unwrap();
        }
        let (pid, keeper) = (self.number(&[]) as i32, self.number(&[]) as i32);
        Space { guard: self.number(&[]), token: self.number(&[]), pid, keeper }
    }

    /// A packet that may follow a hello or a welcome, or bytes that are none; of no bytes at all is the end.
    fn packet(&mut self) -> Vec<u8> {
        let id = WindowId { maker: self.number(&[]), number: self.number(&[]) };
        let welcome = Welcome { incarnation: self.number(&[]), space: self.space() };
        let packets = [
            Packet::Wake,
            Packet::Welcome(welcome),
            Packet::Refused,
            Packet::Want(id),
            Packet::Grant(id),
            Packet::Deny(id),
            Packet::Exhausted,
        ];
        match self.below(4) {
            0 => packets[self.below(packets.len())].encode().to_vec(),
            1 => vec![self.next() as u8; 1 + self.below(Packet::BUFFER)],
            2 => vec![self.next() as u8],
            _ => Vec::new(),
        }
    }

    fn frame(&mut self, heard: &[u64]) -> Vec<u8> {
        let mut frame = vec![self.below(16) as u8, self.next() as u8 & [0x3f, 0xff][self.below(2)]];
        let aux = [0, 1, 2, 0x11, 0x21, 7 << 10 | 2 << 4 | 1, self.next() as u16][self.below(7)];
        frame.extend(aux.to_le_bytes());
        for _ in 0..2 + self.below(10) {
            frame.extend(self.number(heard).to_le_bytes());
        }
        frame.truncate(Head::LEN - 4 + self.below(frame.len()));
        frame.resize(frame.len() + [0, 0, 8, 300, 4000][self.below(5)], 0x5a);
        frame
    }

    fn scribble(&mut self, mem: &Segment) {
        for _ in 0..200 {
            let word = [self.next() % 12_000, self.next() % 60, self.next(), 0, u32::MAX][self.below(5)];
            match self.below(8) {
                0 => mem.head().store(word, Relaxed),
                1 => mem.bell().store(word, Relaxed),
                2 => mem.want().store(word, Relaxed),
                3 => mem.pieces(word as u16 % 16).store(u64::from(word) << (word % 33), Relaxed),
                _ => mem.commit(self.next() % mem.lines()).store(word, Relaxed),
            }
        }
    }
}

/// Not a test: the hostile process, until it is killed.
#[test]
fn hostile_child() {
    let Ok(victim) = std::env::var("STRAIT_VICTIM") else { return };
    // SAFETY: prctl(PR_SET_PDEATHSIG) takes a number: it ends with its parent.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let name: std::net::SocketAddr = std::env::var("STRAIT_NAME").unwrap().parse().unwrap();
    let victim = Addr::new(victim.parse().unwrap());
    let mut noise = Noise(std::env::var("STRAIT_HOSTILE_SEED").unwrap().parse().unwrap());
    let listener = hello::listen(name).unwrap();
    loop {
        attack(&mut noise, victim, Addr::new(name), &listener);
    }
}

/// One connection, from handshake to hang-up.
fn attack(noise: &mut Noise, victim: Addr, name: Addr, listener: &OwnedFd) {
    let Ok(sock) = hello::connect(Some(victim.ip()), victim.port()) else { return };
    let ring = [MIN_RING, DEFAULT_RING][noise.below(2)];
    let (mem, fd) = Segment::create(ring).unwrap();
    let hello = Hello {
        version: wire::VERSION,
        ring: ring as u32,
        incarnation: noise.number(&[]),
        from: name,
        to: victim,
        space: noise.space(),
    };
    if rights::send_fd(&sock, &hello.encode(), fd.as_fd()).is_err() {
        return;
    }
    // Another mapping to scribble on, beside the one that the rules are kept with.
    let noisy = Segment::adopt(fd.as_fd(), ring).unwrap();
    let (mut tx, mut theirs, mut heard) = (Producer::new(mem, 0, Allowance::new(u32::MAX)), None, Vec::new());
    let lies = noise.below(3);
    let end = Instant::now() + Duration::from_millis(5 + noise.below(40) as u64);
    while Instant::now() < end {
        if theirs.is_none() {
            theirs = welcome(noise, listener);
        }
        if let Some((rx, segment, _)) = &mut theirs {
            while let Ok(Some(len)) = rx.peek() {
                let mut bytes = vec![0; len];
                rx.read(0, &mut bytes);
                heard.extend(bytes.chunks_exact(4).take(12).map_while(|w| {
                    let at = w.as_ptr().addr() - bytes.as_ptr().addr();
                    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
                }));
                let cut = heard.len().saturating_sub(64);
                heard.drain(..cut);
                rx.advance();
            }
            if lies == 1 {
                noise.scribble(segment);
            }
        }
        for _ in 0..20 {
            let frame = noise.frame(&heard);
            if tx.reserve(frame.len()) == Ok(true) {
                // SAFETY: room for it was found just now.
                unsafe { tx.write(0, &frame) };
                tx.publish(frame.len());
            }
        }
        if lies == 2 {
            noise.scribble(&noisy);
        }
        socket::notify(&sock, &noise.packet());
    }
}

type Theirs = (Consumer<Segment>, Segment, OwnedFd);

/// Takes the victim's channel to us, if it wants one.
fn welcome(noise: &mut Noise, listener: &OwnedFd) -> Option<Theirs> {
    let sock = socket::accept(listener).ok()?;
    let mut bytes = [0; Hello::LEN + 1];
    let (n, fd) = rights::recv_fd(&sock, &mut bytes).ok()?;
    let (hello, fd) = (Hello::decode(&bytes[..n])?, fd?);
    let segment = |fd: &OwnedFd| Segment::adopt(fd.as_fd(), hello.ring as usize).ok();
    // An MR table full of noise.
    let size = [mr_table::SIZE, 32 << 10][noise.below(2)];
    let table_fd = memfd::create(c"strait", size, Writers::UntilSealed).ok()?;
    let table = Mapping::new(&table_fd, size, None).ok()?;
    memfd::seal(&table_fd);
    // SAFETY: all of its words.
    let word = |at: usize| unsafe { table.word(at * 4) };
    (0..size / 4).for_each(|at| word(at).store([noise.next(), 0xff, 6][at % 3], Relaxed));
    let answer = Packet::Welcome(Welcome { incarnation: noise.number(&[]), space: noise.space() }).encode();
    let len = if noise.below(4) == 0 { noise.below(answer.len()) } else { answer.len() };
    let _ = rights::send_fd(&sock, &answer[..len], table_fd.as_fd());
    Some((Consumer::new(segment(&fd)?), segment(&fd)?, sock))
}

/// An endpoint with a queue.
struct Node {
    domain: Domain<ShmLink>,
    ep: EpId,
    cq: CqId,
    av: engine::AvId,
    addr: Addr,
}

impl Node {
    fn new() -> Node {
        let link = open();
        let addr = link.addr();
        let mut domain = Domain::new(Config { virt_addr: false, rma_order: false });
        let (cq, av) = (domain.cq_open(100_000), domain.av_open());
        let queue = Some(cq);
        let config = EpConfig { link, av, rx: None, tx_cq: queue, rx_cq: queue, cntrs: Cntrs::default() };
        let ep = domain.ep_open(config);
        Node { domain, ep, cq, av, addr }
    }

    fn insert(&mut self, addr: Addr) -> FiAddr {
        self.domain.av_insert(self.av, addr)
    }

    fn recv(&mut self, src: FiAddr, tag: u64, iov: &[Span], ctx: usize) {
        let pattern = Pattern { src, tag: Some((tag, 0)) };
        let recv = Recv { pattern, iov, ctx: Ctx(ctx), flags: OpFlags::COMPLETION };
        let rx = self.domain.ep_rx(self.ep).unwrap();
        self.domain.recv(rx, &recv).unwrap();
    }

    fn send(&mut self, to: FiAddr, tag: u64, iov: &[Span], ctx: usize) -> Result<(), Error> {
        let flags = OpFlags::COMPLETION | OpFlags::DELIVERY;
        self.domain.send(self.ep, &Send { to, iov, tag: Some(tag), data: None, ctx: Ctx(ctx), flags })
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

/// Contexts of the victim's operations with the hostile peer start here.
const EVIL: usize = 1000;

/// Traffic between a victim and an honest peer, checked byte by byte.
struct Traffic {
    friend: FiAddr,
    back: FiAddr,
    ping: Span,
    pong: Span,
    echo: Span,
    rounds: usize,
    /// Completions that the victim lacks in this round.
    waiting: u32,
    last: Instant,
}

impl Traffic {
    const SIZES: [usize; 5] = [8, 100, 5000, 20_000, 300_000];

    fn new(friend: FiAddr, back: FiAddr) -> Traffic {
        let [ping, pong, echo] = [(); 3].map(|()| Span::leak(300_000));
        Traffic { friend, back, ping, pong, echo, rounds: 0, waiting: 0, last: Instant::now() }
    }

    fn byte(&self, at: usize) -> u8 {
        (at * 7 + self.rounds) as u8
    }

    /// Begins a round if none is under way, and takes the honest peer's completions.
    fn drive(&mut self, victim: &mut Node, honest: &mut Node) {
        assert!(self.last.elapsed() < Duration::from_secs(60), "the honest peer is not served");
        if self.waiting == 0 {
            let len = Traffic::SIZES[self.rounds % Traffic::SIZES.len()];
            let text: Vec<u8> = (0..len).map(|at| self.byte(at)).collect();
            hmem::write(&[self.ping], 0, &text);
            victim.recv(self.friend, 2, &[self.pong.part(0, len).unwrap()], 1);
            honest.recv(self.back, 1, &[self.echo.part(0, len).unwrap()], 2);
            let ping = [self.ping.part(0, len).unwrap()];
            while victim.send(self.friend, 1, &ping, 3) == Err(Error::Again) {
                honest.take();
            }
            self.waiting = 2;
        }
        for c in honest.take() {
            assert_eq!(c.err, None, "{c:?}");
            if c.ctx.0 == 2 {
                honest.send(self.back, 2, &[self.echo.part(0, c.len).unwrap()], 4).unwrap();
            }
        }
    }

    /// A completion of the victim's.
    fn complete(&mut self, c: &Completion) {
        assert_eq!(c.err, None, "{c:?}");
        self.waiting -= 1;
        if c.ctx.0 == 1 {
            let mut text = vec![0; c.len];
            hmem::read(&[self.pong], 0, &mut text);
            let right = text.iter().enumerate().all(|(at, b)| *b == self.byte(at));
            let len = Traffic::SIZES[self.rounds % Traffic::SIZES.len()];
            assert!(right && c.len == len, "wrong bytes of an honest peer");
        }
        if self.waiting == 0 {
            self.rounds += 1;
            self.last = Instant::now();
        }
    }
}

/// Posts the operation number `n` with the hostile peer; whether it was posted.
fn deal(victim: &mut Node, foe: FiAddr, scratch: Span, n: usize) -> bool {
    let len = Traffic::SIZES[n % Traffic::SIZES.len()];
    let iov = [scratch.part(0, len).unwrap()];
    let remote = [RmaSeg { addr: 0.into(), len: (len as u64).into(), key: 5.into() }];
    let flags = OpFlags::COMPLETION | OpFlags::DELIVERY;
    let (ctx, write) = (Ctx(EVIL), n % 4 == 2);
    let rma = Rma { to: foe, write, iov: &iov, remote: &remote, data: None, ctx, flags };
    let posted = match n % 4 {
        0 => victim.send(foe, 9, &iov, EVIL),
        1 => {
            victim.recv(foe, [0, 1, 5, 8][n / 4 % 4], &iov, EVIL);
            Ok(())
        }
        _ => victim.domain.rma(victim.ep, &rma),
    };
    posted.is_ok()
}

#[test]
fn a_hostile_peer_harms_only_what_is_done_with_it() {
    let var = |name: &str, default: u64| std::env::var(name).map_or(default, |v| v.parse().unwrap());
    let (seconds, seed) = (var("STRAIT_HOSTILE_SECONDS", 3), var("STRAIT_HOSTILE_SEED", 1));
    let (mut victim, mut honest) = (Node::new(), Node::new());
    let (port, name) = crate::name::reserve("127.0.0.1:0".parse().unwrap(), false).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "shm::hostile_tests::hostile_child", "--nocapture", "--test-threads=1"])
        .env("STRAIT_VICTIM", victim.addr.to_string())
        .env("STRAIT_NAME", name.to_string())
        .env("STRAIT_HOSTILE_SEED", seed.to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let foe = victim.insert(Addr::new(name));
    let mut traffic = Traffic::new(victim.insert(honest.addr), honest.insert(victim.addr));
    // What the hostile peer may write has guards on both sides.
    let memory = Span::leak(3 * 4096);
    hmem::write(&[memory], 0, &[0x77; 3 * 4096]);
    let shared = [memory.part(4096, 4096).unwrap()];
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    victim.domain.mr_reg(&Reg { iov: &shared, access, key: Some(5) }).unwrap();

    let scratch = Span::leak(300_000);
    let (mut evil, mut ended, mut failed) = (0usize, 0usize, 0usize);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(seconds) || traffic.rounds < 20 {
        traffic.drive(&mut victim, &mut honest);
        for c in victim.take() {
            match c.ctx.0 {
                EVIL.. => {
                    ended += 1;
                    failed += usize::from(c.err.is_some());
                }
                // The hostile peer may send remote CQ data, or fail to.
                0 => {}
                _ => traffic.complete(&c),
            }
        }
        // Operations with the hostile peer, as many as it takes.
        if evil - ended < 50 {
            evil += usize::from(deal(&mut victim, foe, scratch, evil));
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let end = Instant::now();
    while ended < evil {
        assert!(end.elapsed() < Duration::from_secs(60), "{} operations never end", evil - ended);
        let over = |c: &&Completion| c.ctx.0 >= EVIL;
        ended += victim.take().iter().filter(over).count();
        honest.take();
    }
    let mut guard = vec![0; 3 * 4096];
    hmem::read(&[memory], 0, &mut guard);
    assert!(guard[..4096].iter().chain(&guard[8192..]).all(|b| *b == 0x77), "written beyond what was shared");
    let report =
        format!("{} rounds; {ended} operations with the hostile peer, {failed} failed", traffic.rounds);
    assert!(failed > 0 && traffic.rounds > 0, "{report}");
    println!("{report}");
    drop(port);
}

/// Hellos under ever new names, as fast as one thread says them, each with a ring full of frames.
#[test]
fn hellos_without_end_leave_time_for_others() {
    let (mut victim, mut honest) = (Node::new(), Node::new());
    let (friend, back) = (victim.insert(honest.addr), honest.insert(victim.addr));
    let (stop, said) = (std::sync::atomic::AtomicBool::new(false), std::sync::atomic::AtomicU32::new(0));
    let to = victim.addr;
    std::thread::scope(|s| {
        let hellos = s.spawn(|| {
            let (mut noise, mut n) = (Noise(7), 0u32);
            while !stop.load(Relaxed) {
                let from = Addr::new(([127, 0, 0, 1], 10 + (n % 60_000) as u16).into());
                let hello = Hello {
                    version: wire::VERSION,
                    ring: MIN_RING as u32,
                    incarnation: n.into(),
                    space: space::own().unwrap(),
                    from,
                    to,
                };
                let (mem, fd) = Segment::create(MIN_RING).unwrap();
                let Ok(sock) = hello::connect(Some(to.ip()), to.port()) else { continue };
                let mut tx = Producer::new(mem, 0, Allowance::new(u32::MAX));
                loop {
                    let frame = noise.frame(&[]);
                    if tx.reserve(frame.len()) != Ok(true) {
                        break;
                    }
                    // SAFETY: room for it was found just now.
                    unsafe { tx.write(0, &frame) };
                    tx.publish(frame.len());
                }
                n += u32::from(rights::send_fd(&sock, &hello.encode(), fd.as_fd()).is_ok());
                said.store(n, Relaxed);
            }
        });
        let [ping, pong, echo] = [(); 3].map(|()| Span::leak(8));
        let (start, mut rounds, mut waiting, mut worst) = (Instant::now(), 0u32, 0, Duration::ZERO);
        // Enough of both, however slow the processor is.
        let enough = |rounds| rounds > 100 && said.load(Relaxed) > 100;
        let goes_on = || start.elapsed() < Duration::from_secs(60) && !hellos.is_finished();
        while start.elapsed() < Duration::from_secs(2) || !enough(rounds) && goes_on() {
            if waiting == 0 {
                victim.recv(friend, 2, &[pong], 1);
                honest.recv(back, 1, &[echo], 2);
                while victim.send(friend, 1, &[ping], 3) == Err(Error::Again) {
                    honest.take();
                }
                waiting = 2;
                rounds += 1;
            }
            for c in honest.take() {
                assert_eq!(c.err, None, "{c:?}");
                if c.ctx.0 == 2 {
                    honest.send(back, 2, &[echo], 4).unwrap();
                }
            }
            let begin = Instant::now();
            for c in victim.take().iter().filter(|c| [1, 3].contains(&c.ctx.0)) {
                assert_eq!(c.err, None, "{c:?}");
                waiting -= 1;
            }
            worst = worst.max(begin.elapsed());
        }
        stop.store(true, Relaxed);
        hellos.join().unwrap();
        println!("{rounds} rounds beside {said:?} hellos; the longest poll took {worst:?}");
        assert!(enough(rounds), "{rounds} rounds beside {said:?} hellos");
    });
}
