//! A thread of a context that drains rings, and the endpoint by which it does that. Each has a runtime of its
//! own, so that no thread waits for another one's lock.

use std::net::SocketAddr;
use std::sync::Arc;

use engine::{AvId, Cntrs, Config, CqId, Domain, EpConfig, EpId};
use link::{Links, OpenOptions, TcpOptions};
use link_api::{Link as _, SleepLink as _, WaitFd};
use runtime::{Attached, Progress, Runtime};

use crate::drain::Drain;
use crate::error::Error;
use crate::port::Port;
use crate::thread::{DrainThread, Drains, Pace};

/// The only drain of a lane.
const OWN: u64 = 0;
/// Completions that the engine keeps.
const COMPLETIONS: usize = 1 << 16;

/// The objects of the engine.
#[derive(Clone, Copy, Debug)]
struct Objects {
    ep: EpId,
    av: AvId,
    cq: CqId,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Lane {
    runtime: Arc<Runtime<Links>>,
    objects: Objects,
    addr: wire::Addr,
    drains: Arc<Drains>,
    thread: Option<DrainThread>,
    /// Goes before the endpoint does.
    awake: Option<Attached>,
    closed: bool,
}

impl Lane {
    /// One with an endpoint at this address. With a key it reaches peers of other hosts, and without `shm`
    /// all of them by TCP.
    pub(crate) fn open(
        bind: Option<SocketAddr>,
        key: Option<&wire::session::JobKey>,
        shm: bool,
    ) -> Result<Lane, Error> {
        let (eager, eager_in_a_row) = (link::eager_size(), link::eager_in_a_row());
        let eager_one_way = link::eager_one_way();
        let port = if key.is_some() { link::Port::Listens } else { link::Port::Reserved };
        let mut link = Links::open(OpenOptions {
            bind,
            eager,
            eager_in_a_row,
            eager_one_way,
            port,
            ..OpenOptions::default()
        })?;
        if let Some(key) = key {
            link.add_tcp(TcpOptions { secret: true, ..TcpOptions::new(key.clone()) })?;
        }
        link.set_shm(shm);
        let addr = link.addr();
        let drains = Arc::<Drains>::default();
        let awake = link.wait_fd(WaitFd::All).map(|fd| Attached::new(drains.wait(), fd)).transpose()?;
        // Addresses in commands are those that the target has.
        let config = Config { virt_addr: true, rma_order: false };
        let runtime = Arc::new(Runtime::new(Domain::new(config), Progress::Manual));
        let mut engine = runtime.enter()?;
        let (av, cq) = (engine.av_open(), engine.cq_open(COMPLETIONS));
        let (tx_cq, rx_cq, cntrs) = (Some(cq), Some(cq), Cntrs::default());
        let ep = engine.ep_open(EpConfig { link, av, rx: None, tx_cq, rx_cq, cntrs });
        drop(engine);
        let objects = Objects { ep, av, cq };
        Ok(Lane { runtime, objects, addr, drains, thread: None, awake, closed: false })
    }

    pub(crate) fn addr(&self) -> wire::Addr {
        self.addr
    }

    pub(crate) fn runtime(&self) -> &Arc<Runtime<Links>> {
        &self.runtime
    }

    pub(crate) fn drains(&self) -> &Arc<Drains> {
        &self.drains
    }

    /// The endpoint, and these peers as it knows them.
    pub(crate) fn port(
        &self,
        peers: impl Iterator<Item = wire::Addr>,
    ) -> Result<(Port, Vec<engine::FiAddr>), Error> {
        let Objects { ep, av, cq } = self.objects;
        let mut engine = self.runtime.enter()?;
        let peers = peers.map(|peer| engine.av_insert(av, peer)).collect();
        Ok((Port { ep, rx: engine.ep_rx(ep), cq }, peers))
    }

    /// Has the thread poll that drain.
    pub(crate) fn start(&mut self, drain: Drain, pace: Pace) -> Result<(), Error> {
        self.drains.add(OWN, drain);
        self.thread = Some(DrainThread::start(self.runtime.clone(), self.drains.clone(), pace)?);
        Ok(())
    }

    /// Ends the thread and the drain; whether there was one.
    pub(crate) fn stop(&mut self) -> bool {
        if let Some(thread) = &mut self.thread {
            thread.stop();
        }
        self.thread = None;
        self.drains.set_feed(None);
        self.drains.remove(OWN).is_some()
    }

    /// Closes the endpoint.
    pub(crate) fn close(&mut self) -> Result<(), Error> {
        if !self.closed {
            let ep = self.objects.ep;
            self.awake = None;
            match self.runtime.take_back(|engine| engine.ep_close(ep)) {
                Ok(()) | Err(engine::Error::NotFound) => self.closed = true,
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }
}
