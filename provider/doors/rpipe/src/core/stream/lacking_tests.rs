//! Processes that have no descriptor for what a peer has sent, and for a connection to it: calls that wait
//! say so, and go on later.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use super::tests::{patience, read, write};
use crate::backends::Near;
use crate::start::FileBootstrap;
use crate::{
    Backend, Bootstrap, Context, Error, Event, Get, Lent, Many, Patience, Pipe, PipeOptions, Promise, Put,
    Rank, Region, RegionId, RemoteId, Rma, Settings, Side, Token, Wakeup,
};

/// Shared memory, of which nothing that peers have sent is taken in as long as the flag is set.
#[derive(Debug)]
struct Lacking(Near, Arc<AtomicBool>);

impl Backend for Lacking {
    fn name(&self) -> String {
        self.0.name()
    }

    fn card(&self) -> Vec<u8> {
        self.0.card()
    }

    fn connect(&mut self, peer: Rank, card: &[u8]) -> Result<(), Error> {
        self.0.connect(peer, card)
    }

    fn promise(&self, peer: Rank) -> Promise {
        self.0.promise(peer)
    }

    fn expose(&mut self, len: usize) -> Result<Region, Error> {
        self.0.expose(len)
    }

    fn withdraw(&mut self, region: RegionId) -> Result<(), Error> {
        self.0.withdraw(region)
    }

    fn forget(&mut self, remote: RemoteId) {
        self.0.forget(remote)
    }

    fn send(&mut self, to: Rank, bytes: &[u8], grants: &[RegionId]) -> Result<(), Error> {
        self.0.send(to, bytes, grants)
    }

    fn progress(&mut self, events: &mut Vec<Event>) -> Result<(), Error> {
        if self.1.load(SeqCst) {
            events.push(Event::Lack { peer: Some(1), why: lack() });
            return Ok(());
        }
        self.0.progress(events)
    }

    fn close(&mut self, until: Instant) -> Result<(), Error> {
        self.0.close(until)
    }
}

impl Rma for Lacking {
    fn put(&mut self, put: &Put) -> Result<(), Error> {
        self.0.put(put)
    }

    fn put_bytes(
        &mut self,
        to: Rank,
        remote: (RemoteId, usize),
        bytes: &[u8],
        notify: Option<u32>,
    ) -> Result<(), Error> {
        self.0.put_bytes(to, remote, bytes, notify)
    }

    fn get(&mut self, get: &Get) -> Result<(), Error> {
        self.0.get(get)
    }

    fn fetch_add(
        &mut self,
        peer: Rank,
        remote: (RemoteId, usize),
        add: u64,
        token: Token,
    ) -> Result<(), Error> {
        self.0.fetch_add(peer, remote, add, token)
    }
}

impl Wakeup for Lacking {
    fn descriptor(&self) -> Option<RawFd> {
        self.0.descriptor()
    }

    fn arm(&mut self) -> bool {
        self.0.arm()
    }

    fn wake(&mut self, peer: Rank) -> Result<(), Error> {
        self.0.wake(peer)
    }
}

fn lack() -> Error {
    Error::Exhausted("there is no descriptor".into())
}

/// Two processes of a job. The first one lacks descriptors as long as the flag is set.
pub(crate) fn job(name: &str) -> ([Arc<Context>; 2], Arc<AtomicBool>) {
    let lacks = Arc::new(AtomicBool::new(false));
    let dir = scratch(name);
    let open = |rank: Rank, backend: Box<dyn Backend>| {
        let bootstrap = FileBootstrap::new(rank, 2, &dir).unwrap();
        Arc::new(Context::new(backend, Box::new(bootstrap), Settings::default()).unwrap())
    };
    let near = |rank| Near::open(rank, true).unwrap();
    let a = open(0, Box::new(Lacking(near(0), lacks.clone())));
    ([a, open(1, Box::new(near(1)))], lacks)
}

fn scratch(name: &str) -> std::path::PathBuf {
    let dir = env::temp_dir().join(format!("strait-rpipe-lacking-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir(&dir).unwrap();
    dir
}

/// A call that says nothing of it ends after this, with another error.
fn in_time() -> Patience {
    Patience::for_a(Duration::from_secs(20))
}

#[test]
fn a_read_of_many_writers_says_what_is_lacking_of_one_that_has_not_begun_and_reads_its_message_later() {
    let ([a, b], lacks) = job("many");
    thread::scope(|s| {
        let mut many = Many::open(&a, &[1], &PipeOptions::new(Side::Reader)).unwrap();
        lacks.store(true, SeqCst);
        for _ in 0..3 {
            assert!(matches!(many.read(8, in_time()), Err(Error::Exhausted(_))));
        }
        lacks.store(false, SeqCst);
        s.spawn(|| {
            let mut pipe = Pipe::open(&b, 0, &PipeOptions::new(Side::Writer)).unwrap();
            write(&mut pipe, b"later").unwrap();
            b.close().unwrap();
        });
        let message = many.read(8, patience()).unwrap();
        assert_eq!((message.source, message.len), (1, 5));
        many.free(&message).unwrap();
        assert!(matches!(many.read(8, patience()), Err(Error::Gone(_))));
    });
}

#[test]
fn a_lender_that_waits_says_what_is_lacking_and_learns_later_that_its_memory_is_back() {
    let ([a, b], lacks) = job("lend");
    thread::scope(|s| {
        let borrower = s.spawn(|| crate::Borrowed::open(&b, 0, None, patience()).unwrap());
        let lent = Lent::open(&a, 1, 4096, patience()).unwrap();
        let borrowed = borrower.join().unwrap();
        lacks.store(true, SeqCst);
        assert!(matches!(lent.wait(in_time()), Err(Error::Exhausted(_))));
        lacks.store(false, SeqCst);
        drop(borrowed);
        lent.wait(patience()).unwrap();
    });
}

/// Cards that there is no descriptor to connect by.
#[derive(Debug)]
struct NoCards(FileBootstrap);

impl Bootstrap for NoCards {
    fn name(&self) -> &str {
        "no cards"
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
    fn card(&mut self, _: Rank, _: Instant) -> Result<Vec<u8>, Error> {
        Err(lack())
    }
}

#[test]
fn a_peer_that_has_connected_is_notified_that_an_end_has_failed_where_this_process_cannot_connect_to_it() {
    let dir = scratch("connected");
    let settings = Settings::default();
    let bootstrap = |rank| FileBootstrap::new(rank, 2, &dir).unwrap();
    let open = |rank: Rank, bootstrap: Box<dyn Bootstrap>| {
        let near = Box::new(Near::open(rank, true).unwrap());
        Arc::new(Context::new(near, bootstrap, settings.clone()).unwrap())
    };
    let (a, b) = (open(0, Box::new(bootstrap(0))), open(1, Box::new(NoCards(bootstrap(1)))));
    let mut writer = Pipe::open(&a, 1, &PipeOptions::new(Side::Writer)).unwrap();
    writer.begin().unwrap();
    thread::scope(|s| {
        s.spawn(|| {
            let mut pipe = Pipe::open(&b, 0, &PipeOptions::new(Side::Reader)).unwrap();
            assert!(matches!(read(&mut pipe), Err(Error::Exhausted(_))));
            // This end stays open until its writer has failed.
            let until = Instant::now() + Duration::from_secs(60);
            while Arc::strong_count(&a) > 1 && Instant::now() < until {
                let _ = b.progress();
                thread::sleep(Duration::from_millis(1));
            }
        });
        let fault = writer.alloc(8, 1, in_time());
        assert!(matches!(&fault, Err(Error::Gone(why)) if why.contains("cannot set its end")), "{fault:?}");
        drop(writer);
    });
    fs::remove_dir_all(&dir).unwrap();
}
