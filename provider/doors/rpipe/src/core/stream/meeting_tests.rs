//! Ends that are used before their peers are there, or whose peers cannot have theirs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use super::tests::{job, patience, read, write};
use crate::core::bootstrap::Bootstrap;
use crate::start::FileBootstrap;
use crate::{Context, Error, Mode, Patience, Pipe, PipeOptions, Rank, Settings, Side, backends};

#[test]
fn a_look_at_a_pipe_whose_peer_has_not_begun_ends_at_once_and_a_later_call_sets_it_up() {
    for backend in ["strait", "strait:frames"] {
        let dir =
            env::temp_dir().join(format!("strait-rpipe-early-{}-{}", backend.len(), std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir(&dir).unwrap();
        let settings = Settings { backend: backend.into(), ..Settings::default() };
        let open = |rank: Rank| {
            let bootstrap = FileBootstrap::new(rank, 2, &dir).unwrap();
            let backend = backends::open(&settings, rank).unwrap();
            Arc::new(Context::new(backend, Box::new(bootstrap), settings.clone()).unwrap())
        };
        let a = open(0);
        let eager = |side| PipeOptions { eager: true, ..PipeOptions::new(side) };
        let mut reader = Pipe::open(&a, 1, &eager(Side::Reader)).unwrap();
        let mut writer = Pipe::open(&a, 1, &PipeOptions::new(Side::Writer)).unwrap();
        for _ in 0..3 {
            // Waiting for the other would end with `Gone`.
            assert_eq!(reader.read(8, Patience::Poll).unwrap_err(), Error::Again);
            assert_eq!(reader.peek(), Ok(None));
            assert_eq!(writer.alloc(8, 1, Patience::Poll).unwrap_err(), Error::Again);
        }
        let b = open(1);
        thread::scope(|s| {
            s.spawn(|| {
                let mut writer = Pipe::open(&b, 0, &PipeOptions::new(Side::Writer)).unwrap();
                let mut reader = Pipe::open(&b, 0, &eager(Side::Reader)).unwrap();
                write(&mut writer, b"there").unwrap();
                assert_eq!(read(&mut reader).unwrap(), b"here");
                b.close().unwrap();
            });
            assert_eq!(read(&mut reader).unwrap(), b"there");
            write(&mut writer, b"here").unwrap();
            assert!(matches!(reader.read(8, patience()), Err(Error::Gone(_))));
        });
        fs::remove_dir_all(&dir).unwrap();
    }
}

/// Cards that are not to be had for a while.
#[derive(Debug)]
struct Late(FileBootstrap, Arc<AtomicBool>);

impl Bootstrap for Late {
    fn name(&self) -> &str {
        "late"
    }
    fn rank(&self) -> Rank {
        self.0.rank()
    }
    fn size(&self) -> Rank {
        self.0.size()
    }
    fn publish(&mut self, card: &[u8]) -> Result<(), Error> {
        self.0.publish(card)
    }
    fn card(&mut self, of: Rank, until: Instant) -> Result<Vec<u8>, Error> {
        if self.1.load(SeqCst) { self.0.card(of, until) } else { Err(Error::Again) }
    }
}

#[test]
fn messages_of_a_peer_that_was_not_met_yet_are_all_heard() {
    let dir = env::temp_dir().join(format!("strait-rpipe-unmet-{}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir(&dir).unwrap();
    let settings = Settings { backend: "strait:frames".into(), ..Settings::default() };
    let met = Arc::new(AtomicBool::new(false));
    let open = |rank: Rank, met: &Arc<AtomicBool>| {
        let bootstrap = Late(FileBootstrap::new(rank, 2, &dir).unwrap(), met.clone());
        let backend = backends::open(&settings, rank).unwrap();
        Arc::new(Context::new(backend, Box::new(bootstrap), settings.clone()).unwrap())
    };
    let (a, b) = (open(0, &Arc::new(AtomicBool::new(true))), open(1, &met));
    let eager = PipeOptions { eager: true, ..PipeOptions::new(Side::Reader) };
    let mut readers: Vec<_> = (0..3).map(|_| Pipe::open(&a, 1, &eager).unwrap()).collect();
    let writer = || Pipe::open(&b, 0, &PipeOptions::new(Side::Writer)).unwrap();
    let mut writers: Vec<_> = (0..3).map(|_| writer()).collect();
    // What the three readers have said comes while their rank is not known.
    for _ in 0..20 {
        thread::sleep(Duration::from_millis(1));
        assert_eq!(writers[0].alloc(8, 1, Patience::Poll).unwrap_err(), Error::Again);
    }
    met.store(true, SeqCst);
    thread::scope(|s| {
        s.spawn(|| {
            for writer in &mut writers {
                write(writer, b"heard").unwrap();
                writer.flush(patience()).unwrap();
            }
        });
        for reader in &mut readers {
            assert_eq!(read(reader).unwrap(), b"heard");
        }
    });
    fs::remove_dir_all(&dir).unwrap();
}

/// The widths and kinds of the two ends are as they should be: nothing else is said to be wrong.
#[test]
fn a_reader_whose_writer_cannot_set_its_end_up_has_that_error() {
    let [a, b] = job("unsound", &Settings::default());
    thread::scope(|s| {
        s.spawn(|| {
            let options = PipeOptions { mode: Some(Mode::OneWrite), ..PipeOptions::new(Side::Writer) };
            let mut pipe = Pipe::open(&a, 1, &options).unwrap();
            assert!(matches!(pipe.alloc(8, 1, patience()), Err(Error::Unsupported(_))));
            // This end stays open until the reader has failed with that cause.
            let mut from_reader = Pipe::open(&a, 1, &PipeOptions::new(Side::Reader)).unwrap();
            assert_eq!(read(&mut from_reader).unwrap(), b"failed");
        });
        let mut pipe = Pipe::open(&b, 0, &PipeOptions::new(Side::Reader)).unwrap();
        let fault = pipe.read(8, patience()).unwrap_err();
        assert!(matches!(&fault, Error::Gone(why) if why.contains("cannot set its end")), "{fault:?}");
        let mut to_writer = Pipe::open(&b, 0, &PipeOptions::new(Side::Writer)).unwrap();
        write(&mut to_writer, b"failed").unwrap();
        to_writer.flush(patience()).unwrap();
    });
}
