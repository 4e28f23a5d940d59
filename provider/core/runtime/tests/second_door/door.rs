//! Ports that are connected by address, and messages between them, polling or sleeping: an interface that
//! is not libfabric's, over `runtime`, the engine and a link. One thread at a time waits on a port.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::{fmt, io, thread};

use engine::{ADDR_UNSPEC, Cntrs, Config, Ctx, Domain, EpConfig, FiAddr, OpFlags, Pattern};
use hmem::{Kind, Span};
use link::{Links, OpenOptions};
use link_api::{Link as _, SleepLink as _, WaitFd};
use runtime::{Attached, Deadline, Guard, Idle, Progress, Runtime, Step, Wait, Watched};
use wire::Addr;

/// Why a call failed.
#[derive(Debug)]
pub enum Error {
    Open(io::Error),
    Runtime(runtime::Error),
    Engine(engine::Error),
    Timeout,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Open(e) => write!(f, "no port: {e}"),
            Error::Runtime(e) => e.fmt(f),
            Error::Engine(e) => e.fmt(f),
            Error::Timeout => f.write_str("not over yet; wait again"),
        }
    }
}

impl From<runtime::Error> for Error {
    fn from(e: runtime::Error) -> Error {
        Error::Runtime(e)
    }
}

/// A peer that messages can be sent to.
#[derive(Clone, Copy, Debug)]
pub struct Peer(FiAddr);

/// A message that is sent, or a buffer that one is received in; its buffer is the port's until then.
#[derive(Debug)]
pub struct Op(usize);

#[derive(Debug, Default)]
struct Ops {
    last: usize,
    under_way: HashMap<usize, Vec<u8>>,
    done: HashMap<usize, Result<Vec<u8>, engine::Error>>,
}

/// What sends and receives.
#[derive(Debug)]
pub struct Port {
    runtime: Arc<Runtime<Links>>,
    /// What a peer connects to.
    pub addr: Addr,
    ep: engine::EpId,
    rx: engine::RxId,
    av: engine::AvId,
    cq: engine::CqId,
    wait: Arc<Wait>,
    attached: Vec<Attached>,
    /// Locked only by a thread that is inside the domain.
    ops: Mutex<Ops>,
}

impl Port {
    pub fn open(progress: Progress) -> Result<Port, Error> {
        let (eager, eager_in_a_row) = (link::eager_size(), link::eager_in_a_row());
        let eager_one_way = link::eager_one_way();
        let bind = Some(([127, 0, 0, 1], 0).into());
        let options = OpenOptions { bind, eager, eager_in_a_row, eager_one_way, ..OpenOptions::default() };
        let link = Links::open(options).map_err(Error::Open)?;
        let config = Config { virt_addr: false, rma_order: false };
        let runtime = Arc::new(Runtime::new(Domain::new(config), progress));
        let wait = Arc::<Wait>::default();
        let fd =
            link.wait_fd(WaitFd::All).ok_or_else(|| Error::Open(std::io::ErrorKind::Unsupported.into()))?;
        let mut attached = vec![Attached::new(&wait, fd)?];
        attached.extend(runtime.attach(fd)?);
        let addr = link.addr();
        let mut engine = runtime.enter()?;
        let (av, cq) = (engine.av_open(), engine.cq_open(1024));
        let (tx_cq, rx_cq, cntrs) = (Some(cq), Some(cq), Cntrs::default());
        let ep = engine.ep_open(EpConfig { link, av, rx: None, tx_cq, rx_cq, cntrs });
        let rx = engine.ep_rx(ep).ok_or(Error::Engine(engine::Error::NotFound))?;
        drop(engine);
        runtime::start(&runtime)?;
        Ok(Port { runtime, addr, ep, rx, av, cq, wait, attached, ops: Mutex::default() })
    }

    pub fn connect(&self, addr: Addr) -> Result<Peer, Error> {
        Ok(Peer(self.runtime.enter()?.av_insert(self.av, addr)))
    }

    /// Posts an operation on this buffer, as soon as there is room for it.
    fn post(
        &self,
        mut buffer: Vec<u8>,
        run: impl Fn(&mut Domain<Links>, &[Span], Ctx) -> Result<(), engine::Error>,
    ) -> Result<Op, Error> {
        // SAFETY: the heap memory of a vector that is neither grown nor freed while the operation is under
        // way: `post`, `reap` and `drop` are all that touch `under_way`.
        let span = unsafe { Span::new(buffer.as_mut_ptr().expose_provenance(), buffer.len(), Kind::System) };
        let mut engine = self.runtime.enter()?;
        let op = {
            let mut ops = self.ops.lock().unwrap();
            ops.last += 1;
            let op = ops.last;
            ops.under_way.insert(op, buffer);
            op
        };
        loop {
            match run(&mut engine, &[span], Ctx(op)) {
                Ok(()) => return Ok(Op(op)),
                Err(engine::Error::Again) => self.reap(&mut engine),
                Err(e) => {
                    self.ops.lock().unwrap().under_way.remove(&op);
                    return Err(Error::Engine(e));
                }
            }
            drop(engine);
            thread::yield_now();
            engine = self.runtime.enter_to_poll()?;
        }
    }

    pub fn send(&self, to: Peer, bytes: Vec<u8>) -> Result<Op, Error> {
        self.post(bytes, |engine, iov, ctx| {
            let (tag, data, flags) = (None, None, OpFlags::COMPLETION);
            engine.send(self.ep, &engine::Send { to: to.0, iov, tag, data, ctx, flags })
        })
    }

    pub fn recv(&self, most: usize) -> Result<Op, Error> {
        self.post(vec![0; most], |engine, iov, ctx| {
            let pattern = Pattern { src: ADDR_UNSPEC, tag: None };
            engine.recv(self.rx, &engine::Recv { pattern, iov, ctx, flags: OpFlags::COMPLETION })
        })
    }

    /// Makes progress, and notes what has completed.
    fn reap(&self, engine: &mut Guard<'_, Links>) {
        engine.progress();
        let mut ended = Vec::new();
        engine.cq_take(self.cq, usize::MAX, |_, c| ended.push(*c));
        ended.extend(engine.cq_error(self.cq));
        let mut ops = self.ops.lock().unwrap();
        for c in ended {
            let Some(mut buffer) = ops.under_way.remove(&c.ctx.0) else { continue };
            if c.what.contains(engine::What::RECV) {
                buffer.truncate(c.len);
            }
            ops.done.insert(c.ctx.0, c.err.map_or(Ok(buffer), Err));
        }
    }

    /// The buffer back, once the operation is over. It does not wait.
    pub fn test(&self, op: &Op) -> Result<Option<Vec<u8>>, Error> {
        let mut engine = self.runtime.enter_to_poll()?;
        self.reap(&mut engine);
        self.ops.lock().unwrap().done.remove(&op.0).transpose().map_err(Error::Engine)
    }

    /// The buffer back, once the operation is over. It sleeps until then.
    pub fn wait(&self, op: &Op, ms: i32) -> Result<Vec<u8>, Error> {
        let until = Deadline::after_ms(ms);
        let ended =
            self.runtime.block(&self.wait, Idle::Sleep, until, || match self.test(op).transpose() {
                Some(ended) => Step::Done(ended),
                None => Step::Wait(Watched::Cq(self.cq)),
            })?;
        ended.unwrap_or(Err(Error::Timeout))
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.attached.clear();
        self.runtime.close();
        let closed = self.runtime.enter().map(|mut engine| engine.ep_close(self.ep));
        if closed != Ok(Ok(())) {
            // Peers may still be inside the buffers.
            std::mem::forget(std::mem::take(&mut *self.ops.lock().unwrap()));
        }
    }
}
