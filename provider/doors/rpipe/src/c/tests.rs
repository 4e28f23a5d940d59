//! What rwait waits with: pipes by their pointers, sleep, and the wake of it. Ends of many writers that
//! cannot be kept.

use std::ptr::{null, null_mut};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use super::handles::{Member, close, job_place, keep};
use super::kept::{CLOSED, Place};
use super::many::{Ends, rpipe_many_close, rpipe_many_open, rpipe_many_read};
use super::messages::{rfree, rmalloc, rread_into, rwrite};
use super::types::{RADDR_NULL, rpipe_many_end};
use crate::core::Visit;
use crate::core::lacking_tests;
use crate::core::tests::job;
use crate::many::several::{Several, Turns};
use crate::{Context, Patience, Pipe, PipeOptions, Settings, Side};

const LIMIT: Duration = Duration::from_secs(60);

/// Tests that are in a job take turns: a process is in one.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A reader's context and its pipe's pointer, and the writer's end; a message has gone through.
fn pair(name: &str, settings: &Settings) -> (Arc<Context>, Member, Arc<Context>, Pipe) {
    let [a, b] = job(&format!("c-{name}"), settings);
    let mut reader = Pipe::open(&a, 1, &PipeOptions::new(Side::Reader)).unwrap();
    let mut writer = Pipe::open(&b, 0, &PipeOptions::new(Side::Writer)).unwrap();
    thread::scope(|s| {
        s.spawn(|| {
            let read = reader.read(8, Patience::for_a(LIMIT)).unwrap();
            reader.free(read.0).unwrap();
        });
        write(&mut writer);
        writer.flush(Patience::for_a(LIMIT)).unwrap();
    });
    let reader = Member(keep(reader, a.barrier()).unwrap());
    (a, reader, b, writer)
}

fn write(pipe: &mut Pipe) {
    let block = pipe.alloc(8, 1, Patience::for_a(LIMIT)).unwrap();
    pipe.write(block, None).unwrap();
}

/// Whether the descriptor is readable within the time.
fn is_readable(context: &Context, time: Duration) -> bool {
    let mut p = libc::pollfd { fd: context.descriptor().unwrap(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid pollfd.
    unsafe { libc::poll(&mut p, 1, time.as_millis() as i32) == 1 }
}

#[test]
fn a_write_makes_the_descriptor_of_a_reader_readable_that_has_asked_for_it() {
    let frames = Settings { backend: "strait:frames".into(), ..Settings::default() };
    for (name, settings) in [("mapped", Settings::default()), ("frames", frames)] {
        let (a, reader, b, mut writer) = pair(name, &settings);
        let until = Instant::now() + LIMIT;
        // What came before is taken.
        while !a.arm() || is_readable(&a, Duration::from_millis(1)) {
            assert!(Instant::now() < until, "{name}: the descriptor stays readable");
            a.progress().unwrap();
            b.progress().unwrap();
        }
        assert!([reader].visit(0, Visit::Arm).unwrap(), "{name}: no promise to wake");
        a.barrier().heavy();
        assert!(![reader].visit(0, Visit::Flag).unwrap());
        write(&mut writer);
        let until = Instant::now() + LIMIT;
        while !is_readable(&a, Duration::from_millis(10)) {
            assert!(Instant::now() < until, "{name}: the reader sleeps on a message");
            b.progress().unwrap();
        }
        let at = Turns::new(1, true).wait(&mut [reader][..], &a, Patience::for_a(LIMIT));
        assert_eq!(at, Ok(0));
        close(reader.0).unwrap();
    }
}

#[test]
fn a_call_that_waits_for_pipes_by_pointers_asks_their_writers_to_wake_it() {
    let (a, reader, _b, mut writer) = pair("asks", &Settings::default());
    thread::scope(|s| {
        s.spawn(|| {
            let until = Instant::now() + LIMIT;
            while !writer.sees_sleep() {
                assert!(Instant::now() < until, "the reader does not sleep");
                thread::sleep(Duration::from_millis(1));
            }
            write(&mut writer);
        });
        let at = Turns::new(1, true).wait(&mut [reader][..], &a, Patience::for_a(LIMIT));
        assert_eq!(at, Ok(0));
    });
    close(reader.0).unwrap();
}

#[test]
fn readers_ends_are_closed_if_many_of_them_cannot_be_kept() {
    let _alone = alone();
    let [a, _b] = job("c-many", &Settings::default());
    *job_place() = Some(a.clone());
    // SAFETY: a place for the pointer; NULL stands for all other processes, and for pipes of any width.
    let open = |many: &mut _| unsafe { rpipe_many_open(many, null(), 0, null()) };
    let (mut many, mut other) = (null_mut::<rpipe_many_end>(), null_mut());
    // Until the place of the first is the next that is used again.
    for _ in 0..=CLOSED {
        assert_eq!(open(&mut other), 0);
        // SAFETY: from rpipe_many_open.
        assert_eq!(unsafe { rpipe_many_close(other) }, 0);
        many = if many.is_null() { other } else { many };
    }
    other = null_mut();
    let ends = Arc::strong_count(&a);
    // SAFETY: what a pointer of rpipe_many_open leads to is never freed.
    let place = unsafe { &*many.cast::<Place<Ends>>() };
    // The place is taken again, and this thread is inside.
    let inside = place.lock().unwrap();
    assert_eq!((open(&mut other), other), (-libc::EINVAL, null_mut()));
    drop(inside);
    assert_eq!(Arc::strong_count(&a), ends, "an end is still open");
    *job_place() = None;
}

#[test]
fn a_writer_whose_packet_waits_for_a_descriptor_stays_among_many() {
    let _alone = alone();
    let ([a, b], lacks) = lacking_tests::job("c-many-lacking");
    *job_place() = Some(a.clone());
    let (mut many, mut addr, mut source) = (null_mut(), 0, 0);
    // SAFETY: a place for the pointer; NULL stands for all other processes, and for pipes of any width.
    assert_eq!(unsafe { rpipe_many_open(&raw mut many, null(), 0, null()) }, 0);
    let time = LIMIT.as_nanos() as i64;
    // SAFETY: from rpipe_many_open; places for the address and the rank.
    let mut read = || unsafe { rpipe_many_read(many, &raw mut addr, 8, null_mut(), &raw mut source, time) };
    lacks.store(true, SeqCst);
    (0..2).for_each(|_| assert_eq!(read(), -libc::ENOMEM));
    lacks.store(false, SeqCst);
    thread::scope(|s| {
        s.spawn(|| {
            let mut writer = Pipe::open(&b, 0, &PipeOptions::new(Side::Writer)).unwrap();
            write(&mut writer);
            b.close().unwrap();
        });
        assert_eq!(read(), 0);
    });
    assert_eq!(source, 1);
    // SAFETY: from rpipe_many_open.
    assert_eq!(unsafe { rpipe_many_close(many) }, 0);
    *job_place() = None;
}

/// A pipe by its pointer, for a thread.
fn shared(pipe: Pipe, context: &Context) -> Member {
    Member(keep(pipe, context.barrier()).unwrap())
}

/// Calls `run` in a thread, which reports when it is done.
fn call(done: &mpsc::Sender<&'static str>, what: &'static str, run: impl FnOnce() + Send + 'static) {
    let done = done.clone();
    thread::spawn(move || {
        run();
        done.send(what).unwrap();
    });
}

/// Each thread of the one process waits for what one of the other does.
#[test]
fn threads_that_wait_in_one_pipe_let_each_other_in() {
    const MESSAGES: usize = 300;
    let frames = Settings { backend: "strait:frames".into(), ..Settings::default() };
    for (name, settings) in [("turns", Settings::default()), ("turns-frames", frames)] {
        let [a, b] = job(&format!("c-{name}"), &settings);
        let (done, ended) = mpsc::channel();
        // So that a writer has to wait for room.
        let options = PipeOptions { heap: Some(4096), slots: Some(4), ..PipeOptions::new(Side::Both) };
        let ends = [(&a, 1), (&b, 0)].map(|(of, peer)| shared(Pipe::open(of, peer, &options).unwrap(), of));
        for end in ends {
            call(&done, "a reader", move || {
                let end = end;
                for _ in 0..MESSAGES {
                    let mut read = RADDR_NULL;
                    // SAFETY: an open pipe, and a place for the address.
                    assert_eq!(unsafe { rread_into(end.0, &mut read, 1000) }, 0);
                    assert_eq!(rfree(read), 0);
                }
            });
        }
        // The readers have the pipes, and wait.
        thread::sleep(Duration::from_millis(20));
        for end in ends {
            call(&done, "a writer", move || {
                let end = end;
                for _ in 0..MESSAGES {
                    // SAFETY: an open pipe.
                    let block = unsafe { rmalloc(end.0, 1000) };
                    assert_ne!(block, RADDR_NULL);
                    // SAFETY: an open pipe, and a block of it.
                    assert_eq!(unsafe { rwrite(end.0, block) }, 0);
                }
            });
        }
        for _ in 0..4 {
            ended.recv_timeout(LIMIT / 3).expect("all four threads end");
        }
        ends.into_iter().for_each(|end| close(end.0).unwrap());
    }
}
