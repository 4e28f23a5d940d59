//! Ends that are closed while something is on its way, over frames, where that takes both processes.

use std::thread;
use std::time::Duration;

use super::tests::{job, patience, read, write};
use crate::{Error, Patience, Pipe, PipeOptions, Settings, Side, Sync};

fn frames() -> Settings {
    Settings { backend: "strait:frames".into(), heap: 8 << 20, ..Settings::default() }
}

#[test]
fn a_reader_that_closes_one_pipe_keeps_the_others() {
    let [a, b] = job("others", &frames());
    thread::scope(|s| {
        s.spawn(|| {
            let mut one = Pipe::open(&b, 0, &PipeOptions::new(Side::Reader)).unwrap();
            let mut two = Pipe::open(&b, 0, &PipeOptions::new(Side::Reader)).unwrap();
            assert_eq!(read(&mut one).unwrap(), b"first");
            one.close().unwrap();
            assert_eq!(read(&mut two).unwrap(), b"second");
        });
        let mut one = Pipe::open(&a, 1, &PipeOptions::new(Side::Writer)).unwrap();
        let mut two = Pipe::open(&a, 1, &PipeOptions::new(Side::Writer)).unwrap();
        write(&mut one, b"first").unwrap();
        let fault = loop {
            if let Err(fault) = write(&mut one, &[7; 5000]) {
                break fault;
            }
        };
        assert!(matches!(fault, Error::Gone(_)), "{fault:?}");
        write(&mut two, b"second").unwrap();
        two.flush(patience()).unwrap();
        for _ in 0..300 {
            a.progress().unwrap();
            thread::sleep(Duration::from_millis(1));
        }
    });
}

#[test]
fn messages_that_a_reader_gets_outlive_the_pipe_that_they_were_written_to() {
    let [a, b] = job("outlive", &frames());
    let (closed, is_closed) = std::sync::mpsc::channel();
    thread::scope(|s| {
        s.spawn(move || {
            let mut pipe =
                Pipe::open(&b, 0, &PipeOptions { eager: true, ..PipeOptions::new(Side::Reader) }).unwrap();
            while is_closed.try_recv().is_err() {
                b.progress().unwrap();
            }
            for n in 0..3 {
                assert_eq!(read(&mut pipe).unwrap(), [n; 5000]);
            }
            assert!(matches!(pipe.read(1, patience()), Err(Error::Gone(_))));
            pipe.close().unwrap();
            b.close().unwrap();
        });
        let mut pipe =
            Pipe::open(&a, 1, &PipeOptions { pull: true, ..PipeOptions::new(Side::Writer) }).unwrap();
        for n in 0..3 {
            write(&mut pipe, &[n; 5000]).unwrap();
        }
        pipe.close().unwrap();
        closed.send(()).unwrap();
        // Until the reader has closed its end, or is gone.
        while a.lock().some_are_wanted() {
            a.progress().unwrap();
        }
        a.close().unwrap();
    });
}

/// A put into memory that was taken back may cost more than itself: providers end the connection for it.
#[test]
fn what_a_reader_frees_has_where_to_go_until_it_closes_its_end() {
    let unmapped = Settings { map: false, heap: 64 << 10, ..Settings::default() };
    for (name, settings, kept) in
        [("mapped", Settings::default(), 0), ("unmapped", unmapped, 1), ("frames", frames(), 1)]
    {
        let [a, b] = job(&format!("freed-{name}"), &settings);
        let (closed, is_closed) = std::sync::mpsc::channel();
        thread::scope(|s| {
            s.spawn(move || {
                let mut pipe = Pipe::open(&b, 0, &PipeOptions::new(Side::Reader)).unwrap();
                let mut read = || pipe.read(8, patience()).unwrap().0;
                let blocks = [read(), read()];
                while is_closed.try_recv().is_err() {
                    b.progress().unwrap();
                }
                // The writer's end is closed: it is reported here, and each block is freed.
                assert!(matches!(pipe.read(8, patience()), Err(Error::Gone(_))));
                blocks.into_iter().for_each(|block| pipe.free(block).unwrap());
                pipe.close().unwrap();
                b.close().unwrap();
            });
            let mut pipe = Pipe::open(&a, 1, &PipeOptions::new(Side::Writer)).unwrap();
            (0..2).for_each(|_| write(&mut pipe, &[1; 8]).unwrap());
            pipe.close().unwrap();
            assert_eq!(a.lock().kept(), kept, "{name}");
            closed.send(()).unwrap();
            // Until the reader has closed its end: a process that leaves waits for none of it.
            while a.lock().kept() != 0 {
                a.progress().unwrap();
            }
            a.close().unwrap();
        });
    }
}

/// A peer that makes no calls, over frames: each timed call ends all the same, and what it has begun goes on
/// later.
#[test]
fn a_peer_that_makes_no_calls_holds_no_timed_call() {
    let [a, b] = job("stopped", &frames());
    let look = Patience::for_a(Duration::from_millis(20));
    let short = PipeOptions { heap: Some(8 << 20), ..PipeOptions::new(Side::Reader) };
    let (mut pull, mut from) = thread::scope(|s| {
        let pulled = s.spawn(|| {
            let mut pipe = Pipe::open(&b, 0, &short).unwrap();
            assert_eq!(read(&mut pipe).unwrap(), b"up");
            pipe
        });
        let options =
            PipeOptions { pull: true, sync: Some(Sync::Immediate), ..PipeOptions::new(Side::Writer) };
        let mut pipe = Pipe::open(&a, 1, &options).unwrap();
        write(&mut pipe, b"up").unwrap();
        (pipe, pulled.join().unwrap())
    });
    // The reader makes no calls from here on: its tags cannot be got, and what is known does.
    for time in [look, Patience::Poll] {
        let block = pull.alloc(5000, 1, time).unwrap();
        pull.free(block).unwrap();
    }
    assert_eq!(pull.alloc(8 << 20, 1, look), Err(Error::Again));
    thread::scope(|s| {
        let (done, is_done) = std::sync::mpsc::channel();
        let serving = b.clone();
        s.spawn(move || {
            while is_done.try_recv().is_err() {
                serving.progress().unwrap();
            }
        });
        write(&mut pull, &[9; 50_000]).unwrap();
        done.send(()).unwrap();
    });
    // And now the writer makes none: the bytes cannot be got.
    let fault = (0..1000).find_map(|_| from.read(usize::MAX, look).err());
    assert_eq!(fault, Some(Error::Again));
    thread::scope(|s| {
        let (done, is_done) = std::sync::mpsc::channel();
        let serving = a.clone();
        s.spawn(move || {
            while is_done.try_recv().is_err() {
                serving.progress().unwrap();
            }
        });
        assert_eq!(read(&mut from).unwrap(), [9; 50_000]);
        done.send(()).unwrap();
    });
}

#[test]
fn a_timed_write_to_a_peer_that_makes_no_calls_leaves_the_block_or_arrives() {
    let [a, b] = job("unread", &frames());
    const LEN: usize = 2 << 20;
    let (mut pipe, mut from) = thread::scope(|s| {
        let reading = s.spawn(|| {
            let options = PipeOptions { heap: Some(64 << 20), ..PipeOptions::new(Side::Reader) };
            let mut pipe = Pipe::open(&b, 0, &options).unwrap();
            assert_eq!(read(&mut pipe).unwrap(), b"up");
            pipe
        });
        let mut pipe = Pipe::open(&a, 1, &PipeOptions::new(Side::Writer)).unwrap();
        write(&mut pipe, b"up").unwrap();
        (pipe, reading.join().unwrap())
    });
    let mut sent = 0;
    let block = loop {
        // 30 of them fit into the heap; the path takes fewer.
        let block = pipe.alloc(LEN, 1, patience()).unwrap();
        match pipe.write_timed(block, None, Patience::for_a(Duration::from_millis(20))) {
            Ok(()) => sent += 1,
            Err(fault) => {
                assert_eq!(fault, Error::Again);
                break block;
            }
        }
        assert!(sent < 30, "the path takes all");
    };
    // The block is this end's still.
    thread::scope(|s| {
        s.spawn(|| {
            for _ in 0..=sent {
                assert_eq!(read(&mut from).unwrap().len(), LEN);
            }
        });
        pipe.write(block, None).unwrap();
        pipe.flush(patience()).unwrap();
        drop(pipe);
        a.close().unwrap();
    });
}
