//! Peers that write what no end writes: over all that was granted to them, and in control messages.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use super::tests::{patience, write};
use crate::backends::Near;
use crate::core::control::{Class, Control, Key, Manner, Place, Shape};
use crate::start::FileBootstrap;
use crate::{
    Backend, Bootstrap as _, Context, Error, Event, Memory, Mode, Pipe, PipeOptions, Settings, Side, Sync,
};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Writes into memory what is nearly right, and what is not.
fn scribble(memory: &Memory, random: &mut Random) {
    let at = (random.next() as usize % (memory.len() / 8)) * 8;
    let at = if random.next() % 2 == 0 { at % 2048 } else { at };
    let value = match random.next() % 4 {
        0 => random.next(),
        1 => random.next() % 64,
        2 => u64::MAX,
        _ => ((1 + random.next() % 3) << 56) | ((random.next() % 8) << 28) | (random.next() % 64),
    };
    memory.word(at).store(value, Relaxed);
}

/// A peer that goes through the motions, and then lies until `stop` is set. `side`: the victim's.
fn villain(mut backend: Near, side: Side, seed: u64, stop: &AtomicBool) {
    let mut random = Random(seed);
    let (writer, reader) = if side == Side::Writer { (0, 1) } else { (1, 0) };
    let key = Key { class: Class::Half, writer, reader, ordinal: 0 };
    let shape = Shape { width: u64::MAX, heap: 4096, slots: 4, place: Place::Host };
    let region = backend.expose(shape.region().max(shape.writer_region(false))).unwrap();
    let first = if side == Side::Writer {
        Control::Reader { shape, no: 0, fences: true }
    } else {
        let manner = Manner { mode: Mode::Store, sync: Sync::Deferred, pull: false };
        Control::Writer { width: u64::MAX, manner }
    };
    backend.send(0, &first.encode(&key), &[region.id]).unwrap();
    let (mut granted, mut events) = (Vec::new(), Vec::new());
    while !stop.load(Relaxed) {
        backend.progress(&mut events).unwrap();
        for event in events.drain(..) {
            if let Event::Control { grants, .. } = event {
                granted.extend(grants.into_iter().filter_map(|grant| grant.mapped));
            }
        }
        for _ in 0..1000 {
            scribble(&region.memory, &mut random);
            granted.iter().for_each(|memory| scribble(memory, &mut random));
        }
        let lie: Vec<u8> = match random.next() % 4 {
            0 => (0..random.next() % 60).map(|_| random.next() as u8).collect(),
            1 => Control::Hello.encode(&Key { ordinal: random.next() as u32, ..key }),
            _ => continue,
        };
        let _ = backend.send(0, &lie, &[]);
    }
}

/// Ends the peer's thread also where the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

fn against(side: Side, seed: u64) {
    let dir = env::temp_dir().join(format!("strait-rpipe-hostile-{side:?}-{seed}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir(&dir).unwrap();
    let boot = |rank| Box::new(FileBootstrap::new(rank, 2, &dir).unwrap());
    let near = Near::open(0, true).unwrap();
    let context = Context::new(Box::new(near), boot(0), Settings::default()).unwrap();
    let context = std::sync::Arc::new(context);
    let mut other = Near::open(1, true).unwrap();
    let mut bootstrap = boot(1);
    bootstrap.publish(&other.card()).unwrap();
    other.connect(0, &bootstrap.card(0, Instant::now()).unwrap()).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|s| {
        s.spawn(|| villain(other, side, seed, &stop));
        let _stop = Stop(&stop);
        let mut pipe = Pipe::open(
            &context,
            1,
            &PipeOptions { slots: Some(4), heap: Some(4096), ..PipeOptions::new(side) },
        )
        .unwrap();
        let until = Instant::now() + Duration::from_millis(300);
        while Instant::now() < until {
            let short = crate::Patience::for_a(Duration::from_millis(20));
            let ended = match side {
                Side::Writer => write(&mut pipe, &[7; 50]),
                _ => pipe.read(usize::MAX, short).and_then(|(block, len)| {
                    assert!(len <= 4096, "longer than the heap");
                    pipe.address(block)?;
                    pipe.free(block)
                }),
            };
            match ended {
                // Its lie was found, and the pipe is over.
                Err(Error::Broken(_)) => {
                    let (read, written) = (pipe.read(8, patience()), write(&mut pipe, &[1]));
                    assert!(read.is_err() && written.is_err());
                    break;
                }
                Ok(())
                | Err(
                    Error::Again | Error::Full(_) | Error::Invalid(_) | Error::TooLong(_) | Error::Stale(_),
                ) => {}
                Err(other) => panic!("{other:?}"),
            }
        }
    });
}

#[test]
fn a_hostile_reader_neither_hangs_nor_corrupts_the_writer() {
    (1..6).for_each(|seed| against(Side::Writer, seed));
}

#[test]
fn a_hostile_writer_neither_hangs_nor_corrupts_the_reader() {
    (1..6).for_each(|seed| against(Side::Reader, seed));
}

#[test]
fn a_peer_that_begins_pipes_without_end_takes_no_room_of_others() {
    let dir = env::temp_dir().join(format!("strait-rpipe-begins-{}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir(&dir).unwrap();
    let boot = |rank| Box::new(FileBootstrap::new(rank, 3, &dir).unwrap());
    let open = |rank| {
        let near = Box::new(Near::open(rank, true).unwrap());
        std::sync::Arc::new(Context::new(near, boot(rank), Settings::default()).unwrap())
    };
    let (a, c) = (open(0), open(2));
    let (mut villain, mut bootstrap) = (Near::open(1, true).unwrap(), boot(1));
    bootstrap.publish(&villain.card()).unwrap();
    villain.connect(0, &bootstrap.card(0, Instant::now()).unwrap()).unwrap();
    for ordinal in 0..1000 {
        let key = Key { class: Class::Half, writer: 1, reader: 0, ordinal };
        villain.send(0, &Control::Hello.encode(&key), &[]).unwrap();
        a.progress().unwrap();
    }
    // What it says once, and says before the other end is there.
    let mut reader = Pipe::open(&c, 0, &PipeOptions::new(Side::Reader)).unwrap();
    reader.begin().unwrap();
    (0..1000).for_each(|_| a.progress().unwrap());
    thread::scope(|s| {
        s.spawn(|| {
            let mut pipe = Pipe::open(&a, 2, &PipeOptions::new(Side::Writer)).unwrap();
            write(&mut pipe, b"heard").unwrap();
        });
        let (block, len) = reader.read(8, patience()).unwrap();
        assert_eq!(len, 5);
        reader.free(block).unwrap();
    });
    fs::remove_dir_all(&dir).unwrap();
}
