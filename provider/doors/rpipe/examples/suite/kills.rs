//! A peer that is killed at a random moment, many times, over the backend: each call of this process ends
//! with an error, what was read is what was written, and descriptors and memory come back.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use strait_rpipe::start::FileBootstrap;
use strait_rpipe::{
    Borrowed, Context, Error, Group, Lent, Neighbor, Patience, Pipe, PipeOptions, Rank, Settings, Side,
    backends,
};

use crate::LIMIT;

/// Where the two processes of a round meet, and which round it is.
const DIR: &str = "SUITE_KILLS_DIR";
const ROUND: &str = "SUITE_KILLS_ROUND";
/// The latest moment, in microseconds since the victim is in the job.
const LATEST: u64 = 30_000;
/// Rounds before what a process keeps (of a provider, say) is counted.
const FIRST: u64 = 24;

fn patience() -> Patience {
    Patience::for_a(LIMIT)
}

/// Numbers that look random, the same in each run.
struct Dice(u64);

impl Dice {
    fn of(round: u64) -> Dice {
        Dice(round.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % below
    }
}

fn join(rank: Rank, dir: &Path) -> Result<Arc<Context>, Error> {
    let settings = Settings::from_environment()?;
    let backend = backends::open(&settings, rank)?;
    let bootstrap = FileBootstrap::new(rank, 2, dir)?;
    Ok(Arc::new(Context::new(backend, Box::new(bootstrap), settings)?))
}

/// Writes one message of bytes that hold its number.
fn write(pipe: &mut Pipe, number: u64, len: usize) -> Result<(), Error> {
    let block = pipe.alloc(len, 1, patience())?;
    // SAFETY: a block of so many bytes, which is this end's.
    unsafe { pipe.address(block)?.write_bytes(number as u8, len) };
    pipe.write(block, None)
}

/// Reads the message of this number.
fn read(pipe: &mut Pipe, number: u64) -> Result<(), Error> {
    let (block, len) = pipe.read(usize::MAX, patience())?;
    let at = pipe.address(block)?;
    // SAFETY: a block of so many bytes, which its writer writes no more.
    let whole = (0..len).all(|n| unsafe { at.add(n).read_volatile() } == number as u8);
    assert!(whole, "message {number}, of {len} bytes, is not as it was written");
    pipe.free(block)
}

fn length(dice: &mut Dice) -> usize {
    [8, 40, 300, 5000, 200_000][dice.next(5) as usize] + dice.next(8) as usize
}

/// One end of what the two do without end; `first` of the two.
fn live(context: &Arc<Context>, first: bool, round: u64) -> Result<(), Error> {
    let (peer, mut dice) = (1 - context.rank(), Dice::of(round));
    let open = |side| Pipe::open(context, peer, &PipeOptions::new(side));
    match round / 2 % 4 {
        0 if first => {
            let mut pipe = open(Side::Writer)?;
            (0..).try_for_each(|n| write(&mut pipe, n, length(&mut dice)))
        }
        0 => {
            let mut pipe = open(Side::Reader)?;
            (0..).try_for_each(|n| read(&mut pipe, n))
        }
        1 => {
            let mut pipe = open(Side::Both)?;
            (0..).try_for_each(|n| write(&mut pipe, n, length(&mut dice)).and_then(|()| read(&mut pipe, n)))
        }
        2 => in_group(context, peer, &mut dice),
        _ if first => {
            let lent = Lent::open(context, peer, 1 << 20, patience())?;
            lent.wait(patience())
        }
        _ => {
            let mut far = Borrowed::open(context, peer, None, patience())?;
            loop {
                let bytes = vec![round as u8; length(&mut dice)];
                let mut back = vec![0; bytes.len()];
                let block = far.alloc(bytes.len(), 1)?;
                far.write(block, 0, &bytes, patience())?;
                far.read(block, 0, &mut back, patience())?;
                assert!(back == bytes, "what was written is not what is read");
                far.free(block)?;
            }
        }
    }
}

fn in_group(context: &Arc<Context>, peer: Rank, dice: &mut Dice) -> Result<(), Error> {
    let mut group = Group::open(context, &[0, 1])?;
    for n in 0u64.. {
        let mut bytes = vec![0; length(dice)];
        if context.rank() == (n % 2) as Rank {
            bytes.fill(n as u8);
        }
        group.bcast((n % 2) as Rank, &mut bytes)?;
        assert!(bytes.iter().all(|byte| *byte == n as u8), "broadcast {n} is not as it was sent");
        let (mine, mut theirs) = (vec![context.rank() as u8; length(dice)], vec![9; 300_000]);
        let mut one = [Neighbor { rank: peer, send: &mine, receive: &mut theirs, received: 0 }];
        group.neighbor_exchange(&mut one)?;
        let len = one[0].received;
        assert!(
            theirs[..len].iter().all(|byte| *byte == peer as u8),
            "what is exchanged is not as it was sent"
        );
    }
    Ok(())
}

/// The process that is killed.
pub fn victim() -> Result<(), Error> {
    let dir = PathBuf::from(env::var_os(DIR).expect("a directory"));
    let round: u64 = env::var(ROUND).ok().and_then(|text| text.parse().ok()).expect("a round");
    let fault = live(&join(1, &dir)?, round % 2 == 1, round).expect_err("it has no end");
    // The other one is there until this one is not.
    panic!("round {round}: the victim has failed: {fault}");
}

/// Kills the victim at a moment of the round; when that was.
fn kill(mut child: Child, card: &Path, round: u64) -> Instant {
    let until = Instant::now() + LIMIT;
    while !card.exists() && Instant::now() < until {
        thread::sleep(Duration::from_micros(100));
    }
    thread::sleep(Duration::from_micros(Dice::of(round ^ 0x5555).next(LATEST)));
    let failed = child.try_wait().expect("a child");
    assert!(failed.is_none(), "round {round}: the victim has ended before: {failed:?}");
    let at = Instant::now();
    child.kill().and_then(|()| child.wait()).expect("a child that is killed");
    at
}

/// Descriptors, and regions of pipes that are mapped.
fn held() -> (usize, usize) {
    let descriptors = fs::read_dir("/proc/self/fd").expect("descriptors").count();
    let maps = fs::read_to_string("/proc/self/maps").expect("maps");
    (descriptors, maps.lines().filter(|line| line.contains("strait-rpipe")).count())
}

fn survive(round: u64, scratch: &Path) -> Result<Duration, Error> {
    let dir = scratch.join(round.to_string());
    fs::create_dir(&dir).expect("a directory of the round");
    let context = join(0, &dir)?;
    let program = env::current_exe().expect("this program");
    let mut victim = Command::new(program);
    victim.arg("victim").env(DIR, &dir).env(ROUND, round.to_string()).stdin(Stdio::null());
    let child = victim.spawn().expect("the victim");
    let (report, reported) = mpsc::channel();
    let card = dir.join("card.1");
    let killer = thread::spawn(move || report.send(kill(child, &card, round)));
    let fault = live(&context, round % 2 == 0, round).expect_err("it has no end");
    let ended = Instant::now();
    let killed = reported.recv_timeout(LIMIT).expect("the victim is killed");
    let _ = killer.join().expect("a thread");
    assert!(matches!(fault, Error::Gone(_)), "round {round}: {fault:?}");
    context.close()?;
    drop(context);
    fs::remove_dir_all(&dir).expect("the directory of the round");
    Ok(ended.saturating_duration_since(killed))
}

/// So many rounds.
pub fn all() -> Result<(), Error> {
    let rounds = env::args().nth(2).and_then(|text| text.parse().ok()).unwrap_or(200);
    let scratch = env::temp_dir().join(format!("suite-kills-{}", std::process::id()));
    let _ = fs::remove_dir_all(&scratch);
    fs::create_dir(&scratch).expect("a directory");
    let (mut times, mut before) = (Vec::new(), (usize::MAX, 0));
    for round in 0..rounds {
        times.push(survive(round, &scratch)?);
        let now = held();
        assert_eq!(now.1, 0, "round {round}: memory of pipes is still mapped");
        match round {
            ..FIRST => before = now,
            // Some of what a provider keeps it may make later.
            _ => assert!(now.0 < before.0 + 8, "round {round}: {} descriptors, {} at first", now.0, before.0),
        }
    }
    fs::remove_dir_all(&scratch).expect("a directory");
    times.sort_unstable();
    let late = times.iter().filter(|time| **time > Duration::from_secs(1)).count();
    if let (Some(median), Some(last)) = (times.get(times.len() / 2), times.last()) {
        println!(
            "{rounds} rounds: error after {median:.1?} (median), {last:.1?} (longest), {late} after more than a second"
        );
    }
    Ok(())
}
